"""What the contract computes, and how both sides say it: descriptors of operators, what they read, and a reference in
integers and fractions that shares nothing with the kernels (docs/protocol.md)."""

from roundlog.adjudication import rules_elementwise, rules_movement, rules_reduction  # noqa: F401  (register rules)
from roundlog.adjudication.describe import describe
from roundlog.adjudication.descriptor import Descriptor, DescriptorError, Family, Function, Input, Row, Scalar
from roundlog.adjudication.encoding import decode_descriptor, encode_descriptor
from roundlog.adjudication.root import program_root, program_tree

__all__ = [
    "Descriptor",
    "DescriptorError",
    "Family",
    "Function",
    "Input",
    "Row",
    "Scalar",
    "decode_descriptor",
    "describe",
    "encode_descriptor",
    "program_root",
    "program_tree",
]
