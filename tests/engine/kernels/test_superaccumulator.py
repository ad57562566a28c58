"""Superaccumulators against rational numbers: sums, roundings, what is not finite, and how long hostile data take."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import exact_sums
from roundlog.kernels import exact_products
from roundlog.kernels import superaccumulator as exact
from roundlog.kernels.exact_products import Runs
from roundlog.number_format import FLOAT32, Format, narrow_float32
from roundlog.operators import operator
from roundlog.operators.contraction import Contraction
from roundlog.rounding import Recorder

F32 = npt.NDArray[np.float32]
LARGEST = np.finfo(np.float32).max


def expected(terms: list[Fraction], format: Format = FLOAT32) -> int:
    """The bits of the correctly rounded sum."""
    return ieee.rounded(sum(terms, Fraction(0)), format)


def any_numbers(rng: np.random.Generator, shape: tuple[int, ...]) -> F32:
    """Finite FP32 numbers, every exponent equally likely."""
    words = rng.integers(0, 2**32, shape, dtype=np.uint32)
    words[words & 0x7F800000 == 0x7F800000] ^= 0x40000000
    return words.view(np.float32)


def hidden(rng: np.random.Generator, k: int, last: list[tuple[float, float]]) -> tuple[F32, F32]:
    """Two lists of k numbers whose products cancel in pairs, all but the last ones, in any order."""
    a, b = any_numbers(rng, (k,)), any_numbers(rng, (k,))
    rest = (k - len(last)) // 2
    a[rest : 2 * rest], b[rest : 2 * rest] = a[:rest], -b[:rest]
    a[2 * rest :] = b[2 * rest :] = 0
    for position, (x, y) in enumerate(last):
        a[2 * rest + position], b[2 * rest + position] = x, y
    order = rng.permutation(k)
    return a[order], b[order]


ENDS: list[list[tuple[float, float]]] = [
    [(1.0, 1.0), (2.0**-12, 2.0**-12)],  # a tie to even, down
    [(1.0, 1 + 2.0**-23), (2.0**-12, 2.0**-12)],  # a tie to even, up
    [(1.0, 1.0), (2.0**-12, 2.0**-12), (2.0**-149, 2.0**-149)],
    [(1.0, 1.0), (2.0**-12, 2.0**-12), (-(2.0**-149), 2.0**-149)],
    [(-1.0, 1.0), (2.0**-13, 2.0**-12), (2.0**-149, -(2.0**-149))],
    [(2.0**60, 1.0), (-(2.0**60), 1.0), (1.0, 1.0), (1.0, 2.0**-24)],
    [(2.0**-75, 2.0**-75)],  # half of the smallest subnormal number
    [(2.0**-75, 3 * 2.0**-75)],
    [(2.0**-75, 2.0**-75), (2.0**-149, 2.0**-149)],
    [(2.0**-63, 2.0**-63), (-(2.0**-75), 2.0**-75)],  # the largest subnormal and the smallest normal number
    [(LARGEST, 1.0), (2.0**60, 2.0**43)],  # where infinity begins
    [(LARGEST, 1.0), (2.0**60, 2.0**43), (-(2.0**-149), 2.0**-149)],
    [(LARGEST, LARGEST)],
    [(-LARGEST, LARGEST)],
    [(1.0, 0.0)],
    [(-1.0, 0.0)],
    [(-(2.0**-10), 1.0)],  # where a limb begins: all digits of the complement are 0
    [(-(2.0**22), 1.0)],
    [(1.0, 1.0), (-(2.0**-13), 2.0**-12)],  # below a power of two the last place is half as wide
    [(2.0**-75, -3 * 2.0**-75)],
    [(1.0, 1.0), (2.0**-8, 2.0**-8)],  # a tie of 24 bits
]


def sums_of(a: F32, b: F32, format: Format) -> list[int]:
    """The product of a[M, K] and b[K, N], by all ways that there are."""
    (rows, k), columns = a.shape, b.shape[1]
    of_a, of_b = np.divmod(np.arange(rows * columns), columns)
    runs = (
        Runs.strided(np.ascontiguousarray(a).reshape(-1), np.arange(rows) * k, k, 1),
        Runs.strided(np.ascontiguousarray(b).reshape(-1), np.arange(columns), k, columns),
    )
    kept, by_terms = exact.new_sums(len(of_a)), exact.new_sums(len(of_a))
    exact_products.add_products(kept, *runs, of_a, of_b)
    with np.errstate(invalid="ignore"):
        exact.add_terms(by_terms, (a[:, None].astype(np.float64) * b.T[None].astype(np.float64)).reshape(-1, k))
    assert np.array_equal(kept, by_terms)
    found = exact.rounded(kept, format).view(np.uint32)
    assert np.array_equal(exact_products.round_products(*runs, of_a, of_b, format).view(np.uint32), found)
    return [int(word) for word in found]


@pytest.mark.parametrize(("k", "bits"), [(1, 32), (2, 23), (5, 32), (64, 31), (512, 32), (513, 24), (1200, 32)])
def test_sums_of_any_products_are_rounded_correctly(k: int, bits: int) -> None:
    rng = np.random.default_rng(k)
    a, b = any_numbers(rng, (3, k)), any_numbers(rng, (k, 2))
    right = [
        expected(
            [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(row, column, strict=True)], narrow_float32(bits)
        )
        for row in a
        for column in b.T
    ]
    assert sums_of(a, b, narrow_float32(bits)) == right


@pytest.mark.parametrize("end", range(len(ENDS)))
@pytest.mark.parametrize("bits", [32, 24])
def test_what_hides_behind_pairs_that_cancel_is_rounded_correctly(end: int, bits: int) -> None:
    rng = np.random.default_rng(end)
    for k in (4, 11, 700):
        a, b = hidden(rng, k, ENDS[end])
        right = expected([Fraction(float(x)) * Fraction(float(y)) for x, y in ENDS[end]], narrow_float32(bits))
        assert sums_of(a[None], b[:, None], narrow_float32(bits)) == [right]


def test_rows_of_any_number_of_terms_are_rounded_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = np.random.default_rng(6).standard_normal((29, 7))
    whole = exact_sums.round_sums(terms)
    monkeypatch.setattr(exact_sums, "_AT_ONCE", 3)
    assert whole.tobytes() == exact_sums.round_sums(terms).tobytes()
    assert exact_sums.round_sums(np.zeros((3, 0))).tobytes() == bytes(12)
    assert exact_sums.round_sums(np.zeros((0, 4))).shape == (0,)


def test_placed_numbers_go_to_the_sum_of_their_place() -> None:
    rng = np.random.default_rng(1)
    x, index = any_numbers(rng, (2, 50, 3)), rng.integers(-1, 6, (2, 50, 3))
    elements = rng.permutation(2 * 5 * 3)[:20]
    found = exact.new_sums(20)
    exact.add_placed(found, x, index, 5, elements)
    for element, word in zip(elements, exact.rounded(found, FLOAT32).view(np.uint32), strict=True):
        outer, place, within = np.unravel_index(element, (2, 5, 3))
        chosen = x[outer, index[outer, :, within] == place, within]
        assert int(word) == expected([Fraction(float(term)) for term in chosen])


@pytest.mark.parametrize(
    ("a", "b", "right"),
    [
        ([np.inf, 1.0], [2.0, 3.0], np.inf),
        ([np.inf, 1.0], [-2.0, 3.0], -np.inf),
        ([np.inf, np.inf], [1.0, -1.0], np.nan),
        ([np.inf, -np.inf], [-np.inf, np.inf], -np.inf),
        ([np.inf, 1.0], [0.0, 1.0], np.nan),
        ([-np.inf, 1.0], [-0.0, 1.0], np.nan),
        ([np.nan, 1.0], [1.0, 1.0], np.nan),
        ([np.inf, np.nan], [1.0, 1.0], np.nan),
        ([LARGEST, np.inf], [LARGEST, -1.0], -np.inf),
        ([-0.0, -0.0], [1.0, 1.0], 0.0),
    ],
)
def test_what_is_not_finite_is_what_ieee_754_makes_of_it(a: list[float], b: list[float], right: float) -> None:
    (word,) = sums_of(np.array([a], np.float32), np.array(b, np.float32)[:, None], FLOAT32)
    if np.isnan(right):
        assert word & 0x7FFFFFFF > 0x7F800000
    else:
        assert word == int(np.float32(right).view(np.uint32))


PLAIN = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}


def test_an_infinity_beside_padding_is_no_term() -> None:
    x, w = torch.ones((1, 1, 2, 2)), torch.ones((1, 1, 3, 3))
    w[0, 0, 0] = float("inf")
    op = operator("conv2d")
    assert isinstance(op, Contraction)
    found = exact_products.round_products(*op.runs([x, w], PLAIN, np.arange(4)), FLOAT32)
    assert found.tolist() == [4.0, 4.0, np.inf, np.inf]


@pytest.mark.parametrize(("shape", "terms", "bits"), [((60, 70), 600, 32), ((3, 1100), 3, 24)])
def test_many_sums_are_rounded_as_one_is(shape: tuple[int, int], terms: int, bits: int) -> None:
    """More than are taken at once, some of them not finite, some of single elements."""
    rng, (rows, columns) = np.random.default_rng(terms), shape
    a, b = any_numbers(rng, (rows, terms)), any_numbers(rng, (terms, columns))
    a[1, 0], b[2, 3], a[2, 1] = np.inf, np.nan, -np.inf
    a[:, -1], b[-1, 1] = 0, np.inf
    chosen = np.sort(rng.choice(rows * columns, rows * columns * 3 // 4, replace=False))
    of_a, of_b = np.divmod(chosen, columns)
    runs = (
        Runs.strided(a.reshape(-1), np.arange(rows) * terms, terms, 1),
        Runs.strided(b.reshape(-1), np.arange(columns), terms, columns),
    )
    with np.errstate(invalid="ignore"):
        by_terms = exact.new_sums(len(chosen))
        exact.add_terms(by_terms, a[of_a].astype(np.float64) * b.T[of_b].astype(np.float64))
    right = exact.rounded(by_terms, narrow_float32(bits))
    found = exact_products.round_products(*runs, of_a, of_b, narrow_float32(bits))
    assert np.array_equal(np.isnan(found), np.isnan(right)) and np.isnan(right).any()
    assert np.array_equal(found[~np.isnan(found)].view(np.uint32), right[~np.isnan(right)].view(np.uint32))
    assert np.isposinf(found).any() or np.isneginf(found).any()


def test_hidden_midpoints_take_no_thousand_times_as_long() -> None:
    """Every output of the second product is a tie behind products that cancel. It took 3,000 times as long as the
    first."""
    n, rng = 64, np.random.default_rng(4)
    plain = [torch.from_numpy(rng.standard_normal((n, n)).astype(np.float32)) for _ in range(2)]
    a, b = any_numbers(rng, (n, n)), any_numbers(rng, (n, n))
    a[:, 1::2], b[1::2] = a[:, ::2], -b[::2]
    a[:, -2:], b[-2], b[-1] = 1, 1, 2.0**-24
    hostile = [torch.from_numpy(x) for x in (a, b)]
    op = operator("matmul")

    def seconds(inputs: list[torch.Tensor]) -> float:
        start = time.perf_counter()
        rounded = Recorder(4).round(0, op, inputs, {})
        took = time.perf_counter() - start
        assert inputs is plain or bool((rounded == 1).all())
        return took

    for inputs in (plain, hostile):
        seconds(inputs)
    ratios = sorted(seconds(hostile) / seconds(plain) for _ in range(9))
    assert ratios[4] < 300
