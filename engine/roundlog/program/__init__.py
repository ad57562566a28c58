"""A training step as plain data: a straight line of tensor operators (design, section 1)."""

from roundlog.program.model import (
    Attribute,
    DType,
    Node,
    Program,
    ProgramError,
    TensorType,
)
from roundlog.program.text import from_json, to_json

__all__ = ["Attribute", "DType", "Node", "Program", "ProgramError", "TensorType", "from_json", "to_json"]
