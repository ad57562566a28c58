"""Algorithm 3 of OVT: the largest threshold that logs everything that two machines round differently."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roundlog.arithmetic import adjacent, round_to_bits
from roundlog.rounding.threshold.codes import place
from roundlog.rounding.threshold.thresholds import MIN_THRESHOLD

_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Divergence:
    """Divergence of one layer's outputs on two machines, over a sample. All in units of `place`."""

    elements: int = 0
    differing: int = 0
    """Elements that the two machines round to different numbers."""
    beyond: int = 0
    """Differing elements that are more than one number apart: no trit can mend them."""
    nearest: float = 0.5
    """Least distance of a differing element's value to the number that it is rounded to: a threshold has to stay below
    it."""
    widest: float = 0.0
    """The largest difference of two values."""

    @staticmethod
    def between(x1: torch.Tensor, x2: torch.Tensor, bits: int) -> Divergence:
        """x1, x2: f64, the same layer's output from the same input on two machines."""
        r1, r2 = round_to_bits(x1, bits), round_to_bits(x2, bits)
        differ = r1 != r2
        unit = torch.minimum(place(x1, bits), place(x2, bits))
        nearest = 0.5
        for x, r in ((x1, r1), (x2, r2)):
            if differ.any():
                distance = (x[differ] - r[differ].to(torch.float64)).abs() / place(x[differ], bits)
                nearest = min(nearest, float(distance.min()))
        low, high = torch.minimum(r1, r2)[differ], torch.maximum(r1, r2)[differ]
        return Divergence(
            elements=x1.numel(),
            differing=int(differ.sum()),
            beyond=int((~adjacent(low, high, bits)).sum()),
            nearest=nearest,
            widest=float(((x1 - x2).abs() / unit).max()) if x1.numel() else 0.0,
        )

    def __add__(self, other: Divergence) -> Divergence:
        return Divergence(
            self.elements + other.elements,
            self.differing + other.differing,
            self.beyond + other.beyond,
            min(self.nearest, other.nearest),
            max(self.widest, other.widest),
        )

    def search(self) -> float:
        """Threshold found by bisection between 0.25 and 0.5, as in Algorithm 3: a threshold succeeds if every differing
        element is logged, on either machine. 0.5 (nothing has to be logged) if nothing differed in the sample."""
        if not self.differing:
            return 0.5
        lower, upper = MIN_THRESHOLD, 0.5
        for _ in range(_ROUNDS):
            middle = (lower + upper) / 2
            if self.nearest > middle:
                lower = middle
            else:
                upper = middle
        return lower

    def threshold(self) -> float:
        """A threshold to train with: that of Algorithm 3, but no higher than the sample's largest difference allows an
        element that the sample did not have to differ by, twice over. A layer that never differed in the sample gets
        one in this way, too."""
        return min(max(MIN_THRESHOLD, min(self.search(), 0.5 - 2 * self.widest)), 0.5 - 2.0**-24)

    @property
    def safe(self) -> bool:
        """Whether some threshold serves all of the sample: differing elements are logged and one number apart, and no
        value that is logged can lie on the other side of its number."""
        return not self.beyond and self.nearest > MIN_THRESHOLD > self.widest
