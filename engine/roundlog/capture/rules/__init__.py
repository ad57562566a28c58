"""Rules that write ATen operators in the program's operator set: one rule an operator, by name."""

from roundlog.capture.rules import (  # noqa: F401  (each adds its rules)
    activation,
    factories,
    indexing,
    matrix_products,
    pointwise,
    pooling,
    powers,
    reductions,
    resampling,
    shapes_and_views,
)
from roundlog.capture.rules.rule_table import AT_CAPTURE, RULES, VIEWS, Context, Rule

__all__ = ["AT_CAPTURE", "RULES", "VIEWS", "Context", "Rule"]
