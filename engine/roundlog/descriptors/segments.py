"""Segments of a long reduction: the number of terms that one opening covers."""

from __future__ import annotations

from math import prod

from roundlog.commitments import CHUNK_SIZE, depth_of
from roundlog.definitions import Family
from roundlog.descriptors.check import MAX_SEGMENT
from roundlog.descriptors.descriptor import Descriptor, Input
from roundlog.program import DType

GAS_BUDGET = 650_000
"""Gas of a segment. With more, a dispute costs more for its last proof than it saves in the search for the segment
(scripts/bench_dispute.py)."""
GAS_PER_BYTE = 40
"""EIP-7623: the least that a byte of calldata costs, if it is not zero."""
GAS_PER_BYTE_BESIDE_WORK = 16
"""EIP-2028: what it costs where execution dominates."""
GAS_PER_HASH = 1_000
# Gas that the contract takes for a term, measured from above: tests/client/adjudication/test_gas_on_chain.py.
GAS_PER_TERM = 1_000
GAS_PER_READ = 1_000
# More for an F16 element, whose FP32 pattern is computed: 330 for a subnormal one, which takes the most.
GAS_PER_F16_READ = 350
GAS_PER_COORDINATE = 250
GAS_PER_COMPARISON = 1_100


def terms_per_segment(descriptor: Descriptor) -> int:
    """The largest power of two of terms, at most 4096, such that any run of as many terms, whatever the output
    element, is opened and computed within GAS_BUDGET; at least 1."""
    segment = 1
    while segment < min(descriptor.terms, MAX_SEGMENT) and gas(descriptor, 2 * segment) <= GAS_BUDGET:
        segment *= 2
    return segment


def gas(descriptor: Descriptor, terms: int) -> int:
    """An upper estimate of the gas to open and compute any `terms` consecutive terms."""
    sent = hashed = 0
    for item in descriptor.inputs:
        chunks, depth = chunks_read(descriptor, item, terms), depth_of(leaves(item))
        sent += chunks * (CHUNK_SIZE + 32 * depth)
        hashed += chunks * (depth + 4)
    work = sent * GAS_PER_BYTE_BESIDE_WORK + hashed * GAS_PER_HASH + terms * gas_per_term(descriptor)
    return max(sent * GAS_PER_BYTE, work)


def gas_per_term(descriptor: Descriptor) -> int:
    """Gas of a term but for its chunks: to go on to it, to read its operands and to add it."""
    reads = sum(GAS_PER_READ + GAS_PER_COORDINATE * len(item.view) for item in descriptor.inputs)
    reads += GAS_PER_F16_READ * sum(item.dtype == DType.F16 for item in descriptor.inputs)
    compared = descriptor.family in (Family.EXTREME, Family.ARGMAX)
    return GAS_PER_TERM + reads + compared * GAS_PER_COMPARISON


def leaves(item: Input) -> int:
    """Leaves under the tensor root of an input: its size in chunks, at least one."""
    return max(1, -(-item.nbytes // CHUNK_SIZE))


def chunks_read(descriptor: Descriptor, item: Input, terms: int) -> int:
    """An upper bound of the chunks of one input that any `terms` consecutive terms of an element read."""
    first = len(descriptor.iteration)
    # Bytes from one index of a reduction axis to the next; a divided coordinate moves by the quotient, rounded up.
    strides = [0] * len(descriptor.reduction)
    weight = item.dtype.itemsize
    for size, row in zip(reversed(item.view), reversed(item.rows), strict=True):
        for axis in range(len(strides)):
            strides[axis] += -(-abs(row.coefficients[first + axis]) // row.divisor) * weight
        weight *= size
    return min(_run(descriptor.reduction, tuple(strides), terms), leaves(item))


def _run(sizes: tuple[int, ...], strides: tuple[int, ...], terms: int) -> int:
    """Chunks that a run of consecutive indices of a box can touch."""
    if not sizes:
        return 1
    inner = prod(sizes[1:])
    if not inner:
        return 0
    steps = min(sizes[0], -(-(terms - 1) // inner) + 1)
    blocks = steps * _run(sizes[1:], strides[1:], min(terms, inner))
    return min(terms, blocks, _span(sizes, strides, terms) // CHUNK_SIZE + 2)


def _span(sizes: tuple[int, ...], strides: tuple[int, ...], terms: int) -> int:
    """Bytes from the first to the last read of such a run, at most. An index goes back from its end to 0 where one of
    an axis before it moves, so that two terms may lie its whole axis apart."""
    span = 0
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        steps = -(-(terms - 1) // prod(sizes[axis + 1 :]))
        goes_back = terms > 1 and prod(sizes[:axis]) > 1
        span += (size - 1 if goes_back else min(size - 1, steps)) * stride
    return span
