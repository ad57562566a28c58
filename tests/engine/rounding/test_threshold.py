"""The `threshold` policy is OVT's: rnd, log and rev against tables of fractions, Algorithm 3 against its promise."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import round_to
from roundlog.number_format import FLOAT32, narrow_float32
from roundlog.operators import operator
from roundlog.rounding import LogFindingKind, protocols
from roundlog.rounding.ovt import (
    Divergence,
    ThresholdError,
    ThresholdFollower,
    ThresholdRecorder,
    Thresholds,
    Trits,
    log_codes,
    reverse,
)

from tests.engine.oracle.array import from_torch

WIDTHS = st.sampled_from(range(23, 33))
# Around numbers and midpoints of every format, in all binades, subnormal ones too.
ANCHORS = st.tuples(st.integers(0, 2**31 - 1).filter(lambda p: p < 0x7F000000), st.sampled_from([0, 1, 2, 3]))


def double(*items: float) -> torch.Tensor:
    return torch.tensor(items, dtype=torch.float64)


def spacing(x: Fraction, width: int) -> Fraction:
    """2^(floor(log2 |x|) + 9 - width): from the definition, by comparing."""
    e = -126
    while Fraction(2) ** (e + 1) <= abs(x):
        e += 1
    return Fraction(2) ** (e + 9 - width)


def number(pattern: int, width: int) -> Fraction:
    return ieee.value(pattern >> 32 - width << 32 - width)


def value_near(anchor: tuple[int, int], width: int, off: float, sign: int) -> float:
    """A quarter, half or three quarters of the way to the next number of the format, and then a little."""
    pattern, quarters = anchor
    low = number(pattern, width)
    gap = spacing(low, width)
    return sign * float(low + gap * quarters / 4 + gap * Fraction(off))


def oracle_log(x: float, width: int, tau: float) -> int:
    """Section 5.2 of OVT, with the binary exponent."""
    exact = Fraction(x)
    rounded = ieee.value(ieee.rounded(exact, narrow_float32(width)))
    if abs(exact - rounded) <= Fraction(tau) * spacing(exact, width):
        return 1
    return 0 if exact > rounded else 2


def oracle_reverse(x: float, code: int, width: int) -> Fraction:
    exact = Fraction(x)
    pattern = ieee.rounded(exact, narrow_float32(width))
    rounded = ieee.value(pattern)
    step = 1 << 32 - width
    if code == 0 and exact < rounded:
        return ieee.value(_ordered(pattern, -step))
    if code == 2 and exact > rounded:
        return ieee.value(_ordered(pattern, step))
    return rounded


def _ordered(pattern: int, by: int) -> int:
    """The bit pattern that many FP32 numbers above."""
    ordinal = pattern if pattern < ieee.SIGN else -(pattern - ieee.SIGN)
    moved = ordinal + by
    return moved if moved >= 0 else ieee.SIGN - moved


@given(
    ANCHORS,
    WIDTHS,
    st.one_of(st.just(0.0), st.floats(-0.01, 0.01), st.floats(-(2.0**-25), 2.0**-25)),
    st.sampled_from([1, -1]),
    st.one_of(st.just(0.25), st.floats(0.25, 0.4999)),
)
@settings(max_examples=120)
def test_every_trit_is_the_one_of_the_definition(
    anchor: tuple[int, int], width: int, off: float, sign: int, tau: float
) -> None:
    x = value_near(anchor, width, off, sign)
    y = double(x)
    assert log_codes(y, round_to(y, narrow_float32(width)), tau, narrow_float32(width)).tolist() == [
        oracle_log(x, width, tau)
    ]


@given(ANCHORS, WIDTHS, st.floats(-0.01, 0.01), st.sampled_from([1, -1]), st.integers(0, 2))
@settings(max_examples=120)
def test_every_reversal_is_the_one_of_the_definition(
    anchor: tuple[int, int], width: int, off: float, sign: int, code: int
) -> None:
    x = value_near(anchor, width, off, sign)
    y = double(x)
    (got,) = from_torch(
        reverse(y, round_to(y, narrow_float32(width)), torch.tensor([code], dtype=torch.uint8), narrow_float32(width))
    ).items
    assert ieee.value(got) == oracle_reverse(x, code, width)


@given(
    ANCHORS,
    WIDTHS,
    st.floats(-0.01, 0.01),
    st.floats(-(2.0**-8), 2.0**-8),
    st.sampled_from([1, -1]),
    st.floats(0.25, 0.49),
)
@settings(max_examples=120)
def test_two_machines_within_the_threshold_always_end_with_the_trainers_number(
    anchor: tuple[int, int], width: int, off: float, apart: float, sign: int, tau: float
) -> None:
    """OVT works by this: if values differ by less than 0.5 - tau and tau of the distance between numbers, following the
    log gives the trainer's number."""
    x1 = value_near(anchor, width, off, sign)
    x2 = value_near(anchor, width, off + apart, sign)
    y1, y2 = double(x1), double(x2)
    theirs = round_to(y1, narrow_float32(width))
    followed = reverse(
        y2,
        round_to(y2, narrow_float32(width)),
        log_codes(y1, theirs, tau, narrow_float32(width)),
        narrow_float32(width),
    )
    # Just below a power of two numbers are half as far apart: there the margin is half as wide.
    room = min(spacing(Fraction(x1), width), spacing(Fraction(x2), width)) if x1 and x2 else 0
    if abs(Fraction(x1) - Fraction(x2)) < room * (Fraction(1, 2) - Fraction(tau)):
        assert followed.tolist() == theirs.tolist()


