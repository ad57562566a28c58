"""The compiled elementary functions keep the bound that docs/numerics.md proves of them. The numbers of the proof are
computed here, exactly, from the code's own constants and the code's own polynomial; values are compared with series in
integers; and the slow tests try all FP32 arguments."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from math import factorial

import numpy as np
import pytest
import torch
from elementary_series import FUNCTIONS as SERIES
from roundlog.arithmetic import round_function
from roundlog.definitions.definition import RELATIVE_ERROR
from roundlog.kernels import elementary, marking
from roundlog.kernels.elementary import evaluate, mark_function
from roundlog.operators import Inexact, operator
from roundlog.operators.bounds import Ambiguous, RelativeBound, mark_by_reference
from roundlog.operators.elementwise import ABSOLUTE_BOUND
from roundlog.rounding.resolve import resolve

U = Fraction(1, 2**53)
BOUND = {"exp": 3 * U, "expm1": 7 * U, "tanh": 8 * U}
"""Bounds of docs/numerics.md, by function."""

LN2 = SERIES["log"](Fraction(2))
R = Fraction(34658, 100_000)
"""Largest reduced argument."""

FACTORIALS = {1 / factorial(i): Fraction(1, factorial(i)) for i in range(2, 20)}


@dataclass(frozen=True)
class Tracked:
    """A number no larger than `size` whose computed value errs by no more than `error`: running error analysis (Higham,
    section 3.3), of the very code that is compiled. With FMA, products that are summed up are not rounded, which
    makes no error larger."""

    size: Fraction
    error: Fraction

    @staticmethod
    def of(value: Tracked | float) -> Tracked:
        if isinstance(value, Tracked):
            return value
        return Tracked(FACTORIALS[value], abs(Fraction(value) - FACTORIALS[value]))

    def __add__(self, other: Tracked | float) -> Tracked:
        b = Tracked.of(other)
        size, error = self.size + b.size, self.error + b.error
        return Tracked(size, error + U * (size + error))

    def __mul__(self, other: Tracked | float) -> Tracked:
        b = Tracked.of(other)
        size = self.size * b.size
        error = self.size * b.error + self.error * b.size + self.error * b.error
        return Tracked(size, error + U * (size + error))

    __radd__, __rmul__ = __add__, __mul__


def q_bound() -> Fraction:
    """Relative bound of e^r - 1 for |r| <= R: r + r^2 * series(r), whose rest is at least |r| (1 - |r| / 2)."""
    polynomial = elementary.series.py_func(Tracked(R, Fraction(0)))
    product = (1 + U) ** 2 * (polynomial.size + polynomial.error) - polynomial.size
    rest = R**12 / factorial(14) / (1 - R / 15)
    before_the_sum = R * (product + rest) / (1 - R / 2)
    return (1 + before_the_sum) * (1 + U) - 1


def r_bound() -> Fraction:
    """Absolute bound of the reduced argument."""
    k, low = 1023, Fraction(elementary.LN2_LOW)
    constant = abs(LN2 - Fraction(elementary.LN2_HIGH) - low)
    return k * constant + U * k * low + U / 4


def test_the_argument_is_reduced_as_the_proof_says() -> None:
    high, most = Fraction(elementary.LN2_HIGH), Fraction(elementary.TOP)
    assert (high * 2**42).denominator == 1 and high < 1
    # FP64 holds k * high for an integer k of 10 bits; x - k * high is a multiple of 2^-42 below 1.
    assert 42 + 10 <= 53
    assert 0 < LN2 - high < Fraction(1, 2**43)
    assert abs(LN2 - high - Fraction(elementary.LN2_LOW)) <= U * Fraction(1, 2**43)
    log2_e = Fraction(elementary.LOG2_E)
    assert abs(log2_e * LN2 - 1) <= 2 * U
    assert most >= -Fraction(elementary.BOTTOM) and most * log2_e + 1 < 1024
    # k is the nearest integer of what x log2(e) is computed to.
    off = most / LN2 * 3 * U
    assert LN2 * (Fraction(1, 2) + off) + r_bound() < R
    assert elementary.SHIFT == 3 * 2.0**51


def test_the_bounds_are_what_the_proof_says() -> None:
    q, r = q_bound(), r_bound()
    # (e^R - 1) bounds |e^r - 1| / e^r and |e^r - 1|.
    span = sum(R**i / factorial(i) for i in range(1, 30))
    assert Fraction(41421, 100_000) < span < Fraction(41424, 100_000)
    exp = (1 + span * q) * (1 + U) * (1 + 2 * r) - 1
    assert exp <= BOUND["exp"]
    # k = 1 and r = -R, or k = -1 and r = R, are the worst: what is left of s e^r - 1 is least there.
    worst_q, worst_r, worst_s = Fraction(142, 100), Fraction(342, 100), Fraction(142, 100)
    for k in [*range(-80, 0), *range(1, 200)]:
        s = Fraction(2) ** k
        for end in (1 / (1 + span), 1 + span):
            left = abs(s * end - 1)
            assert s * abs(end - 1) <= worst_q * left and s * end <= worst_r * left
            assert abs(k) <= 53 or abs(s - 1) <= worst_s * left
    e = (1 + worst_q * q + worst_r * r * (1 + r)) * (1 + U) - 1
    # Beyond 2^53, s - 1 is rounded; below, it is exact.
    expm1 = e + worst_s * U * (1 + U)
    assert expm1 + Fraction(1, 2**72) <= BOUND["expm1"]
    # Where s - 1 is rounded in tanh, e / (e + 2) hardly depends on e.
    tanh = (1 + e) * (1 + U) / (1 - U) - 1
    assert tanh + Fraction(1, 2**62) <= BOUND["tanh"]
    assert max(BOUND.values()) <= Fraction(RELATIVE_ERROR) / 2


def test_the_ends_are_what_the_proof_says() -> None:
    assert SERIES["exp"](Fraction(elementary.BOTTOM)) < Fraction(1, 2**1001) < Fraction(ABSOLUTE_BOUND)
    assert SERIES["exp"](Fraction(elementary.TOP)) > 2**1022
    assert SERIES["exp"](Fraction(elementary.LEAST)) < Fraction(1, 2**72)
    assert 1 - SERIES["tanh"](Fraction(elementary.MOST) / 2) < Fraction(1, 2**62)


def around(values: list[float], steps: int = 3) -> np.ndarray:
    """FP32 numbers next to these."""
    x = np.array(values, dtype=np.float32)
    found, up, down = [x], x, x
    for _ in range(steps):
        up, down = np.nextafter(up, np.float32(np.inf)), np.nextafter(down, np.float32(-np.inf))
        found += [up, down]
    return np.concatenate(found)


def arguments() -> np.ndarray:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2**32, 3000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    # Where k changes, for all three; tanh sees 2 |x|.
    steps = [(k + 0.5) * math.log(2) / part for k in range(-80, 80) for part in (1, 2)]
    steps += [(k + 0.5) * math.log(2) for k in (*range(-1003, -990), *range(1010, 1024), 127, 128, -149, -150)]
    multiples = [k * math.log(2) / part for k in range(-1000, 1023, 7) for part in (1, 2)]
    ends = [elementary.TOP, elementary.BOTTOM, elementary.LEAST, elementary.MOST / 2, 88.72284, -87.33655, -103.97208]
    powers = [2.0**e for e in range(-149, 128)]
    x = np.concatenate(
        [
            patterns,
            rng.uniform(-9, 9, 2000).astype(np.float32),
            rng.uniform(-710, 710, 1000).astype(np.float32),
            around([*steps, *multiples, *ends, *(-end for end in ends)]),
            around([*powers, *(-p for p in powers)], 1),
            np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4028234663852886e38], dtype=np.float32),
        ]
    )
    return x


def exact_value(name: str, x: float) -> Fraction:
    if name == "tanh":
        return SERIES[name](Fraction(min(max(x, -100.0), 100.0)))
    return SERIES[name](Fraction(max(x, -1000.0)))


@pytest.mark.slow
@pytest.mark.parametrize("name", elementary.FUNCTIONS)
def test_values_lie_within_the_proven_bound(name: str) -> None:
    x = arguments()
    y = evaluate(name, x)
    infinite = x > elementary.TOP if name != "tanh" else np.zeros(len(x), dtype=bool)
    assert np.array_equal(np.isnan(y), np.isnan(x))
    assert np.array_equal(np.isinf(y), infinite) and (y[infinite] > 0).all()
    largest = Fraction(0)
    finite = np.isfinite(y)
    for argument, value in zip(x[finite].tolist(), y[finite].tolist(), strict=True):
        right = exact_value(name, argument)
        off = abs(Fraction(value) - right)
        if name == "exp" and argument < elementary.BOTTOM:
            assert off < Fraction(ABSOLUTE_BOUND)
        else:
            assert off <= BOUND[name] * abs(right), (name, argument, float(off / right / U))
            largest = max(largest, off / abs(right)) if right else largest
    # The arguments are hard enough to show more than the last rounding.
    assert largest > U


@pytest.mark.slow
def test_values_lie_within_the_bound_without_fma_too() -> None:
    here = f"{__file__}::{test_values_lie_within_the_proven_bound.__name__}[tanh]"
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", here]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("name", elementary.FUNCTIONS)
@pytest.mark.parametrize(("relative", "threads"), [(RELATIVE_ERROR, 1), (2.0**-30, 2)])
def test_marking_is_the_references_to_the_bit(name: str, relative: float, threads: int) -> None:
    torch.set_num_threads(threads)
    x = np.resize(arguments(), 70_001)
    y = torch.from_numpy(evaluate(name, x))
    out = np.empty_like(x)
    found = mark_function(name, x, 4.0 * (1 + 2.0**-40), out, relative=relative, absolute=ABSOLUTE_BOUND)
    assert len(found) == threads
    near = Ambiguous.collect(found)
    expected, marked = mark_by_reference(y, RelativeBound(relative, ABSOLUTE_BOUND), 4.0)
    assert torch.equal(near.indices, marked.indices)
    assert np.array_equal(near.y.numpy(), marked.y.numpy(), equal_nan=True)
    assert np.array_equal(near.d.numpy(), marked.d.numpy(), equal_nan=True)
    finite = np.isfinite(out)
    assert np.array_equal(finite, expected.isfinite().numpy())
    assert np.array_equal(out[finite].view(np.int32), expected.numpy()[finite].view(np.int32))
    assert relative == RELATIVE_ERROR or near.y.isfinite().sum() > 1000


HARD = {
    "exp": """
        0x1.fffffep-25 0x1.000000p-24 0x1.7ffffep-23 0x1.bffffap-22 0x1.dffff2p-21 0x1.747de2p-15
        0x1.8d7cb6p-12 0x1.344e9cp-5 0x1.cce332p0 0x1.036492p1 0x1.62b666p1 0x1.bae196p2 0x1.97f0f6p4
        0x1.112856p6
    """,
    "expm1": """
        0x1.6a09e6p-24 0x1.94c582p-22 0x1.1e3778p-21 0x1.8a85bcp-20 0x1.645636p-19 0x1.6c270ap-16
        0x1.4a9cf4p-11 0x1.469ca6p-9 0x1.787854p-6 0x1.84a5bap-4 0x1.6b7d8ap-3 0x1.cce332p0 0x1.62b666p1
        0x1.112856p6
    """,
    "tanh": """
        0x1.86fbc4p-10 0x1.a83722p-6 0x1.f860aap-5 0x1.dc0accp-2 0x1.5969a0p2 0x1.8bd194p2
    """,
}
"""Some of the arguments, of all 2^32, whose values 2^-49 does not decide. tanh has no other positive ones."""


@pytest.mark.parametrize("name", elementary.FUNCTIONS)
def test_the_operator_rounds_correctly_where_it_is_hard(name: str) -> None:
    op = operator(name)
    assert isinstance(op, Inexact)
    hard = np.array([float.fromhex(x) for x in HARD[name].split()], dtype=np.float32)
    x = np.concatenate([hard, -hard, arguments()])
    x = x[np.isfinite(x)]
    inputs = [torch.from_numpy(x)]
    rounded, marked = op.certify(inputs, {}, 1.0)
    assert set(range(len(hard))) <= set(marked.indices.tolist())
    rounded[marked.indices] = torch.from_numpy(resolve(op, inputs, {}, marked))
    assert np.array_equal(rounded.numpy().view(np.int32), round_function(name, x).view(np.int32))


@pytest.mark.long
@pytest.mark.parametrize("name", elementary.FUNCTIONS)
def test_all_arguments_agree_with_the_vendors_function(name: str) -> None:
    """2^32 of them, within what both may err."""
    both = float(BOUND[name]) + RELATIVE_ERROR
    largest = 0.0
    for first in range(0, 2**32, 2**22):
        x = np.arange(first, first + 2**22, dtype=np.uint64).astype(np.uint32).view(np.float32)
        y = evaluate(name, x)
        theirs = getattr(torch, name)(torch.from_numpy(x).double()).numpy()
        with np.errstate(invalid="ignore"):
            off = np.abs(y - theirs)
            fine = off <= np.abs(theirs) * both + ABSOLUTE_BOUND
        beyond = ~fine
        if beyond.any():
            # Both are NaN, or both beyond FP32: the vendor's may still be finite there.
            assert np.array_equal(np.isnan(y), np.isnan(theirs))
            large = beyond & ~np.isnan(y)
            assert (y[large] == np.inf).all() and (theirs[large] > 2.0**1022).all()
        known = fine & (np.abs(theirs) > 2.0**-950)
        if known.any():
            largest = max(largest, float((off[known] / np.abs(theirs[known])).max()))
    print(f"{name}: {largest * 2**53:.2f} u at most between this and the vendor's")


def test_room_for_marked_elements_grows_by_what_they_are() -> None:
    """It grew by half for each block of sums once, ambiguous or not: 24 GB for two million ties."""
    room = marking._longer(np.arange(3), 8)
    assert len(room) == 8 and marking._longer(room, 8) is room and len(marking._longer(room, 9)) == 12
