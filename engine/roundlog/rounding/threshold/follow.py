"""The auditor's side of the `threshold` policy (OVT, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from roundlog.arithmetic import round_interval, round_to_bits
from roundlog.log import LogReader, Trits
from roundlog.operators import Inexact
from roundlog.operators.registry import Attributes, Tensors
from roundlog.rounding.finding import MAX_FINDINGS, LogFinding, LogFindingKind
from roundlog.rounding.resolve import fill_in
from roundlog.rounding.threshold.codes import place, reverse
from roundlog.rounding.threshold.thresholds import MIN_THRESHOLD


class ThresholdFollower:
    """Rounds what this machine computed, and reverses what the trainer rounded the other way (implements Rounding).

    OVT believes every trit, so that its trainer could move any output by one place. Here a reversal has to be possible:
    two machines are within 2 d of each other, d the operator's error bound. One that no honest trainer can have written
    is reported and not followed. What lies within the bound of a boundary is the trainer's to choose, by design.

    After MAX_FINDINGS wrong trits the log is given up: what this machine computes is then all there is.
    """

    def __init__(self, guard: int, bits: int) -> None:
        self.guard = guard
        self.bits = bits
        self.findings: list[LogFinding] = []
        self.corrections: dict[int, int] = {}
        """Outputs of the running step that were reversed, by operator index."""
        self._step = 0
        self._log: Mapping[int, Trits] | None = None
        self._before = 0
        """Findings before the running step."""

    def follow(self, step: int, log: Mapping[int, Trits] | None) -> None:
        """The log of the step that runs next; None: there is none, and nothing is reversed."""
        self._step, self._log = step, log
        self.corrections = {}
        self._before = len(self.findings)

    def start_again(self) -> None:
        del self.findings[self._before :]
        self.corrections = {}

    def read(self, reader: LogReader, step: int) -> None:
        """`follow` what a log file says of the step that runs next. Raises LogError."""
        self.follow(step, reader.trits(step))

    @property
    def given_up(self) -> bool:
        """Whether so much of the log was wrong that it is not followed any more."""
        return len(self.findings) >= MAX_FINDINGS

    def round(self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        y = operator.approximate(inputs, attributes)
        rounded = round_to_bits(y, self.bits)
        if not rounded.isfinite().all():
            y = fill_in(operator, inputs, attributes, y, self.bits)
            rounded = round_to_bits(y, self.bits)
        if self._log is None or self.given_up or not y.numel():
            return rounded
        codes = torch.from_numpy(self._log[index].codes()).to(y.device).reshape(y.shape)
        followed = reverse(y, rounded, codes, self.bits)
        # NaN differs from itself, and nothing moves it.
        moved = ((followed != rounded) & ~rounded.isnan()).reshape(-1).nonzero().squeeze(1)
        if not len(moved):
            return rounded
        impossible = moved[~self._possible(operator, inputs, attributes, y, followed, moved)]
        for element in impossible[: MAX_FINDINGS - len(self.findings)].tolist():
            message = "the logged side of the boundary is out of reach of this machine's value"
            self.findings.append(LogFinding(self._step, index, element, LogFindingKind.FORGED, message))
        followed.view(-1)[impossible] = rounded.view(-1)[impossible]
        self.corrections[index] = len(moved) - len(impossible)
        return followed

    def _possible(
        self,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        y: torch.Tensor,
        followed: torch.Tensor,
        moved: torch.Tensor,
    ) -> torch.Tensor:
        """Whether an honest trainer's value can have been rounded to the number that its trit leads to."""
        chosen, target = y.reshape(-1)[moved], followed.reshape(-1)[moved]
        d = operator.bound(inputs, attributes, y).at(moved, chosen)
        low, high = round_interval(chosen, d, self.guard, self.bits)
        # Where machines differ by more than the least threshold, OVT itself may take a side of a number for a side of a
        # boundary: wrong, but not the trainer's fault.
        confused = self.guard * d >= MIN_THRESHOLD * place(chosen, self.bits)
        return ((low <= target) & (target <= high)) | confused
