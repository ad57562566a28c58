"""How each ATen operator is written in the program's operator set: one rule an operator, by name."""

from roundlog.capture.rules import composite, contraction, elementwise, movement, pooling, reduction  # noqa: F401
from roundlog.capture.rules.table import RULES, VIEWS, Context, Rule

__all__ = ["RULES", "VIEWS", "Context", "Rule"]
