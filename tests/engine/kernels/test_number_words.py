"""Numbers of BF16 in compiled loops: words, rounding once from FP64, and whether an interval rounds to one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numba import njit
from roundlog.arithmetic.formats import round_signed
from roundlog.kernels.number_words import is_certain, round_number
from roundlog.number_format import BFLOAT16

F64 = npt.NDArray[np.float64]


@njit
def rounded(y: Any, words: Any, out: Any) -> None:
    for i in range(len(y)):
        out[i] = round_number(y[i], words)


@njit
def certain(y: Any, reach: Any, out: Any) -> None:
    for i in range(len(y)):
        out[i] = is_certain(y[i], reach[i])


def doubles() -> F64:
    """FP64 numbers: of all exponents of BF16, its midpoints and what lies beside them, and the ends of the range."""
    rng = np.random.default_rng(5)
    anything = rng.standard_normal(20_000) * 2.0 ** rng.integers(-140, 129, 20_000)
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()
    numbers = every[every.isfinite()].sort().values.numpy()
    middles = (numbers[1:] + numbers[:-1]) / 2
    beside = [np.nextafter(middles, end) for end in (np.inf, -np.inf)]
    top = 2.0**128 * np.array([1.0, 1 - 2.0**-9, 1 - 2.0**-9 - 2.0**-50, 2.0, 2.0**800])
    return np.concatenate(
        [anything, numbers, middles, *beside, top, -top, [0.0, -0.0, 2.0**-140, np.inf, -np.inf, np.nan]]
    )


def test_fp64_numbers_are_rounded_once() -> None:
    y = doubles()
    found = np.empty(len(y), dtype=np.float32)
    rounded(y, np.empty(0, dtype=np.uint16), found)
    right = round_signed(torch.from_numpy(y), BFLOAT16).numpy()
    assert np.array_equal(found, right, equal_nan=True)
    rounded(y, np.empty(0, dtype=np.float32), found)
    with np.errstate(over="ignore"):
        assert np.array_equal(found, y.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("exponent", [-60, -45, -12, -8])
def test_a_certain_interval_rounds_to_one_number(exponent: int) -> None:
    y = doubles()
    rng = np.random.default_rng(-exponent)
    with np.errstate(invalid="ignore", over="ignore"):
        reach = np.abs(y) * 2.0**exponent * rng.random(len(y))
        # Subtraction and addition round, perhaps to an end that is not inside: the numbers next to them are.
        ends = np.nextafter(y - reach, y), np.nextafter(y + reach, y)
        low, high = (round_signed(torch.from_numpy(end), BFLOAT16).numpy() for end in ends)
    found = np.empty(len(y), dtype=np.bool_)
    certain(y, reach, found)
    assert ((low == high) & np.isfinite(low))[found].all()
    assert exponent > -45 or found[:20_000].mean() > 0.8, "hardly anything is certain"
