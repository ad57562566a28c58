"""Descriptors: programs as the contract reads them, operator by operator, and their Merkle root (docs/protocol.md)."""

from roundlog.definitions import Family
from roundlog.descriptors import descriptor_rules  # noqa: F401  (registers rules)
from roundlog.descriptors.describe import describe, program_root, program_tree
from roundlog.descriptors.descriptor import (
    REDUCTIONS,
    Descriptor,
    DescriptorError,
    Input,
    Row,
    decode_descriptor,
    encode_descriptor,
)

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
