"""Running results of reductions: canonical, wide enough, and refused when nothing could have reached them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.adjudicate import Chunk, run_segment, segments
from roundlog.adjudication.partial import CHAIN_LIMIT, CHAIN_UNIT, PARTIAL_BYTES, ExactSum, GroupChain, start
from roundlog.adjudication.tensor_core_groups import chain as of_tensor_cores
from roundlog.adjudication.tensor_core_groups import element as of_segments
from roundlog.commitments import CHUNK_SIZE
from roundlog.definitions import Extreme
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.descriptors import Descriptor, DescriptorError, Family, Input, Row
from roundlog.descriptors.descriptor import check_descriptor
from roundlog.number_format import FLOAT32, narrow_float32
from roundlog.program import DType

finite = st.integers(0, 2**32 - 1).filter(ieee.is_finite)


def reduction(family: Family, code: int = 0, dtype: DType = DType.F32) -> Descriptor:
    item = Input(0, dtype, (9,), (Row(0, (1,)),))
    kind = DType.I64 if family == Family.ARGMAX else dtype
    return Descriptor(family=family, code=code, dtype=kind, segment=1, iteration=(), reduction=(9,), inputs=(item,))


def test_2_to_the_40_of_the_largest_products_fit() -> None:
    largest = ieee.scaled(ieee.LARGEST) ** 2 << 40
    for total in (largest, -largest):
        assert int.from_bytes(ExactSum(total).encode(), "big", signed=True) == total


@given(st.lists(st.tuples(finite, finite), max_size=12), st.randoms())
def test_an_exact_sum_is_the_mathematical_one_in_any_order(terms: list[tuple[int, int]], rng: object) -> None:
    partial = start(reduction(Family.SUM))
    for term in terms:
        partial = partial.absorb(term, 0)
    exact = sum((ieee.value(a) * ieee.value(b) for a, b in terms), Fraction(0))
    assert partial.finish(FLOAT32) == ieee.rounded(exact)
    backwards = start(reduction(Family.SUM))
    for term in sorted(terms):
        backwards = backwards.absorb(term, 0)
    assert backwards.encode() == partial.encode()


PLUS, MINUS, ONE = ieee.INFINITY, ieee.INFINITY | ieee.SIGN, 0x3F800000


@pytest.mark.parametrize(
    ("terms", "comes_to"),
    [
        ([(PLUS,), (ONE,), (PLUS,)], PLUS),
        ([(ONE,), (MINUS,)], MINUS),
        ([(MINUS, ONE), (PLUS, ONE)], ieee.NAN),
        ([(MINUS, ONE | ieee.SIGN), (PLUS, ONE)], PLUS),
        ([(PLUS, 0)], ieee.NAN),
        ([(0, MINUS)], ieee.NAN),
        ([(ieee.NAN,), (PLUS,), (ONE,)], ieee.NAN),
        ([(0xFF800001, ONE)], ieee.NAN),
    ],
)
def test_a_sum_with_terms_that_are_not_finite_is_what_ieee_754_says(
    terms: list[tuple[int, ...]], comes_to: int
) -> None:
    for order in (terms, terms[::-1]):
        partial = start(reduction(Family.SUM))
        for term in order:
            partial = partial.absorb(term, 0)
        assert partial.finish(FLOAT32) == partial.finish(narrow_float32(23)) == comes_to
        assert partial.encode() == comes_to.to_bytes(4, "big") + bytes(PARTIAL_BYTES - 4)


@pytest.mark.parametrize("code", [Extreme.MAX, Extreme.MIN])
def test_nan_is_the_largest_and_the_smallest_number_and_the_first_one_stays(code: Extreme) -> None:
    for family in (Family.EXTREME, Family.ARGMAX):
        partial = start(reduction(family, code if family == Family.EXTREME else 0))
        for label, bits in enumerate((ONE, PLUS, 0xFFC00123, MINUS, ieee.NAN)):
            partial = partial.absorb((bits,), label)
        assert partial.finish(FLOAT32) == (ieee.NAN if family == Family.EXTREME else 2)
        assert partial.encode() == words(1, ieee.NAN, 2)


def words(*numbers: int) -> bytes:
    return b"".join((number % (1 << 256)).to_bytes(32, "big") for number in numbers)


def chain(code: int = 0, dtype: DType = DType.BF16, terms: int = 5000, segment: int = 16) -> Descriptor:
    item = Input(0, dtype, (terms,), (Row(0, (1,)),))
    return Descriptor(
        family=Family.CHAIN,
        code=code,
        dtype=dtype,
        segment=segment,
        iteration=(),
        reduction=(terms,),
        inputs=(item,) * 2,
    )


@pytest.mark.slow_but("0")
@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_chain_of_groups_may_be_cut_anywhere_between_them(code: int) -> None:
    """Segment by segment, to the reference's element: over the ends of 2,048 terms."""
    rng, terms = Random(code), 4100
    dtype = DType.F16 if code == 2 else DType.BF16
    arithmetic, format = list(ARITHMETICS.values())[code], dtype.number_format()
    assert format is not None
    a, b = ([format.nearest(Fraction(round(256 * rng.gauss(0, 1)), 256)) for _ in range(terms)] for _ in range(2))
    wide = [[format.in_float32(x) for x in side] for side in (a, b)]
    expected = of_segments(arithmetic, dtype, wide[0], wide[1], FLOAT32)
    for segment in (64, 2048):
        descriptor = replace(
            chain(code, dtype, terms, segment),
            inputs=tuple(Input(value, dtype, (terms,), (Row(0, (1,)),)) for value in range(2)),
        )
        check_descriptor(descriptor)
        partial = start(descriptor)
        for places in segments(descriptor):
            partial = run_segment(descriptor, 0, partial, places, Operands(a, b))
        assert partial.finish(FLOAT32) == expected
        total = int.from_bytes(partial.encode()[32:], "big", signed=True)
        assert total == sum(
            ieee.scaled(of_tensor_cores(arithmetic, dtype, wide[0][first:][:2048], wide[1][first:][:2048]))
            for first in (0, 2048)
        )


