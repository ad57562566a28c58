"""Descriptors: programs as the contract reads them, operator by operator, and their Merkle root (docs/protocol.md)."""

from roundlog.definitions import Family
from roundlog.descriptors import rules_elementwise, rules_movement, rules_reduction  # noqa: F401  (register rules)
from roundlog.descriptors.describe import describe
from roundlog.descriptors.descriptor import (
    REDUCTIONS,
    Descriptor,
    DescriptorError,
    Input,
    Row,
)
from roundlog.descriptors.encoding import decode_descriptor, encode_descriptor, program_root, program_tree

__all__ = [
    "REDUCTIONS",
    "Descriptor",
    "DescriptorError",
    "Family",
    "Input",
    "Row",
    "decode_descriptor",
    "describe",
    "encode_descriptor",
    "program_root",
    "program_tree",
]
