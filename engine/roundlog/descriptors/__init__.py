"""Descriptors: programs as the contract reads them, operator by operator, and their Merkle root (docs/protocol.md)."""

from roundlog.definitions import Family
from roundlog.descriptors import descriptor_rules
from roundlog.descriptors.describe import describe, program_root, program_tree
from roundlog.descriptors.descriptor import (
    REDUCTIONS,
    Descriptor,
    DescriptorError,
    Input,
    Row,
    encode_descriptor,
)
