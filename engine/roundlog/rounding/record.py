"""The trainer's side: round, and write down every decision that another machine might find ambiguous. An auditor
without a log uses the same class and throws the entries away: that audit gives the same bits."""

from __future__ import annotations

import numpy as np
import torch

from roundlog.arithmetic import FULL_BITS
from roundlog.log import Decision, Entries, LogWriter
from roundlog.operators import Inexact
from roundlog.operators.registry import Attributes, Tensors
from roundlog.rounding.resolve import certify, give_up, judge, pieces, put, resolved


class Recorder:
    """Certified rounding with a log (implements Rounding).

    Two machines' values both lie within d of the exact one, so what an auditor finds ambiguous (within d of a
    boundary) lies within 3d of it for the trainer: `guard` = 4 leaves room for d itself being computed in FP64.
    """

    def __init__(self, guard: int, bits: int = FULL_BITS) -> None:
        """bits: of the results."""
        self.guard = guard
        self.bits = bits
        self.entries: dict[int, Entries] = {}
        """The running step's log, by operator index; the caller takes it after every step with `take`."""

    def take(self) -> dict[int, Entries]:
        """The log of the step that has just run; starts the next one."""
        entries, self.entries = self.entries, {}
        return entries

    def write(self, writer: LogWriter, step: int) -> None:
        """Hand the log of the step that has just run to a file. Raises LogError."""
        writer.append(step, self.take())

    def round(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes
    ) -> tuple[torch.Tensor, bool]:
        rounded, marked = certify(operator, inputs, attributes, self.guard, self.bits)
        if not len(marked.indices):
            return rounded, True
        if give_up(operator, inputs, attributes, rounded, marked, self.bits):
            return rounded, False
        decisions, by_value, finite = [], [], True
        for some in pieces(marked):
            judged = judge(some, self.guard, self.bits)
            right = resolved(operator, inputs, attributes, some, judged.low, judged.doubtful, self.bits)
            put(rounded, some.indices, right)
            values, upper, two = (part.numpy() for part in (right, judged.upper, judged.two))
            decision = np.where(values == upper, np.uint8(Decision.UP), np.uint8(Decision.DOWN))
            decisions.append(np.where(two, decision, np.uint8(Decision.VALUE)))
            by_value.append(values[~two].view(np.uint32))
            finite &= bool(np.isfinite(values).all())
        self.entries[index] = Entries(
            indices=marked.indices.numpy(),
            decisions=np.concatenate(decisions),
            values=np.concatenate(by_value),
        )
        return rounded, finite
