"""Every operator of the registry against the oracle: every element, to the bit, no tolerance anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import prod
from random import Random

import pytest
import torch
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import round_interval
from roundlog.operators import REGISTRY, Direct, Inexact, Source, StepInputs
from roundlog.program import DType, TensorType

from tests.engine.operators import operands as of
from tests.engine.operators.operator_cases import CASES, Case
from tests.engine.oracle.array import Array, from_torch
from tests.engine.oracle.by_verifier import DIRECT, source
from tests.engine.oracle.inexact import INEXACT, Real

SOURCES = ("state", "data", "schedule", "constant", "iota", "uniform")
UNIT = Fraction(1, 2**53)


def _rng(name: str) -> Random:
    return Random(f"tiebreak {name}")


def _type(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), DType.of(tensor.dtype))


def _layouts(inputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Each layout for all inputs at once: their product would say little more."""
    return [list(inputs) for inputs in zip(*(list(of.layouts(x))[:4] for x in inputs), strict=True)] + (
        [[list(of.layouts(x))[-1] for x in inputs]] if any(x.ndim == 4 for x in inputs) else []
    )


def _attributes(name: str, case: Case) -> dict[str, object]:
    return {**case.attributes, **({"slot": 0} if name == "store" else {})}


def test_every_operator_has_a_case_and_an_oracle() -> None:
    names = {name for name, operator in REGISTRY.items() if not isinstance(operator, Source)}
    assert set(CASES) == names
    assert {name for name in names if isinstance(REGISTRY[name], Direct)} == set(DIRECT)
    assert {name for name in names if isinstance(REGISTRY[name], Inexact)} == set(INEXACT)
    assert {name for name, operator in REGISTRY.items() if isinstance(operator, Source)} == set(SOURCES)


def _domain(name: str, case: Case) -> Case:
    """The functions are specified on their domain; outside of it a run stops (see test_functions)."""
    x = case.inputs[0]
    if name == "log":
        x = x.abs()
        return Case([torch.where(x == 0, 1.0, x)])
    if name == "log1p":
        return Case([torch.where(x > -1, x, 0.0)])
    return case


def promise(real: Real, terms: int | None = None) -> Fraction:
    """Largest error of any order of summation, with or without FMA: gamma_(n-1) times the sum of the magnitudes (Higham
    2002, section 4.2); each term is exact in FP64. `terms`: where not every order is possible, one more than the
    additions that a term can go through."""
    n = max((real.terms if terms is None else min(terms, real.terms)) - 1, 0) * UNIT
    return n / (1 - n) * real.magnitude


@pytest.mark.slow_cases("conv2d_grad_*")
@pytest.mark.parametrize("name", sorted(INEXACT))
def test_an_inexact_operator_keeps_its_bound_and_rounds_correctly(name: str) -> None:
    operator = REGISTRY[name]
    assert isinstance(operator, Inexact)
    decided = total = 0
    for raw in CASES[name](_rng(name)):
        case = _domain(name, raw)
        attributes = _attributes(name, case)
        shape, reals = INEXACT[name]([from_torch(x) for x in case.inputs], attributes)
        expected = [real.rounded for real in reals]
        declared = TensorType(shape, DType.F32)
        assert operator.infer([_type(x) for x in case.inputs], attributes, declared) == declared
        for inputs in _layouts(case.inputs):
            before = [from_torch(x) for x in inputs]
            y = operator.approximate(inputs, attributes)
            assert y.dtype == torch.float64 and tuple(y.shape) == shape
            d = operator.bound(inputs, attributes, y).whole(y)
            assert d.dtype == torch.float64 and bool((d >= 0).all())
            _check_bound(name, y, d.expand(y.shape), reals, case)
            low, high = (from_torch(end).items for end in round_interval(y, d))
            for i, (lo, hi, right) in enumerate(zip(low, high, expected, strict=True)):
                assert not ieee.less(right, lo) and not ieee.less(hi, right), (name, i, lo, hi, right, case)
                assert lo != hi or lo == right
                decided += lo == hi
            total += len(expected)
            everything = torch.arange(y.numel())
            assert list(from_torch(operator.exact(inputs, attributes, everything)).items) == expected, case
            some = torch.tensor([i for i in range(y.numel()) if i % 3 == 1], dtype=torch.int64)
            chosen = from_torch(operator.exact(inputs, attributes, some)).items
            assert list(chosen) == [expected[i] for i in some.tolist()]
            assert [from_torch(x) for x in inputs] == before, f"{name} writes to its inputs"
    assert decided > total // 2, f"the bound of {name} decides {decided} of {total}: it is of no use"


LOOK_AT_BITS = ("sum", "scatter_add", "matmul")
"""Operators whose bound is 0 where no order of summation can round: every partial sum is a multiple of the terms' unit
below 2^53 units, and so an FP64 number. Nowhere else may it be smaller than what any order may err by."""


