"""Exact operators with fewer bits round once: against fractions, with operands that are midpoints themselves."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.capture import Task
from roundlog.number_format import narrow_float32
from roundlog.operators import REGISTRY, OperatorKind, compute_narrow, elementwise, operator
from roundlog.program import ProgramError
from roundlog.training.job import Job

from tests.engine.oracle.array import from_torch
from tests.engine.tasks import linear_task

WIDTHS = st.sampled_from(range(23, 32))
PATTERNS = st.integers(0, 2**32 - 1).filter(ieee.is_finite)


def f32(*patterns: int) -> torch.Tensor:
    return torch.from_numpy(np.array(patterns, dtype=np.uint32).view(np.float32))


def result(name: str, width: int, *inputs: torch.Tensor) -> int:
    (bits,) = from_torch(compute_narrow(operator(name), list(inputs), {}, narrow_float32(width))).items
    return bits


def expected(name: str, a: int, b: int, width: int) -> int:
    """Straight from the mathematical value; a zero has the sign that IEEE 754 gives it."""
    if name in ("add", "sub"):
        b = b if name == "add" else b ^ ieee.SIGN
        return ieee.nearest(
            ieee.value(a) + ieee.value(b), zero=ieee.SIGN if a == b == ieee.SIGN else 0, format=narrow_float32(width)
        )
    sign = (a ^ b) & ieee.SIGN
    if name == "mul":
        return ieee.nearest(ieee.value(a) * ieee.value(b), zero=sign, format=narrow_float32(width))
    return ieee.nearest(ieee.value(a) / ieee.value(b), zero=sign, format=narrow_float32(width))


@given(st.sampled_from(["add", "sub", "mul", "div"]), PATTERNS, PATTERNS, WIDTHS)
@example("add", 0x3F800001, 0x80000001, 31)  # a midpoint, and the smallest number below it
@example("add", 0x3F800001, 0x00000001, 31)
@example("add", 0x3F800100, 0x33000000, 23)
@example("sub", 0xBF800100, 0x00000001, 23)
@settings(max_examples=500)
def test_arithmetic_rounds_once(name: str, a: int, b: int, width: int) -> None:
    if name == "div" and ieee.value(b) == 0:
        return
    assert result(name, width, f32(a), f32(b)) == expected(name, a, b, width)


@given(
    st.integers(0, 2**31 - 1).filter(ieee.is_finite), PATTERNS, WIDTHS, st.booleans(), st.sampled_from(["add", "sub"])
)
@settings(max_examples=500)
def test_a_midpoint_and_something_tiny_goes_the_right_way(
    a: int, b: int, width: int, negative: bool, name: str
) -> None:
    """The first operand is half-way between two numbers of the format; FP64 alone would call it a tie."""
    half = 1 << 31 - width
    a = a >> 32 - width << 32 - width | half | (ieee.SIGN if negative else 0)
    assert result(name, width, f32(a), f32(b)) == expected(name, a, b, width)


@given(st.integers(0, 2**31 - 1).filter(ieee.is_finite), WIDTHS)
@settings(max_examples=200)
def test_roots_round_once(a: int, width: int) -> None:
    assert result("sqrt", width, f32(a)) == ieee.root(a, narrow_float32(width))


@given(st.integers(-(2**63), 2**63 - 1), WIDTHS)
@example(2**53 + 1, 23)
@example(2**62 + 2**38 + 1, 31)
@settings(max_examples=200)
def test_integers_round_once(x: int, width: int) -> None:
    assert result("to_f32", width, torch.tensor([x])) == ieee.nearest(Fraction(x), format=narrow_float32(width))


@given(st.sampled_from(["neg", "abs", "floor"]), PATTERNS, WIDTHS)
@settings(max_examples=150)
def test_selections_round_what_they_select(name: str, a: int, width: int) -> None:
    plain = {"neg": ieee.negate, "abs": lambda x: x & ~ieee.SIGN, "floor": ieee.floor}[name](a)
    assert result(name, width, f32(a)) == ieee.nearest(
        ieee.value(plain), zero=plain & ieee.SIGN, format=narrow_float32(width)
    )


def test_what_is_not_finite_stays_so() -> None:
    infinity, nan = float("inf"), float("nan")
    a = torch.tensor([infinity, infinity, nan, 3e38, 1.0, -1.0])
    b = torch.tensor([1.0, -infinity, 1.0, 3e38, 0.0, 0.0])
    assert compute_narrow(operator("add"), [a, b], {}, narrow_float32(24)).isnan().tolist() == [
        False,
        True,
        True,
        False,
        False,
        False,
    ]
    assert compute_narrow(operator("div"), [a, b], {}, narrow_float32(24))[4:].tolist() == [infinity, -infinity]
    assert compute_narrow(operator("add"), [a, b], {}, narrow_float32(24))[3] == infinity


def test_an_exact_operator_that_is_not_known_to_round_once_is_refused_by_name(monkeypatch) -> None:
    """One that somebody adds would round twice; until it is looked at, 32 bits are all it has."""
    known = {*elementwise._WIDE, *(name for name, op in REGISTRY.items() if op.definition.selects)}
    assert known <= {name for name, op in REGISTRY.items() if op.kind == OperatorKind.EXACT}
    wide = {name: f for name, f in elementwise._WIDE.items() if name != "mul"}
    monkeypatch.setattr(elementwise, "_WIDE", wide)
    Job.from_task(linear_task)
    with pytest.raises(ProgramError, match=r"operator \d+ \(mul, .*\) cannot be rounded to 31 bits yet"):
        Job.from_task(linear_task, bits=31)


def test_a_job_with_so_many_bits_is_refused_before_any_work() -> None:
    def never(model, batch):
        raise AssertionError("captured")

    model = torch.nn.Linear(2, 1)
    task = Task(
        model=model,
        loss=never,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.zeros(2, 2)},
        batch_size=1,
        steps=1,
        interval=1,
        seed=0,
    )
    for bits in (0, 22, 33, 64):
        with pytest.raises(ValueError, match=f"rounding_bits {bits} is outside 23..32"):
            Job.from_task(lambda: task, bits=bits)
