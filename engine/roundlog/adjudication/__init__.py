"""The reference: what the contract computes, in integers and fractions. It shares nothing with the kernels
(docs/protocol.md)."""

from roundlog.adjudication import binary32
from roundlog.adjudication.adjudicate import NoAnswer, Tree, segments
from roundlog.adjudication.binary32 import is_finite
from roundlog.adjudication.exactly import function_value
from roundlog.adjudication.openings import OperandOpening, needed
from roundlog.adjudication.partial import ExactSum, IntegerSum, RunningResult
from roundlog.adjudication.scalars import wrap
from roundlog.adjudication.size import largest_proof

__all__ = [
    "ExactSum",
    "IntegerSum",
    "NoAnswer",
    "OperandOpening",
    "RunningResult",
    "Tree",
    "binary32",
    "function_value",
    "is_finite",
    "largest_proof",
    "needed",
    "segments",
    "wrap",
]
