"""Names of operators and slots, from the program of a job that is at hand as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiebreak.dashboard.showing import bounded


@dataclass(frozen=True, slots=True)
class Names:
    """The operators and slots of one program, as people know them. A stranger's text, bounded."""

    operators: Sequence[tuple[str, str]]
    """Kind and source line of each: ("matmul", "gpt.py:54")."""
    slots: Sequence[str]

    def operator(self, index: int) -> str:
        """`matmul of gpt.py line 54`; empty for an operator that the program does not have."""
        if not 0 <= index < len(self.operators):
            return ""
        kind, source = self.operators[index]
        file, separator, line = source.rpartition(":")
        if separator and line.isdigit():
            return f"{bounded(kind, 40)} of {bounded(file, 60)} line {bounded(line, 9)}"
        return f"{bounded(kind, 40)} of {bounded(source, 70)}" if source else bounded(kind, 40)

    def slot(self, index: int) -> str:
        return bounded(self.slots[index], 80) if 0 <= index < len(self.slots) else ""


UNKNOWN = Names((), ())
"""The names where no file of the job is at hand."""