def test_algorithm_3_finds_the_largest_threshold_that_logs_all_differences() -> None:
    torch.manual_seed(0)
    x1 = torch.randn(60_000, dtype=torch.float64)
    x2 = x1 * (1 + 2.0**-30 * (torch.rand_like(x1) - 0.5))
    whole = Divergence.between(x1, x2, FLOAT32)
    parts = [Divergence.between(x1[part], x2[part], FLOAT32) for part in (slice(30_000), slice(30_000, None))]
    assert parts[0] + parts[1] == whole
    assert whole.elements == 60_000 and whole.differing > 15 and whole.beyond == 0 and whole.safe
    tau = whole.search()
    assert 0.45 < tau < 0.5
    r1, r2 = round_to(x1, FLOAT32), round_to(x2, FLOAT32)
    differ = r1 != r2

    def all_logged(tau: float) -> bool:
        return all((log_codes(x[differ], r[differ], tau, FLOAT32) != 1).all() for x, r in ((x1, r1), (x2, r2)))

    assert all_logged(tau)
    assert not all_logged(tau + 2.0**-18)
    assert whole.threshold() <= tau
    # With that threshold either machine follows the other.
    for a, b in ((x1, x2), (x2, x1)):
        rounded = round_to(a, FLOAT32)
        codes = log_codes(a, rounded, whole.threshold(), FLOAT32)
        assert torch.equal(reverse(b, round_to(b, FLOAT32), codes, FLOAT32), rounded)


def test_a_layer_whose_machines_are_too_far_apart_has_no_safe_threshold() -> None:
    x1 = torch.linspace(1, 2, 1000, dtype=torch.float64)
    assert not Divergence.between(x1, x1 * (1 + 2.0**-22), FLOAT32).safe
    same = Divergence.between(x1, x1, FLOAT32)
    assert (same.differing, same.search(), same.safe) == (0, 0.5, True)
    assert same.threshold() < 0.5


def test_thresholds_survive_their_json_and_nothing_else_is_read() -> None:
    chosen = Thresholds(default=0.3, operators={"matmul": 0.49, "conv2d": 0.25})
    assert Thresholds.from_json(chosen.to_json()) == chosen
    assert (chosen.of("matmul"), chosen.of("sum")) == (0.49, 0.3)
    for text, sentence in (
        ("", "not JSON"),
        ("[" * 5000, "not JSON"),
        ("[]", "object with the keys"),
        ('{"tau": 0.3}', "object with the keys"),
        ('{"operators": []}', "has to be an object"),
        ('{"default": 0.5}', "0.5 of default is outside"),
        ('{"default": 0.2}', "0.2 of default is outside"),
        ('{"default": NaN}', "NaN, which is not a number"),
        ('{"default": true}', "True of default is outside"),
        ('{"default": "0.3"}', "'0.3' of default is outside"),
        (json.dumps({"operators": {"add": 0.3}}), "'add' is not an inexact operator"),
        ('{"default": 0.3}' + " " * 70_000, "longer than"),
    ):
        with pytest.raises(ThresholdError, match=sentence):
            Thresholds.from_json(text)


# The two roles on one operator.


def case():
    torch.manual_seed(3)
    return operator("matmul"), [torch.randn(64, 48), torch.randn(48, 64)], {}


class Shifted(type(operator("matmul"))):
    """The product as another machine may compute it at worst: off by the bound."""

    def approximate(self, inputs, attributes):
        y = super().approximate(inputs, attributes)
        d = self.bound(inputs, attributes, y).whole(y)
        noise = torch.rand(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * 2 - 1
        return y + d * noise.sign()


def recorded(bits: int):
    op, inputs, attributes = case()
    recorder = ThresholdRecorder()
    result = recorder.round(0, op, inputs, attributes, narrow_float32(bits))
    return result, recorder.take()


@pytest.mark.parametrize("bits", [23, 26, 32])
def test_an_auditor_with_other_hardware_follows_the_log_to_the_trainers_numbers(bits: int) -> None:
    result, log = recorded(bits)
    _, inputs, attributes = case()
    follower = ThresholdFollower(4)
    follower.follow(0, log)
    assert torch.equal(follower.round(0, Shifted(), inputs, attributes, narrow_float32(bits)), result)
    assert follower.findings == []


def test_a_trainer_who_moves_results_that_are_nowhere_near_a_boundary_is_found_and_not_followed() -> None:
    result, log = recorded(32)
    op, inputs, attributes = case()
    codes = log[0].codes().copy()
    y = op.approximate(inputs, attributes).reshape(-1)
    wide = result.reshape(-1).double()
    # The other way for every result: OVT as published would follow all of these.
    lie = torch.where(y > wide, 2, 0).to(torch.uint8).numpy()
    bent = [int(i) for i in np.flatnonzero((y != wide).numpy())[:50]]
    codes[bent] = lie[bent]
    follower = ThresholdFollower(4)
    follower.follow(3, {0: Trits.pack(codes)})
    assert torch.equal(follower.round(0, op, inputs, attributes), result)
    assert [(f.step, f.operator, f.element, f.kind) for f in follower.findings] == [
        (3, 0, element, LogFindingKind.FORGED) for element in bent
    ]
    assert follower.corrections == {0: 0}


def test_a_log_of_lies_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(protocols, "MAX_FINDINGS", 20)
    result, _ = recorded(32)
    op, inputs, attributes = case()
    y, wide = op.approximate(inputs, attributes).reshape(-1), result.reshape(-1).double()
    follower = ThresholdFollower(4)
    follower.follow(0, {0: Trits.pack(torch.where(y > wide, 2, 0).to(torch.uint8).numpy())})
    follower.round(0, op, inputs, attributes)
    assert len(follower.findings) == 20 and follower.given_up
    assert torch.equal(follower.round(0, op, inputs, attributes), result)
