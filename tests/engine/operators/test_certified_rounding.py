"""Sums on a tie, and beside one by less than FP64 can see, hidden in every operator that sums: what the bound calls
certain is right, what it calls ambiguous is decided exactly, and no order of summation steps over the bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import round_interval
from roundlog.operators import REGISTRY, Inexact

from tests.engine.operators import operands as of
from tests.engine.operators.test_every_operator import promise
from tests.engine.oracle.array import from_torch
from tests.engine.oracle.inexact import INEXACT, Real

Pair = tuple[float, float]


@dataclass(frozen=True)
class Sum:
    """An operator, and how to make element 0 of its output the sum of given products."""

    name: str
    inputs: Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]
    attributes: Callable[[int], dict[str, object]]
    products: bool = True
    """Whether it sums products; else the second factors are ones."""


def _geometry(groups: int = 1, **more: object) -> dict[str, object]:
    return {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": groups, **more}


def _beside(x: torch.Tensor, other: float) -> torch.Tensor:
    """A second row of other numbers: blocked kernels treat a matrix unlike a vector."""
    return torch.stack([x, torch.full_like(x, other)])


SUMS = [
    Sum("sum", lambda a, b: [a], lambda k: {"dims": (0,)}, products=False),
    Sum("sum", lambda a, b: [_beside(a, 0.5)], lambda k: {"dims": (1,)}, products=False),
    Sum("sum", lambda a, b: [_beside(a, 0.5).T], lambda k: {"dims": (0,)}, products=False),
    Sum(
        "scatter_add",
        lambda a, b: [a, torch.zeros(len(a), dtype=torch.int64)],
        lambda k: {"dim": 0, "size": 2},
        products=False,
    ),
    Sum("matmul", lambda a, b: [a[None, :], b[:, None]], lambda k: {}),
    Sum("matmul", lambda a, b: [_beside(a, 3.0), _beside(b, -1.0).T], lambda k: {}),
    Sum("matmul", lambda a, b: [_beside(a, 1.0)[:, None], _beside(b, 1.0)[..., None]], lambda k: {}),
    Sum("conv2d", lambda a, b: [a.reshape(1, -1, 1, 1), b.reshape(1, -1, 1, 1)], lambda k: _geometry()),
    Sum("conv2d", lambda a, b: [a.reshape(1, 1, 1, -1), b.reshape(1, 1, 1, -1)], lambda k: _geometry()),
    Sum(
        "conv2d_grad_input",
        lambda a, b: [a.reshape(1, -1, 1, 1), b.reshape(-1, 1, 1, 1)],
        lambda k: _geometry(size=(1, 1)),
    ),
    Sum(
        "conv2d_grad_input",
        lambda a, b: [torch.cat([a[:-1], a[-1:]]).reshape(1, 1, -1, 1), b.flip(0).reshape(1, 1, -1, 1)],
        lambda k: {**_geometry(size=(1, 1)), "padding": (k - 1, 0)},
    ),
    Sum(
        "conv2d_grad_weight",
        lambda a, b: [a.reshape(-1, 1, 1, 1), b.reshape(-1, 1, 1, 1)],
        lambda k: _geometry(size=(1, 1)),
    ),
    Sum(
        "conv2d_grad_weight",
        lambda a, b: [a.reshape(1, 1, 1, -1), b.reshape(1, 1, 1, -1)],
        lambda k: _geometry(size=(1, 1)),
    ),
]
IDS = [f"{s.name}-{i}" for i, s in enumerate(SUMS)]

TIES: list[list[Pair]] = [
    [(1.0, 1.0), (2.0**-24, 1.0)],
    [(1 + 2.0**-23, 1.0), (2.0**-12, 2.0**-12)],
    [(-1.0, 1.0), (-(2.0**-24), 1.0)],
    [(1.0, 1.0), (-(2.0**-25), 1.0)],
    [(3.0, 2.0**60), (2.0**37, 1.0)],
    [(of.LARGEST, 1.0), (2.0**103, 1.0)],
    [(-of.LARGEST, 1.0), (-(2.0**103), 1.0)],
    [(2.0**127, 2.0), (-(2.0**103), 1.0)],
    [(of.TINIEST, 1.0), (of.TINIEST, 0.5)],
    [(2.0**-75, 2.0**-75)],
    [(2.0**-126, 1.0), (-(2.0**-75), 2.0**-75)],
    [(0.0, 1.0)],
]
NUDGES: list[Pair] = [
    (0.0, 0.0),
    (2.0**-40, 2.0**-20),
    (2.0**-60, 2.0**-60),
    (of.TINIEST, 1.0),
    (of.TINIEST, of.TINIEST),
]
CANCELLED: list[Pair] = [(0.0, 1.0), (7.0, 1.0), (2.0**60, 2.0**20), (of.LARGEST, of.LARGEST), (of.LARGEST, 1.0)]


def _attack(summing: Sum, pairs: list[Pair]) -> tuple[bool, int]:
    """Hold one sum against the oracle. Whether the bound was certain of it, and its correct rounding."""
    a, b = (torch.tensor(side, dtype=torch.float32) for side in zip(*pairs, strict=True))
    operator = REGISTRY[summing.name]
    assert isinstance(operator, Inexact)
    inputs, attributes = summing.inputs(a, b), summing.attributes(len(pairs))
    _, reals = INEXACT[summing.name]([from_torch(x) for x in inputs], attributes)
    assert reals[0].value == sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(0))
    y = operator.approximate(inputs, attributes)
    d = operator.bound(inputs, attributes, y).whole(y)
    assert abs(Fraction(float(y.reshape(-1)[0])) - reals[0].value) <= Fraction(float(d.reshape(-1)[0]))
    for scale in (1.0, 4.0):
        low, high = (from_torch(end).items[0] for end in round_interval(y, d, scale))
        assert not ieee.less(reals[0].rounded, low) and not ieee.less(high, reals[0].rounded)
        certain = low == high
    exact = operator.exact(inputs, attributes, torch.arange(y.numel()))
    assert list(from_torch(exact).items) == [real.rounded for real in reals]
    return certain, reals[0].rounded


def _ones(summing: Sum, pairs: list[Pair]) -> list[Pair] | None:
    """The pairs as the operator can take them: products that are no FP32 numbers stay out of plain sums."""
    if summing.products:
        return pairs
    plain = [a * b for a, b in pairs]
    return [(x, 1.0) for x in plain] if all(abs(x) <= of.LARGEST and x % of.TINIEST == 0 for x in plain) else None


@pytest.mark.slow_cases("matmul-5", "matmul-6", "conv2d-8", "conv2d_grad_*")
@pytest.mark.parametrize("summing", SUMS, ids=IDS)
def test_a_sum_on_a_tie_or_beside_it_is_never_certain_and_always_right(summing: Sum) -> None:
    rng = Random(summing.name)
    seen = 0
    for tie in TIES:
        for nudge in NUDGES:
            for sign in (1, -1):
                for big, factor in CANCELLED:
                    pairs = _ones(summing, [*tie, (sign * nudge[0], nudge[1]), (big, factor), (-big, factor)])
                    if pairs is None:
                        continue
                    rng.shuffle(pairs)
                    certain, rounded = _attack(summing, pairs)
                    seen += 1
                    on_a_tie = nudge[0] * nudge[1] < 2.0**-100 and tie != [(0.0, 1.0)] and len(tie) > 1
                    assert not (certain and on_a_tie), f"{pairs} lies on a tie, and the bound claims {rounded:#x}"
    assert seen > 200


@pytest.mark.parametrize("summing", SUMS, ids=IDS)
@given(data=st.data())
@settings(max_examples=20)
def test_any_sum_of_any_operator_is_right(summing: Sum, data: st.DataObject) -> None:
    number = st.one_of(st.sampled_from(of.CORNERS), st.integers(0, 2**32 - 1).filter(ieee.is_finite).map(of.f32))
    pairs = data.draw(
        st.lists(st.tuples(number, number if summing.products else st.just(1.0)), min_size=1, max_size=24)
    )
    if data.draw(st.booleans()):
        # Undo almost all of it.
        pairs = [*pairs, *((-a, b) for a, b in pairs), (data.draw(number), 1.0)]
        data.draw(st.randoms(use_true_random=False)).shuffle(pairs)
    _attack(summing, pairs)


def _fused(accumulator: float, a: float, b: float) -> float:
    """IEEE 754's fusedMultiplyAdd in binary64: Python divides integers with one correct rounding."""
    return float(Fraction(accumulator) + Fraction(a) * Fraction(b))


