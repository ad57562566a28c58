"""The trainer's side of the `threshold` policy (OVT, Algorithm 1)."""

from __future__ import annotations

import torch

from roundlog.arithmetic import round_to_bits
from roundlog.log import LogWriter, Trits
from roundlog.operators import Inexact
from roundlog.operators.registry import Attributes, Tensors
from roundlog.rounding.resolve import fill_in
from roundlog.rounding.threshold.codes import log_codes
from roundlog.rounding.threshold.thresholds import Thresholds


class ThresholdRecorder:
    """Rounds what this machine computed, and logs a trit for every output (implements Rounding)."""

    def __init__(self, bits: int, thresholds: Thresholds | None = None) -> None:
        self.bits = bits
        self.thresholds = thresholds or Thresholds()
        self.trits: dict[int, Trits] = {}

    def take(self) -> dict[int, Trits]:
        """The log of the step that has just run; starts the next one."""
        trits, self.trits = self.trits, {}
        return trits

    def write(self, writer: LogWriter, step: int) -> None:
        """Hand the log of the step that has just run to a file. Raises LogError."""
        writer.append_trits(step, self.take())

    def start_again(self) -> None:
        self.trits = {}

    def round(self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        y = operator.approximate(inputs, attributes)
        rounded = round_to_bits(y, self.bits)
        if not rounded.isfinite().all():
            y = fill_in(operator, inputs, attributes, y, self.bits)
            rounded = round_to_bits(y, self.bits)
        if y.numel():
            codes = log_codes(y, rounded, self.thresholds.of(operator.name), self.bits)
            self.trits[index] = Trits.pack(codes.reshape(-1).cpu().numpy())
        return rounded
