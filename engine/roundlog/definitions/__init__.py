"""Definitions of the operators, one for each, which every other room may read."""

from roundlog.definitions.definition import (
    Copy,
    Extreme,
    Family,
    OperatorDefinition,
    OperatorKind,
    Reads,
    Signature,
)
from roundlog.definitions.operator_table import (
    DEFINITIONS,
    code_name,
    code_names,
    of_family,
    opcodes,
    signatures,
)

__all__ = [
    "DEFINITIONS",
    "Copy",
    "Extreme",
    "Family",
    "OperatorDefinition",
    "OperatorKind",
    "Reads",
    "Signature",
    "code_name",
    "code_names",
    "of_family",
    "opcodes",
    "signatures",
]
