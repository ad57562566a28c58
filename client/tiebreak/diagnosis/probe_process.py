"""The process of `machine_probe`, begun while other things are asked, and ended at its deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

COMMAND = (sys.executable, "-P", "-m", "tiebreak.diagnosis.machine_probe")
"""The process that is started."""

_MOST_TEXT = 300
_GRACE = 5.0
"""Seconds for the end of processes that were killed. One that a driver holds does not end even then."""


@dataclass(slots=True)
class MachineFindings:
    """Findings of the process until its end. `torch`: None where it has not come so far. `why`: why it ended too
    early, in a clause; empty if it did not."""

    torch: dict[str, Any] | None = None
    devices: list[dict[str, Any]] = field(default_factory=list)
    why: str = ""


class MachineProbe:
    """A process that is asking PyTorch."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        # With a group of its own, so that the processes that it starts end with it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            errors="replace",
            start_new_session=True,
        )
        self._is_over = False

    def findings(self, seconds: float) -> MachineFindings:
        """Return its findings at its end, or after so many seconds, when it is killed."""
        try:
            out, err = self._process.communicate(timeout=seconds)
            why = _reason(self._process.returncode, err) if self._process.returncode else ""
        except subprocess.TimeoutExpired:
            out = kill_group(self._process)
            why = f"it had not ended after {seconds:g} seconds"
        self._is_over = True
        return _read(out, why)

    def kill(self) -> None:
        """End it and the processes that it has started, whatever they do."""
        if not self._is_over:
            self._is_over = True
            kill_group(self._process)


@contextmanager
def machine_probe(command: Sequence[str] | None = None) -> Iterator[MachineProbe]:
    """Have a process ask PyTorch until the block ends."""
    probe = MachineProbe(command or COMMAND)
    try:
        yield probe
    finally:
        probe.kill()


def kill_group(process: subprocess.Popen[str]) -> str:
    """Kill a process that leads a group and has not been waited for, and its group; return its output. Takes a few
    seconds at most: who holds its pipes in another group, or does not end although it is killed, is left alone."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=_GRACE)[0]
    except subprocess.TimeoutExpired as error:
        # These are bytes even where the pipe is one of text.
        return (error.stdout or b"").decode(errors="replace")


def _read(text: str, why: str) -> MachineFindings:
    """Return the findings in its lines. A line that was cut off says nothing."""
    found = MachineFindings(why=why)
    for line in text.splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue  # a library has printed it, or it was cut off
        if not isinstance(content, dict):
            continue
        if "device" in content:
            found.devices.append(content)
        elif "version" in content:
            found.torch = content
    if not why and (found.torch is None or not found.devices):
        found.why = "it has ended without an answer"
    return found


def _reason(code: int, err: str) -> str:
    if code < 0:
        return f"signal {-code} ended it"
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return lines[-1][:_MOST_TEXT] if lines else f"it ended with exit code {code}"
