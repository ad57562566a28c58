"""Rules that write ATen operators in the program's operator set: one rule an operator, by name."""

from roundlog.capture.rules import (
    factories,
    indexing,
    matrix_products,
    pointwise,
    reductions,
    shapes_and_views,
    windows,
)
from roundlog.capture.rules.rule_table import AT_CAPTURE, RULES, VIEWS, Context, Rule

__all__ = ["AT_CAPTURE", "RULES", "VIEWS", "Context", "Rule"]
