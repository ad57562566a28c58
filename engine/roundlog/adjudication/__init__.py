"""The reference: what the contract computes, in integers and fractions. It shares nothing with the kernels
(docs/protocol.md)."""

from roundlog.adjudication import binary32, tensor_core_groups
from roundlog.adjudication.adjudicate import (
    Chunk,
    Chunks,
    NoAnswer,
    Tree,
    function_value,
    in_float32,
    is_finite,
    segments,
)
from roundlog.adjudication.binary32 import wrap
from roundlog.adjudication.openings import Material, OperandOpening, largest_proof, needed, running_results
from roundlog.adjudication.partial import CHAIN_LIMIT, ExactSum, GroupChain, IntegerSum, RunningResult, start
from roundlog.adjudication.tensor_core_groups import NoTensorCoreValueError, Refusal
