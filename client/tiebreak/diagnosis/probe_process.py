"""The process of `machine_probe`, begun while other things are asked, and ended at its deadline."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

COMMAND = (sys.executable, "-P", "-m", "tiebreak.diagnosis.machine_probe")
"""The process that is started."""

_MOST_TEXT = 300


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
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace"
        )

    def findings(self, seconds: float) -> MachineFindings:
        """Its findings at its end, or after so many seconds, when it is killed."""
        why = ""
        try:
            out, err = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, err = self._process.communicate()
            why = f"it had not ended after {seconds:g} seconds"
        if not why and self._process.returncode:
            why = _reason(self._process.returncode, err)
        return _read(out, why)

    def kill(self) -> None:
        """Ends it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def machine_probe(command: Sequence[str] | None = None) -> Iterator[MachineProbe]:
    """A process that is asking PyTorch until the block ends."""
    probe = MachineProbe(command or COMMAND)
    try:
        yield probe
    finally:
        probe.kill()


def _read(text: str, why: str) -> MachineFindings:
    """The findings in its lines. A line that was cut off says nothing."""
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
