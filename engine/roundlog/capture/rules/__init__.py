"""How each ATen operator is written in the program's operator set: one rule an operator, by name."""

from roundlog.capture.rules import (  # noqa: F401  (each adds its rules)
    activation,
    composite,
    contraction,
    elementwise,
    indexing,
    making,
    movement,
    ordering,
    pooling,
    powers,
    randomness,
    reduction,
    resampling,
    scan,
    volume,
)
from roundlog.capture.rules.table import RULES, VIEWS, Context, Rule

__all__ = ["RULES", "VIEWS", "Context", "Rule"]
