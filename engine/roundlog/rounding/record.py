"""The trainer's side: round, and write down every decision that another machine might find ambiguous. An auditor
without a log uses the same class and throws the entries away: that audit gives the same bits."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic import held
from roundlog.kernels.rounding_loops import write_down
from roundlog.log import Entries, LogWriter, PayloadKind
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import Inexact
from roundlog.operators.registry import Attributes, Tensors, operands
from roundlog.rounding.protocols import Window, in_order
from roundlog.rounding.resolve import bounded, certify, judge, pieces, put, resolved, settle

T = TypeVar("T", bound=np.generic)


class Recorder:
    """Certified rounding with a log (implements RecordingRounding).

    Two machines' values both lie within d of the exact one, so what an auditor finds ambiguous (within d of a
    boundary) lies within 3d of it for the trainer: `guard` = 4 leaves room for d itself being computed in FP64.
    """

    kind = PayloadKind.ENTRIES

    def __init__(self, guard: int) -> None:
        self.guard = guard
        self.entries: dict[int, Entries] = {}
        """The running step's log, by operator index; the caller takes it after every step with `take`."""

    def take(self) -> dict[int, Entries]:
        """The log of the step that has just run; starts the next one."""
        entries, self.entries = self.entries, {}
        return entries

    def write(self, writer: LogWriter, step: int) -> None:
        """Hand the log of the step that has just run to a file. Raises LogError."""
        writer.append(step, self.take())

    def start_again(self) -> None:
        self.entries = {}

    def round(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        format: Format = FLOAT32,
        window: Window | None = None,
    ) -> torch.Tensor:
        """The rounded output, as `Rounding.round` gives it. window: which part of the operator's output this is; None:
        all of it. No element may be in two parts."""
        inputs = operands(operator, inputs)
        rounded, marked = certify(operator, inputs, attributes, self.guard, format)
        if not bounded(marked):
            marked = settle(operator, inputs, attributes, rounded, marked, format)
        decisions, by_value = [], []
        for some in pieces(marked):
            judged = judge(some, self.guard, format)
            assert judged is not None
            right = resolved(operator, inputs, attributes, some, judged.low, judged.doubtful, format)
            put(rounded, some.indices, right)
            decision, values = write_down(right, judged.upper, judged.two)
            decisions.append(decision)
            by_value.append(values)
        if decisions:
            entries = Entries(marked.indices.numpy(), joined(decisions), joined(by_value))
            if window is not None:
                entries = window.entries_of_whole(entries)
            before = self.entries.get(index)
            self.entries[index] = entries if before is None else in_order([before, entries])
        return held(rounded, format)


def joined(parts: list[npt.NDArray[T]]) -> npt.NDArray[T]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
