"""The reference: what the contract computes, in integers and fractions. It shares nothing with the kernels
(docs/protocol.md)."""

from roundlog.adjudication import binary32
from roundlog.adjudication.adjudicate import NoAnswer, Tree, function_value, is_finite, segments
from roundlog.adjudication.binary32 import wrap
from roundlog.adjudication.openings import OperandOpening, largest_proof, needed
from roundlog.adjudication.partial import ExactSum, IntegerSum, RunningResult

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
