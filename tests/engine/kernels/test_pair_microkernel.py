"""Sums by the instruction that adds two products of BF16 numbers: how far they are from the exact ones."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numba import njit
from roundlog.kernels.pair_microkernel import BLOCKS, LANES, PAIRS, ROUNDINGS, ROWS, adds_pairs
from roundlog.kernels.pair_microkernel import dot_pairs as _dot_pairs
from roundlog.kernels.pair_microkernel import sum_pair_tile as _sum_pair_tile

has_instruction = pytest.mark.skipif(adds_pairs(LANES) < 2, reason="this processor does not add two products at once")
COLUMNS, PITCH, UNIT = 48, 16, 2.0**-24
WORDS = PAIRS * BLOCKS * 2


@njit
def _tile(lanes, paired, left, right, tile, blocks):  # type: ignore[no-untyped-def]
    _sum_pair_tile(lanes, paired, left.ctypes.data, right.ctypes.data, tile.ctypes.data, blocks, False)


@njit
def _dot(lanes, paired, left, right, vectors):  # type: ignore[no-untyped-def]
    return _dot_pairs(lanes, paired, left.ctypes.data, right.ctypes.data, vectors)


def aligned(words: int) -> np.ndarray:
    memory = np.zeros(words + 32, dtype=np.uint16)
    start = -memory.ctypes.data % 64 // 2
    return memory[start : start + words]


def numbers(words: np.ndarray) -> np.ndarray:
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def words(values: np.ndarray) -> np.ndarray:
    """BF16's words, towards zero."""
    return (np.asarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def tile_of(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The sums of words [ROWS, terms] and [terms, COLUMNS], terms a multiple of twice PAIRS."""
    terms = left.shape[1]
    strip, panel, tile = aligned(PITCH * terms), aligned(COLUMNS * terms), aligned(ROWS * COLUMNS * 4).view(np.float64)
    strip.reshape(terms // 2, PITCH, 2)[:, :ROWS] = left.reshape(ROWS, -1, 2).transpose(1, 0, 2)
    panel.reshape(terms // 2, COLUMNS, 2)[:] = right.reshape(-1, 2, COLUMNS).transpose(0, 2, 1)
    _tile((0,) * LANES, (0, 0), strip, panel, tile, terms // (2 * PAIRS))
    return tile.reshape(ROWS, COLUMNS)


def exact(left: np.ndarray, right: np.ndarray) -> list[Fraction]:
    a, b = numbers(left), numbers(right)
    return [
        sum((Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)), Fraction(0))
        for row in a
        for column in b.T
    ]


def bounds(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """What docs/numerics.md promises."""
    a, b = numbers(left), numbers(right)
    weights = np.resize(ROUNDINGS, left.shape[1])
    weighted = np.sqrt((a**2 * weights).sum(1))[:, None] + 2.0**-95, np.sqrt((b.T**2 * weights).sum(1)) + 2.0**-95
    return (weighted[0] * weighted[1] * UNIT + 2.0**-111) * (1 + 2.0**-17)


def test_a_term_goes_through_as_many_roundings_as_it_is_said() -> None:
    """By going through all orders of every pair's additions."""
    worst = np.zeros(WORDS)
    for first in (0, 1):
        counts, total = np.zeros(WORDS), []
        for block in range(BLOCKS):
            chain: list[int] = []
            for pair in range(PAIRS):
                at = 2 * (block * PAIRS + pair)
                for term in (at + first, at + 1 - first):
                    rounded = bool(chain)
                    chain.append(term)
                    counts[chain] += rounded
            rounded = bool(total)
            total += chain
            counts[total] += rounded
        worst = np.maximum(worst, counts)
    assert np.array_equal(worst, ROUNDINGS) and ROUNDINGS.min() >= 2


@has_instruction
@pytest.mark.parametrize(
    ("kind", "low"), [("signs", 0), ("signs", -110), ("positive", -60), ("halves", 0), ("all exponents", 0)]
)
def test_sums_are_as_close_as_proved(kind: str, low: int) -> None:
    rng = np.random.default_rng([len(kind), -low])
    for terms in (2 * PAIRS, WORDS, 3 * WORDS + 6 * PAIRS):
        a, b = rng.standard_normal((ROWS, terms)), rng.standard_normal((terms, COLUMNS))
        if kind != "signs":
            a, b = abs(a), abs(b)
        if kind == "halves":
            a[:, rng.integers(0, 2)] = 2.0**12
            # All others are nearly half of what FP32 keeps of the large one.
            a[:, 2:], b[2:], b[:2] = 2.0**-13, rng.choice([1.984375, 2.015625], (terms - 2, COLUMNS)), 1.0
        if kind == "all exponents":
            a, b = a * 2.0 ** rng.integers(-60, 60, a.shape), b * 2.0 ** rng.integers(-60, 60, b.shape)
        scale = 2.0**low
        left, right = words(a * scale), words(b * (scale if low > -100 else 2.0**10))
        found, right_sums = tile_of(left, right).reshape(-1), exact(left, right)
        errors = np.array([float(abs(Fraction(x) - y)) for x, y in zip(found, right_sums, strict=True)])
        assert (errors <= bounds(left, right).reshape(-1)).all()
        if kind == "halves" and not low:
            assert errors.max() > 0.2 * 2.0**12 * UNIT, "errors are what the bound is for"


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("lanes", [8, 4, 2])
def test_a_pair_of_products_is_rounded_once(lanes: int, at_once: int) -> None:
    if at_once > adds_pairs(lanes):
        pytest.skip("this processor does not add two products at once")
    rng = np.random.default_rng(lanes)
    for scale in (1.0, 2.0**-62, 2.0**-100):
        left, right = (words(rng.standard_normal((1, 12 * lanes)) * s) for s in (scale, 2.0**-30 * scale))
        found = _dot((0,) * lanes, (0,) * at_once, left[0], right[0], 3)
        (value,) = exact(left, right.T)
        a, b = numbers(left), numbers(right)
        norms = np.sqrt((a**2).sum()), np.sqrt((b**2).sum())
        bound = abs(a * b).sum() * UNIT * (1 + 2.0**-20) + sum(norms) * 2.0**-119 + 2.0**-111
        assert abs(Fraction(float(found)) - value) <= bound