def _check_bound(name: str, y: torch.Tensor, d: torch.Tensor, reals: list[Real], case: Case) -> None:
    terms = None
    if name == "conv2d_grad_input":
        # Summed over the outputs in any order, and then over the taps in any order.
        w = case.inputs[1]
        terms = w.shape[0] // case.attributes["groups"] + w.shape[2] * w.shape[3] - 1
    if name == "sum":
        # Summed in blocks of 256 in any order, and then over the blocks in any order; here there are not 256 of those.
        count = prod(case.inputs[0].shape[dim] for dim in case.attributes["dims"])
        assert count < 1 << 16
        terms = min(count, 256) + max(-(-count // 256) - 1, 0)
    for i, (value, bound, real) in enumerate(zip(y.reshape(-1).tolist(), d.reshape(-1).tolist(), reals, strict=True)):
        if value in (of.INFINITY, -of.INFINITY):
            # Only exp and expm1 pass the range of FP64, where every FP32 has long overflowed.
            assert abs(real.value) >= 2**1024 - 2**970 and bound == of.INFINITY
            continue
        assert abs(Fraction(value) - real.value) <= Fraction(bound), (name, i, value, bound, real, case)
        nothing_rounds = name in LOOK_AT_BITS and real.magnitude < 2**53 * real.unit
        least = Fraction(0) if nothing_rounds else promise(real, terms)
        assert least <= Fraction(bound), f"{name}: some summation order breaks the bound of element {i}"


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"])
def test_the_vendors_functions_use_less_than_half_of_their_bound(name: str) -> None:
    # More would be too near for comfort on machines that are not here.
    rng = Random(name)
    x = torch.tensor([of.any_finite(rng) for _ in range(600)] + [rng.uniform(-15, 15) for _ in range(600)])
    x = x[((x.abs() < 700) | (name in ("sin", "cos"))) & (x.abs() > 2.0**-140)]
    x = x.abs() if name == "log" else x[x > -1] if name == "log1p" else x
    operator = REGISTRY[name]
    assert isinstance(operator, Inexact)
    _, reals = INEXACT[name]([from_torch(x)], {})
    for value, y, real in zip(x.tolist(), operator.approximate([x], {}).tolist(), reals, strict=True):
        assert abs(Fraction(y) - real.value) <= abs(real.value) / 2**50 + Fraction(1, 2**1000), (value, y)


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["avx2", "default"])
def test_so_they_do_in_other_vectors(vectors: str) -> None:
    """The functions of torch are other code there."""
    chosen = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "vendors_functions"]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": vectors, "MKL_CBWR": "COMPATIBLE"}
    done = subprocess.run(chosen, capture_output=True, text=True, timeout=500, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]


def _inputs(**more: object) -> StepInputs:
    values: dict[str, object] = {
        "states": [torch.tensor([1.5])],
        "data": [torch.tensor([[1], [2]])],
        "schedule": torch.tensor([0.25, -3.0]),
        "seed": 2**63 + 5,
        "step": 3,
        "device": torch.device("cpu"),
    }
    return StepInputs(**{**values, **more})  # type: ignore[arg-type]


def _load(name: str, attributes: dict[str, object], kind: TensorType, **more: object) -> Array:
    source = REGISTRY[name]
    assert isinstance(source, Source)
    assert source.infer([], attributes, kind) == kind
    return from_torch(source.load(attributes, kind, _inputs(**more)))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 3), (2, 0), (65,)])
@pytest.mark.parametrize("stream", [0, 9, 2**32 - 1])
@pytest.mark.parametrize("step", [0, 3, 2**32 - 1])
def test_uniform_gives_the_oracles_bits(shape: of.Shape, stream: int, step: int) -> None:
    for seed in (0, 1, 2**64 - 1, 0x0123456789ABCDEF):
        loaded = _load("uniform", {"stream": stream}, TensorType(shape, DType.F32), seed=seed, step=step)
        assert loaded == source("uniform", {"stream": stream}, shape, "f32", seed, step)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_iota_gives_the_oracles_integers_to_the_edges_of_int64(count: int) -> None:
    edge = 2**63 - 1
    for start, step in product((0, -5, edge - 8, -edge - 1), (0, 1, 2, -3)):
        ends = start + step * max(count - 1, 0)
        if -edge - 1 <= ends <= edge:
            attributes = {"start": start, "step": step}
            expected = source("iota", attributes, (count,), "i64")
            assert _load("iota", dict(attributes), TensorType((count,), DType.I64)) == expected
    wide = {"start": -(2**63), "step": 2**62}
    assert _load("iota", dict(wide), TensorType((4,), DType.I64)) == source("iota", wide, (4,), "i64")
