"""Elementary functions are rounded correctly: against series in integers and against mpmath at 300 bits."""

from __future__ import annotations

import math
import sys
import threading
import warnings
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from elementary_series import FUNCTIONS as SERIES
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import exact_sums, round_function
from roundlog.definitions import Family, of_family

INFINITY, NAN = float("inf"), float("nan")
FUNCTIONS = sorted(one.name for one in of_family(Family.FUNCTION))


def bits(x: np.float32) -> int:
    return int(np.float32(x).view(np.uint32))


def by_mpmath(name: str, x: Fraction) -> Fraction:
    # sin and cos of 2^127 reduce an argument of 128 bits; nothing here needs more than 300 beyond that.
    with mpmath.workprec(600):
        sign, mantissa, exponent, _ = getattr(mpmath, name)(mpmath.mpf(x.numerator) / x.denominator)._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def in_domain(name: str, x: float) -> bool:
    return math.isfinite(x) and (name != "log" or x > 0) and (name != "log1p" or x > -1)


def check(name: str, arguments: list[float]) -> None:
    arguments = [x for x in arguments if in_domain(name, x)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = round_function(name, np.array(arguments, dtype=np.float32))
    assert results.dtype == np.float32 and results.shape == (len(arguments),)
    for x, result in zip(arguments, results, strict=True):
        exact = Fraction(x)
        if name in ("exp", "expm1"):
            exact = min(max(exact, Fraction(-1000)), Fraction(1000))
        right = ieee.rounded(SERIES[name](exact) if name in SERIES else by_mpmath(name, exact))
        assert bits(result) == right, (name, x, hex(bits(result)), hex(right))


def patterns(rng: np.random.Generator, n: int) -> np.ndarray:
    """Finite FP32 numbers with random bits."""
    x = rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return x[np.isfinite(x)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_powers_of_two_and_their_neighbours_round_correctly(name: str) -> None:
    # exp(2^-24) misses a tie by 2^-49, expm1(2^-23) by 2^-70, cos(2^-12) by 2^-52: the series end beside a boundary.
    powers = np.array([s * 2.0**e for e in range(-149, 128) for s in (1, -1)], dtype=np.float32)
    check(name, powers.astype(np.float64).tolist())
    for direction in (np.float32(-np.inf), np.float32(np.inf)):
        near = np.nextafter(powers[::3], direction)
        check(name, near.astype(np.float64).tolist())


@pytest.mark.parametrize(
    ("name", "x", "result"),
    [
        *[(name, x, 0.0) for name in ("expm1", "log1p", "tanh", "erf", "sin") for x in (0.0, -0.0)],
        *[(name, x, 1.0) for name in ("exp", "cos") for x in (0.0, -0.0)],
        ("log", 1.0, 0.0),
        *[("log", x, -INFINITY) for x in (0.0, -0.0)],
        *[("log", x, NAN) for x in (-1.0, -(2.0**-149), -INFINITY)],
        ("log", INFINITY, INFINITY),
        ("log1p", -1.0, -INFINITY),
        ("log1p", INFINITY, INFINITY),
        *[("log1p", x, NAN) for x in (-1.0000001, -2.0, -INFINITY)],
        *[(name, INFINITY, INFINITY) for name in ("exp", "expm1")],
        ("exp", -INFINITY, 0.0),
        ("expm1", -INFINITY, -1.0),
        *[(name, s * INFINITY, s) for name in ("tanh", "erf") for s in (1.0, -1.0)],
        *[(name, s * INFINITY, NAN) for name in ("sin", "cos") for s in (1.0, -1.0)],
        *[(name, NAN, NAN) for name in FUNCTIONS],
    ],
)
def test_a_special_argument_has_its_limit(name: str, x: float, result: float) -> None:
    (got,) = round_function(name, np.array([x], dtype=np.float32))
    assert np.isnan(got) if math.isnan(result) else bits(got) == bits(np.float32(result))


def test_an_underflow_from_below_is_positive_zero() -> None:
    (sine,) = round_function("sin", np.array([-0.0], dtype=np.float32))
    assert bits(sine) == 0
    # The smallest results keep their sign: they are no zeros.
    assert bits(round_function("expm1", np.array([-(2.0**-149)], dtype=np.float32))[0]) == 0x80000001


def test_other_threads_that_use_mpmath_change_nothing() -> None:
    x = np.random.default_rng(4).uniform(-9, 9, 2000).astype(np.float32)
    alone = round_function("exp", x)
    exact_sums._round_one.cache_clear()
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            for _ in range(50):
                mpmath.mp.prec = 20
            round_function("tanh", x[:1])
            exact_sums._round_one.cache_clear()

    interval, precision = sys.getswitchinterval(), mpmath.mp.prec
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        disturbed = round_function("exp", x)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
        mpmath.mp.prec = precision
    assert disturbed.tobytes() == alone.tobytes()


def test_a_value_that_the_precision_does_not_decide_is_an_error_and_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_sums, "_START_BITS", 26)
    monkeypatch.setattr(exact_sums, "_LIMIT_BITS", 26)
    exact_sums._round_one.cache_clear()
    with pytest.raises(ArithmeticError, match="not decided"):
        round_function("exp", np.linspace(1, 2, 50, dtype=np.float32))
    exact_sums._round_one.cache_clear()
