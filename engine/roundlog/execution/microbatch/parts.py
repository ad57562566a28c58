"""The parts of a step, ready to run: the stages and sweeps of one program, each with its executor."""

from __future__ import annotations

from pathlib import Path

from roundlog.execution.executor import Executor
from roundlog.execution.microbatch.analysis import Analysis
from roundlog.execution.microbatch.layout import Samples
from roundlog.execution.microbatch.scratch import Scratch
from roundlog.execution.microbatch.stages import Part, cut, part_of
from roundlog.execution.microbatch.values import Values
from roundlog.program import Program
from roundlog.rounding import Window


class Parts:
    """The stages and sweeps of a step. Stage k runs at time 2 k, sweep k at time 2 k + 1."""

    def __init__(self, program: Program, analysis: Analysis, bits: int, left: frozenset[int] = frozenset()) -> None:
        """left: operators that are left out."""
        self._program, self._analysis, self._bits = program, analysis, bits
        self._cut = cut(program, analysis, left)
        self._made: dict[tuple[int, int], tuple[Part, Executor]] = {}

    @property
    def end(self) -> int:
        """The time of the last stage, which stores the state."""
        return len(self._cut.members) - 1

    def scratch(self, directory: Path) -> Scratch:
        """A file for the slices that are read after their sweep. Raises OSError."""
        nodes, layouts = self._program.nodes, self._analysis.layouts
        kept = {
            value: (nodes[value].type, layout)
            for value, layout in enumerate(layouts)
            if layout is not None and value in self._cut.kept_slices
        }
        return Scratch(directory, kept, self._analysis.batch)

    def of(self, time: int, samples: Samples | None) -> tuple[Part, Executor]:
        """The part that runs at a time: a stage (samples is None), or a sweep for these samples."""
        size = self._analysis.batch if samples is None else samples[1] - samples[0]
        if (time, size) not in self._made:
            part = part_of(self._program, self._analysis, self._cut, time, size)
            self._made[time, size] = part, Executor(part.program, self._bits)
        return self._made[time, size]

    def forget_after(self, time: int, values: Values) -> None:
        """Drops the whole values that no later part reads."""
        values.forget([value for value, last in self._cut.kept_until.items() if last == time])

    def window(self, index: int, samples: Samples) -> Window:
        """The elements of a sliced operator's output that these samples own."""
        layout = self._analysis.layouts[index]
        assert layout is not None
        return layout.window(self._program.nodes[index].type.shape, *samples)
