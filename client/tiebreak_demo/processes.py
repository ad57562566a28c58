"""Child processes of the demo, and the hardware profiles that they run with: one CPU is several machines, depending on
which of its instructions the libraries may use."""

from __future__ import annotations

import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

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
        """Return the environment of a process on this machine: this one's, without another profile and our own
        variables."""
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


class ChildProcesses(ExitStack):
    """The child processes of one part of the demo. Leaving the `with` block ends those that still run."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._lines: queue.Queue[tuple[str, str | None]] = queue.Queue()
        self._heard: dict[str, Callable[[str], None]] = {}
        self._failure: dict[str, Callable[[], str]] = {}
        self._ended: set[str] = set()

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], heard: Callable[[str], None]
    ) -> None:
        """Start a process. name: for people. heard: is called with every line that it prints."""
        # A file and not a pipe: nobody reads it while the process runs, and a full pipe would stop it.
        errors = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  closed with the processes
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(environment),
            cwd=self._directory,
            text=True,
            encoding="utf-8",
        )
        self._heard[name] = heard

        def read() -> None:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    self._lines.put((name, line.rstrip("\n")))
            self._lines.put((name, None))

        def failure() -> str:
            """Return the last line of standard error of a process that has failed; empty for success."""
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").strip().splitlines()
            return "" if process.wait() == 0 else said[-1] if said else "it said nothing"

        self._failure[name] = failure
        reader = threading.Thread(target=read, daemon=True)
        self.callback(reader.join)
        self.callback(_end, process)
        reader.start()

    def listen(self, done: Callable[[], bool], *, patience: float) -> None:
        """Pass on what the processes print until `done`, which is asked a few times a second.

        Raises ProcessFailed: one of them fails, or `patience` seconds pass."""
        deadline, next_question = time.monotonic() + patience, 0.0
        while True:
            if time.monotonic() >= next_question:
                if done():
                    return
                next_question = time.monotonic() + _SECONDS_BETWEEN_QUESTIONS
            if time.monotonic() > deadline:
                names = ", ".join(self._heard)
                raise ProcessFailed(f"nothing came of {names} in {patience:.0f} seconds: try again on a calmer machine")
            try:
                name, line = self._lines.get(timeout=_SECONDS_BETWEEN_QUESTIONS)
            except queue.Empty:
                continue
            if line is not None:
                self._heard[name](line)
                continue
            self._ended.add(name)
            if why := self._failure[name]():
                raise ProcessFailed(f"the {name} failed: {why.rstrip('.')}: play again, and report it if it stays")

    def ended(self, names: Iterable[str] | None = None) -> bool:
        """Return whether the processes of these names, or all, have ended and all that they printed was passed on."""
        return self._ended.issuperset(self._heard if names is None else names)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
