"""Rules that write ATen operators in the program's operator set: one rule an operator, by name."""

from roundlog.capture.rules import (  # noqa: F401  (each adds its rules)
    activation,
    approximations,
    average_pooling,
    bits,
    composite,
    contraction,
    distances,
    division,
    elementwise,
    indexing,
    making,
    movement,
    numbers,
    ordering,
    pooling,
    powers,
    randomness,
    reduction,
    resampling,
    sampling,
    scan,
    volume,
)
from roundlog.capture.rules.table import AT_CAPTURE, RULES, VIEWS, Context, Rule

__all__ = ["AT_CAPTURE", "RULES", "VIEWS", "Context", "Rule"]
