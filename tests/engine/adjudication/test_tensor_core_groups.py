"""The reference of tensor cores' sums: cases by hand, what cannot matter, and that no value depends on unknowns."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.tensor_core_groups import NoTensorCoreValueError, Refusal, chain, element, group
from roundlog.definitions.tensor_core import ARITHMETICS, OPERAND_FORMATS, TensorCoreArithmetic
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32

HOPPER, AMPERE, VOLTA = ARITHMETICS["hopper"], ARITHMETICS["ampere"], ARITHMETICS["volta"]
SETS = [(one, format) for one in ARITHMETICS.values() for format in one.terms]
INFINITY, NAN, MINUS = ieee.INFINITY, ieee.NAN, ieee.SIGN


def bits(number: float) -> int:
    return int.from_bytes(struct.pack(">f", number), "big")


ONE, TWO = bits(1.0), bits(2.0)


@st.composite
def groups(draw: st.DrawFn) -> tuple[TensorCoreArithmetic, str, int, list[int], list[int]]:
    """A group of any arithmetic: exponents near one place or anywhere, with zeros, subnormal numbers, cancellation."""
    arithmetic, name = draw(st.sampled_from(SETS))
    format = OPERAND_FORMATS[name]
    centre = draw(st.integers(format.least_exponent, format.largest_exponent))
    spread = draw(st.sampled_from([2, 12, 40]))

    def operand() -> st.SearchStrategy[int]:
        exponents = st.integers(
            max(centre - spread, format.least_exponent - format.fraction_bits),
            min(centre + spread, format.largest_exponent),
        )
        fractions = st.integers(0, (1 << format.fraction_bits) - 1)
        numbers = st.builds(
            lambda sign, e, f: sign | format.in_float32(format.nearest(Fraction(2) ** e * (f + (1 << 10))) or 0),
            st.sampled_from([0, MINUS]),
            exponents.map(lambda e: e - 10),
            fractions,
        )
        return st.one_of(numbers, numbers, st.sampled_from([0, MINUS, format.in_float32(1)])).filter(ieee.is_finite)

    count = draw(st.integers(1, arithmetic.terms_of(name)))
    a = draw(st.lists(operand(), min_size=count, max_size=count))
    b = draw(st.lists(operand(), min_size=count, max_size=count))
    if count > 1 and draw(st.booleans()):
        a[1], b[1] = a[0] ^ MINUS, b[0]
    c = draw(st.one_of(st.just(0), operand(), st.integers(0, 2**32 - 1).filter(ieee.is_finite)))
    return arithmetic, name, c, a, b


def of(one: tuple[TensorCoreArithmetic, str, int, list[int], list[int]]) -> int | Refusal:
    try:
        return group(*one)
    except NoTensorCoreValueError as refused:
        return refused.refusal


Exponent = Callable[[int, int], int | None]


def field(x: int, least: int) -> int | None:
    """Exponent as it is encoded; a zero and subnormal numbers have the least."""
    return max((x >> 23 & 0xFF) - 127, least)


def field_but_zero(x: int, least: int) -> int | None:
    """No exponent for a zero."""
    return field(x, least) if x & ~MINUS else None


def normalised(x: int, least: int) -> int | None:
    """The exponent that a subnormal number would have if it were normal; none for a zero."""
    magnitude = abs(ieee.scaled(x))
    return magnitude.bit_length() - 150 if magnitude else None


def possible(
    one: tuple[TensorCoreArithmetic, str, int, list[int], list[int]], exponent: Exponent, floor: int, flushed: bool
) -> int:
    """What a device could do whose exponents, least alignment and subnormal operands are one of the unknown ones."""
    arithmetic, name, c, a, b = one
    format = OPERAND_FORMATS[name]
    terms = [(ieee.value(c), exponent(c, -126))]
    for x, y in zip(a, b, strict=True):
        small = any(abs(ieee.value(z)) < Fraction(2) ** format.least_exponent for z in (x, y))
        lost = small and flushed and name not in arithmetic.subnormals
        left, right = exponent(x, format.least_exponent), exponent(y, format.least_exponent)
        number = Fraction(0) if lost else ieee.value(x) * ieee.value(y)
        terms.append((number, None if left is None or right is None else left + right))
    largest = max([e for _, e in terms if e is not None] + [floor])
    place = Fraction(2) ** (largest - arithmetic.fraction_bits)
    total = sum((int(number / place) for number, _ in terms), 0)
    magnitude = abs(total) * place
    nearest = ieee.nearest(magnitude) if total else 0
    if total and ieee.value(nearest) > magnitude:
        nearest -= 1
    return nearest | (MINUS if total < 0 else 0)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(groups())
def test_no_value_depends_on_what_is_unknown(
    one: tuple[TensorCoreArithmetic, str, int, list[int], list[int]],
) -> None:
    found = of(one)
    if isinstance(found, Refusal):
        return
    for exponent, floor, flushed in product((field, field_but_zero, normalised), (-126, -133, -400), (False, True)):
        assert possible(one, exponent, floor, flushed) == found


def test_an_unknown_alignment_would_show() -> None:
    """Both devices are possible, they differ, and the group has no value."""
    one = (HOPPER, "f16", bits(2.0**-20 * (1 + 2.0**-23)), [0], [bits(1.0)])
    assert possible(one, field, -126, False) != possible(one, field_but_zero, -126, False)
    assert of(one) == Refusal.UNKNOWN_ALIGNMENT


@settings(max_examples=40)
@given(groups(), st.randoms(use_true_random=False))
def test_the_order_in_a_group_and_zeros_do_not_matter(
    one: tuple[TensorCoreArithmetic, str, int, list[int], list[int]], random: object
) -> None:
    arithmetic, name, c, a, b = one
    pairs = list(zip(a, b, strict=True))
    random.shuffle(pairs)  # type: ignore[attr-defined]
    assert of((arithmetic, name, c, [x for x, _ in pairs], [y for _, y in pairs])) == of(one)
    rest = [0] * (arithmetic.terms_of(name) - len(a))
    found = of((arithmetic, name, c, a + rest, b + rest))
    assert found == of(one)
    if not isinstance(found, Refusal):
        again = of((arithmetic, name, found, [0] * len(a), [MINUS] * len(a)))
        assert again == found, "a group of zeros on top changes nothing"


@settings(max_examples=40)
@given(groups())
def test_signs_are_symmetric(one: tuple[TensorCoreArithmetic, str, int, list[int], list[int]]) -> None:
    arithmetic, name, c, a, b = one
    mirrored, found = of((arithmetic, name, c ^ MINUS, [x ^ MINUS for x in a], b)), of(one)
    assert mirrored == (found ^ MINUS if isinstance(found, int) and found else found)


def test_groups_by_hand() -> None:
    """The examples of docs/arithmetic.md."""
    a = [TWO, bits(-(2.0**-22) * (1 + 2.0**-7)), bits(2.0**-24)]
    b = [bits(1.5), ONE, ONE]
    # On c = 1 + 2^-23, in units of 2^-24: 2^24 + 2, 3 * 2^24, -4 (of -4.03125) and 1 are 2^26 - 1, cut to 24 bits.
    assert group(HOPPER, "bf16", bits(1 + 2.0**-23), a, b) == bits(4 - 2.0**-22)
    # In units of 2^-23: 2^23 + 1, 3 * 2^23, -2 and 0 (of 0.5) are 2^25 - 1.
    assert group(AMPERE, "bf16", bits(1 + 2.0**-23), a, b) == bits(4 - 2.0**-22)
    # On c = -3 + 2^-22: -3 * 2^24 + 4, 3 * 2^24, -4 and 1; -3 * 2^23 + 2, 3 * 2^23, -2 and 0.
    assert group(HOPPER, "bf16", bits(-3 + 2.0**-22), a, b) == bits(2.0**-24)
    assert group(AMPERE, "bf16", bits(-3 + 2.0**-22), a, b) == 0


def test_a_product_is_aligned_by_its_operands_exponents() -> None:
    """1.75 * 1.75 is 3.0625: its exponent is 0, so that with F = 25 a bit of 2^-25 counts, and one of 2^-26 does
    not."""
    x = bits(1.75)
    a, b = [x, x ^ MINUS], [x, x]
    assert group(HOPPER, "bf16", bits(2.0**-25), a, b) == bits(2.0**-25)
    assert group(HOPPER, "bf16", bits(2.0**-26), a, b) == 0
    assert group(AMPERE, "bf16", bits(2.0**-25), a, b) == 0
    assert group(VOLTA, "f16", bits(2.0**-23), a, b) == bits(2.0**-23)
    assert group(VOLTA, "f16", bits(2.0**-24), a, b) == 0


@pytest.mark.parametrize(("arithmetic", "format"), SETS, ids=lambda one: getattr(one, "name", one))
def test_reasons_for_no_value(arithmetic: TensorCoreArithmetic, format: str) -> None:
    def refusal(c: int, *pairs: tuple[int, int]) -> int | Refusal:
        return of((arithmetic, format, c, [x for x, _ in pairs], [y for _, y in pairs]))

    for special in (INFINITY, INFINITY | MINUS, NAN):
        assert refusal(special, (ONE, ONE)) == Refusal.NOT_FINITE
        assert refusal(0, (0, special)) == Refusal.NOT_FINITE
    assert refusal(bits(2.0**122)) == Refusal.TOO_LARGE
    assert refusal(bits(1.5 * 2.0**121)) == bits(1.5 * 2.0**121)
    assert refusal(1) == (Refusal.UNKNOWN_ALIGNMENT if format == "f16" else Refusal.SUBNORMAL)
    if format == "f16":
        small = bits(2.0**-16)
        assert refusal(0, (small, ONE)) == (Refusal.SUBNORMAL if arithmetic == VOLTA else small)
        assert refusal(bits(2.0**-126)) == Refusal.UNKNOWN_ALIGNMENT
        assert refusal(bits(2.0**-40 * (1 + 2.0**-23)), (ONE, 0)) == Refusal.UNKNOWN_ALIGNMENT
        assert refusal(bits(2.0**-14 * (1 + 2.0**-23)), (ONE, 0)) == bits(2.0**-14 * (1 + 2.0**-23))
    else:
        assert refusal(bits(2.0**-126)) == bits(2.0**-126)
        assert refusal(0, (bits(2.0**-64), bits(2.0**-64))) == Refusal.TOO_SMALL
        assert refusal(0, (bits(2.0**64), bits(2.0**58))) == Refusal.TOO_LARGE
        assert refusal(0, (bits(2.0**-128), bits(2.0**20))) == Refusal.SUBNORMAL
        assert refusal(ONE, (bits(2.0**-128), bits(2.0**20))) == ONE, "truncated to nothing, so that it cannot matter"
        assert refusal(bits(2.0**-100), (bits(2.0**-80), bits(2.0**-60))) == bits(2.0**-100)


def test_what_is_no_group_is_an_error() -> None:
    with pytest.raises(ValueError, match="no group of 16 products"):
        group(HOPPER, "bf16", 0, [ONE] * 17, [ONE] * 17)
    with pytest.raises(ValueError, match="no group"):
        group(HOPPER, "bf16", 0, [ONE], [])
    with pytest.raises(ValueError, match="0x3f800001 is no number"):
        group(HOPPER, "bf16", 0, [ONE + 1], [ONE])
    with pytest.raises(ValueError, match="is no number"):
        group(HOPPER, "f16", 0, [bits(65536.0)], [ONE])
    with pytest.raises(ValueError, match="is no number"):
        group(HOPPER, "f16", 0, [bits(2.0**-25)], [ONE])
    with pytest.raises(ValueError, match="is no number"):
        group(HOPPER, "bf16", 1 << 32, [ONE], [ONE])
    with pytest.raises(ValueError, match="volta is not defined for bf16: choose f16"):
        group(VOLTA, "bf16", 0, [ONE], [ONE])
    with pytest.raises(ValueError, match="no segment of 2048 products"):
        chain(HOPPER, "bf16", [ONE] * 2049, [ONE] * 2049)
    with pytest.raises(ValueError, match="make no products"):
        element(HOPPER, "bf16", [ONE], [], FLOAT32)


def serial(arithmetic: TensorCoreArithmetic, format: str, a: Sequence[int], b: Sequence[int]) -> int:
    c, step = 0, arithmetic.terms[format]
    while a:
        c = group(arithmetic, format, c, a[:step], b[:step])
        a, b = a[step:], b[step:]
    return c


def test_groups_follow_one_another_and_the_sum_begins_anew_at_each_segment() -> None:
    """2^24 and then ones: a chain that cannot hold them, and a second segment that can."""
    one, large = ONE, bits(2.0**24)
    a = [large, *[one] * 2047, *[one] * 5]
    b = [one] * len(a)
    # In the first group 15 ones are seen against 2^24 (F = 25), and every later one adds 16; all are even.
    assert chain(HOPPER, "bf16", a[:2048], b[:2048]) == serial(HOPPER, "bf16", a[:2048], b[:2048])
    assert ieee.value(chain(HOPPER, "bf16", a[:2048], b[:2048])) == 2**24 + 14 + 127 * 16
    assert ieee.value(element(HOPPER, "bf16", a, b, FLOAT32)) == 2**24 + 14 + 127 * 16 + 6  # of 5, a tie
    assert element(HOPPER, "bf16", a, b, BFLOAT16) == large
    assert element(HOPPER, "bf16", a, b, FLOAT16) == INFINITY
    assert element(HOPPER, "bf16", [], [], FLOAT32) == 0