def extended(sum: int, total: int, terms: int, segment: int) -> bytes:
    """What a running result comes to by the last segment of a chain of ones, hopper's."""
    descriptor = replace(
        chain(0, DType.BF16, terms, segment),
        inputs=tuple(Input(value, DType.BF16, (terms,), (Row(0, (1,)),)) for value in range(2)),
    )
    ones = Operands([0x3F80] * terms, [0x3F80] * terms)
    first = start(descriptor)
    assert isinstance(first, GroupChain)
    partial = replace(first, sum=sum, total=total)
    return run_segment(descriptor, 0, partial, segments(descriptor)[-1], ones).encode()


def test_no_terms_end_no_chain() -> None:
    assert extended(5, ONE, 0, 16) == words(ONE, 0, 5)


def test_a_sum_of_chains_that_nothing_reaches_is_not_made() -> None:
    """As the contract: what comes out can be gone on from."""
    step = 16 << -CHAIN_UNIT
    assert extended(CHAIN_LIMIT - 1 - step, 0, 2048, 16) == words(0, (1 << 50) - 1, -1)
    with pytest.raises(DescriptorError, match="none that CHAIN can reach"):
        extended(CHAIN_LIMIT - step, 0, 2048, 16)


class Operands:
    """Opened chunks of two operands of 16 bits."""

    def __init__(self, *operands: list[int]) -> None:
        self._data = [b"".join(x.to_bytes(2, "little") for x in operand) for operand in operands]

    def payload(self, chunk: Chunk) -> bytes:
        return self._data[chunk.tensor][chunk.index * CHUNK_SIZE :][:CHUNK_SIZE]


@pytest.mark.parametrize("segment", [1, 8, 17, 24, 3072, 4096])
def test_segments_of_a_chain_are_powers_of_two_from_a_group_to_a_chain(segment: int) -> None:
    with pytest.raises(DescriptorError, match="expected a power of two from 16 to 2048"):
        check_descriptor(chain(segment=segment))
