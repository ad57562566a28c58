"""Child processes of the demo, and the hardware profiles that they run with: one CPU is several machines, depending on
which of its instructions the libraries may use."""

from __future__ import annotations

import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tiebreak.process_resources import environment_of_others

_DECIDED_HERE = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "OPENBLAS_CORETYPE",
    "ONEDNN_MAX_CPU_ISA",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)

PATIENCE = 600.0
"""Seconds after which a part of the demo has failed, whatever the machine."""

_SECONDS_TO_END = 10.0

_SECONDS_BETWEEN_QUESTIONS = 0.3


@dataclass(frozen=True, slots=True)
class Machine:
    """A profile: the environment variables that the kernels' libraries read when a process starts."""

    name: str
    description: str
    variables: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        """The environment of a process on this machine: this one's, without another profile and our own variables."""
        kept = {name: value for name, value in environment_of_others().items() if name not in _DECIDED_HERE}
        # Threads that wait sleep instead of spinning: two processes share few cores here. No influence on any result.
        return kept | {"OMP_WAIT_POLICY": "PASSIVE"} | dict(self.variables)


A = Machine("machine A", "this CPU with all its vector instructions, two threads", {"OMP_NUM_THREADS": "2"})
B = Machine(
    "machine B",
    "no vector instructions beyond the baseline, the oldest code of MKL and OpenBLAS, one thread",
    {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Prescott",
        "OMP_NUM_THREADS": "1",
    },
)


class ProcessFailed(Exception):
    """A process of the demo ended as it should not; the message has the last thing that it said."""


class Child:
    """A child process. `name` is for people; `heard` gets every line that it prints."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        inbox: queue.Queue[tuple[Child, str | None]],
        heard: Callable[[str], None],
    ) -> None:
        self.name = name
        self.heard = heard
        self.ended = False
        # A file and not a pipe: nobody reads it while the process runs, and a full pipe would stop it.
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed by `end`
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=dict(environment),
            cwd=directory,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self._reader.start()

    def _read(self, inbox: queue.Queue[tuple[Child, str | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            inbox.put((self, line.rstrip("\n")))
        inbox.put((self, None))

    def complaints(self) -> str:
        """The last line of its standard error."""
        self._complaints.seek(0)
        lines = self._complaints.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._complaints.close()


class ChildProcesses:
    """The child processes of one part of the demo. Leaving the `with` block ends those that still run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._inbox: queue.Queue[tuple[Child, str | None]] = queue.Queue()
        self._all: list[Child] = []

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], heard: Callable[[str], None]
    ) -> Child:
        child = Child(name, command, environment, self._directory, self._inbox, heard)
        self._all.append(child)
        return child

    def listen(self, done: Callable[[], bool], *, patience: float) -> None:
        """Passes on what the processes print until `done`, which is asked a few times a second.

        Raises ProcessFailed: one of them fails, or `patience` seconds pass."""
        deadline = time.monotonic() + patience
        next_question = 0.0
        while True:
            now = time.monotonic()
            if now >= next_question:
                if done():
                    return
                next_question = time.monotonic() + _SECONDS_BETWEEN_QUESTIONS
            if now > deadline:
                names = ", ".join(child.name for child in self._all)
                raise ProcessFailed(f"nothing came of {names} in {patience:.0f} seconds: try again on a calmer machine")
            self._pass_on()

    def _pass_on(self) -> None:
        try:
            child, line = self._inbox.get(timeout=_SECONDS_BETWEEN_QUESTIONS)
        except queue.Empty:
            return
        if line is not None:
            child.heard(line)
            return
        child.ended = True
        if child.process.wait() != 0:
            raise ProcessFailed(
                f"the {child.name} failed: {child.complaints().rstrip('.')}: play again, and report it if it stays"
            )

    def ended(self, names: set[str]) -> bool:
        """True if the processes of these names have ended and all that they printed was passed on."""
        return all(child.ended for child in self._all if child.name in names)

    def __enter__(self) -> ChildProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._all:
            child.end()
