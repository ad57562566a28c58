"""Largest size of the proof of one element: a proof that does not fit a transaction cannot be shown to a contract."""

from __future__ import annotations

from roundlog.commitments import CHUNK_SIZE, depth_of
from roundlog.descriptors.describe import describe
from roundlog.descriptors.descriptor import REDUCTIONS, Descriptor, Family
from roundlog.descriptors.encoding import encode_descriptor
from roundlog.descriptors.segments import chunks_read, leaves
from roundlog.program import Program, Stored
from roundlog.spec import TrainingSpec

_WORD = 32
_OPENING_WORDS = 8
"""Bytes of an opening beside its data and its siblings: its numbers, and the lengths of its lists."""
_FIXED_BYTES = 2 * CHUNK_SIZE
"""The trainer's chunk, and the numbers around it."""


def largest_proof(program: Program, spec: TrainingSpec) -> tuple[int, int]:
    """(bytes, operator): an upper bound of the call data with which any element of any operator, or one segment of its
    terms, is proven, and the operator that takes so much."""
    return max((_proof(describe(program, q), spec), q) for q in range(len(program.nodes)))


def _proof(descriptor: Descriptor, spec: TrainingSpec) -> int:
    trace = depth_of(spec.operator_count) + depth_of(spec.state_count) + 1
    operands = len(descriptor.inputs) * (4 + trace) * _WORD
    return _FIXED_BYTES + len(encode_descriptor(descriptor)) + operands + _openings(descriptor, spec)


def _openings(descriptor: Descriptor, spec: TrainingSpec) -> int:
    d = descriptor
    if d.family == Family.DATA:
        _, fields, items, stride = d.parameters
        size = ((spec.data_rows - 1) * stride + items) * Stored(d.code).width(d.dtype)
        return _opening(CHUNK_SIZE, size // CHUNK_SIZE + 1) + _opening(_WORD, fields)
    if not d.inputs:
        schedule = spec.steps * (d.parameters[1] * 4 if d.family == Family.SCHEDULE else 0)
        chunks = max(d.nbytes, schedule) // CHUNK_SIZE + 1
        return _opening(CHUNK_SIZE, chunks) + _opening(_WORD, spec.state_count)
    terms = min(d.terms, d.segment) if d.family in REDUCTIONS else 1
    return sum(chunks_read(d, item, terms) * _opening(CHUNK_SIZE, leaves(item)) for item in d.inputs)


def _opening(data: int, count: int) -> int:
    """A leaf of that many bytes of a tree of `count` leaves."""
    return data + (_OPENING_WORDS + depth_of(count)) * _WORD