def _any_order(pairs: list[Pair], rng: Random) -> float:
    """Sum in FP64 in a random tree; each leaf is a run of products, added one by one, sometimes fused."""
    order = rng.sample(pairs, len(pairs))
    cuts = sorted(rng.sample(range(1, len(order)), rng.randrange(len(order)))) if len(order) > 1 else []
    partial = []
    for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True):
        total = 0.0
        for a, b in order[start:stop]:
            total = _fused(total, a, b) if rng.random() < 0.5 else total + a * b
        partial.append(total)
    while len(partial) > 1:
        i = rng.randrange(len(partial) - 1)
        partial[i : i + 2] = [partial[i] + partial[i + 1]]
    return partial[0]


@given(
    st.lists(st.tuples(st.sampled_from(of.CORNERS), st.sampled_from(of.CORNERS)), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
@settings(max_examples=100)
def test_no_order_of_summation_steps_over_the_bound(pairs: list[Pair], rng: Random) -> None:
    terms = [Fraction(a) * Fraction(b) for a, b in pairs]
    exact = sum(terms, Fraction(0))
    real = Real(exact, sum(term != 0 for term in terms), sum(map(abs, terms), Fraction(0)))
    a, b = (torch.tensor(side, dtype=torch.float32) for side in zip(*pairs, strict=True))
    bounds = []
    for summing in SUMS:
        if summing.products:
            operator = REGISTRY[summing.name]
            assert isinstance(operator, Inexact)
            inputs, attributes = summing.inputs(a, b), summing.attributes(len(pairs))
            y = operator.approximate(inputs, attributes)
            d = operator.bound(inputs, attributes, y).whole(y)
            bounds.append(Fraction(float(d.reshape(-1)[0])))
    # Where a bound is 0, no order rounds.
    allowed = min([promise(real), *(bound for bound in bounds if not bound)])
    assert all(allowed <= bound for bound in bounds)
    for _ in range(3):
        assert abs(Fraction(_any_order(pairs, rng)) - exact) <= allowed


@pytest.mark.parametrize("n", [2, 3, 100, 3000])
def test_the_worst_order_of_all_comes_to_the_edge_of_the_bound_and_not_over_it(n: int) -> None:
    # 1 + u + u + ...: added from the left, every addition loses a whole u, as many as there are: those of the first
    # block of 256, and one for every other block, which has one u.
    terms = torch.zeros(n)
    terms[:256] = terms[256::256] = 2.0**-53
    terms[0] = 1.0
    total = 0.0
    for block in terms.split(256):
        of_block = 0.0
        for term in block.tolist():
            of_block += term
        total += of_block
    assert total == 1.0
    lost = (min(n, 256) - 1 + -(-n // 256) - 1) * Fraction(1, 2**53)
    operator = REGISTRY["sum"]
    assert isinstance(operator, Inexact)
    y = operator.approximate([terms], {"dims": (0,)})
    bound = Fraction(float(operator.bound([terms], {"dims": (0,)}, y).whole(y)))
    assert lost <= bound <= lost * (1 + Fraction(1, 2**18)) * (1 + lost)


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
