"""A training step as plain data: a straight line of tensor operators."""

from roundlog.program.model import (
    AliveMemory,
    Attribute,
    DType,
    FieldType,
    Node,
    Program,
    ProgramError,
    Stored,
    TensorType,
    as_array,
    first_store,
)
from roundlog.program.program_text import from_json, to_json
