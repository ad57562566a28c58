"""The trainer's thresholds: how near to a rounding boundary a value has to be to be logged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from roundlog.json_text import parse_json
from roundlog.operators import REGISTRY, Inexact

MIN_THRESHOLD = 0.25
"""Lowest threshold that OVT's Algorithm 3 tries, as a part of the distance between neighbouring numbers. Below a
divergence between two machines a trit could tell on which side of a *number* a value lies, and be taken for a side of a
boundary."""

MAX_THRESHOLDS_BYTES = 1 << 16


class ThresholdError(ValueError):
    """Thresholds that no log can be written with; one sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """tau of OVT, as a part of the distance 2^(9 - b_r) * 2^e of neighbouring numbers: a value is logged if it lies
    farther than this from the number that it was rounded to, so 0.5 would log nothing.

    default: of all operators that `operators` does not name. operators: by name of the operator ("matmul", ...), what
    OVT calls layer-wise. All in [0.25, 0.5). Raises ThresholdError.
    """

    default: float = MIN_THRESHOLD
    operators: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, threshold in {"default": self.default, **self.operators}.items():
            number = isinstance(threshold, float | int) and not isinstance(threshold, bool)
            if not number or not MIN_THRESHOLD <= threshold < 0.5:
                raise ThresholdError(f"the threshold {threshold!r} of {name} is outside 0.25 .. 0.5 (0.5 excluded)")
        for name in self.operators:
            if not isinstance(REGISTRY.get(name), Inexact):
                raise ThresholdError(f"{name!r} is not an inexact operator, so it has no threshold")

    def of(self, operator: str) -> float:
        """The threshold of an operator, by name."""
        return self.operators.get(operator, self.default)

    def to_json(self) -> str:
        """{"default": number, "operators": {name: number}}."""
        return json.dumps({"default": self.default, "operators": dict(self.operators)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Thresholds:
        """Raises ThresholdError for anything but what `to_json` writes."""
        if len(text) > MAX_THRESHOLDS_BYTES:
            raise ThresholdError(
                f"thresholds of {len(text)} bytes are longer than the {MAX_THRESHOLDS_BYTES} that are read"
            )
        try:
            plain = parse_json(text)
        except ValueError as error:
            raise ThresholdError(f"the text of thresholds {error}") from error
        if not isinstance(plain, dict) or set(plain) - {"default", "operators"}:
            raise ThresholdError('thresholds are an object with the keys "default" and "operators"')
        operators = plain.get("operators", {})
        if not isinstance(operators, dict):
            raise ThresholdError('"operators" has to be an object: operator names and thresholds')
        return cls(default=plain.get("default", MIN_THRESHOLD), operators=operators)
