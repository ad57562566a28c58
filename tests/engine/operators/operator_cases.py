"""Inputs for every operator of the registry, by name. A new operator without cases fails the tests, unless it works
element by element: then it has those of others with its signature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any

import torch
from roundlog.definitions import Family, OperatorDefinition, of_family
from roundlog.program import DType

from tests.engine.operators import operands as of
from tests.engine.operators.operands import booleans, floats, integers


@dataclass(frozen=True)
class Case:
    inputs: list[torch.Tensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)


CASES: dict[str, Callable[[Random], Iterator[Case]]] = {}


def cases(*names: str) -> Callable[[Callable[[Random], Iterator[Case]]], Callable[[Random], Iterator[Case]]]:
    def note(generator: Callable[[Random], Iterator[Case]]) -> Callable[[Random], Iterator[Case]]:
        for name in names:
            assert name not in CASES
            CASES[name] = generator
        return generator

    return note


def dtypes(one: OperatorDefinition) -> set[DType | None]:
    """Dtypes that an operator is defined for, by its first input."""
    return {each.inputs[0] for each in one.formats}


def _mixed(rng: Random) -> float:
    """Anything that an exact operator may meet: every finite number, and infinities."""
    if rng.random() < 0.05:
        return rng.choice((of.INFINITY, -of.INFINITY))
    return rng.choice(of.FINITE)(rng)


INT64_CORNERS = [0, 1, -1, 2**62, -(2**62), 2**63 - 1, -(2**63), 2**63 - 2, -(2**63) + 1, 3, -7, 2**32]

# Odd lengths leave a tail behind the vector instructions; (77,) and () meet as vector and scalar.
BROADCASTS: list[tuple[of.Shape, of.Shape]] = [
    ((), ()),
    ((77,), (77,)),
    ((77,), ()),
    ((), (5,)),
    ((1,), (33,)),
    ((3, 1), (1, 4)),
    ((2, 3, 5), (3, 1)),
    ((2, 0), (1, 1)),
    ((0,), ()),
    ((1, 1, 1), (1,)),
]


def _binary(rng: Random) -> Iterator[Case]:
    edge = torch.tensor([*of.CORNERS, of.INFINITY, -of.INFINITY], dtype=torch.float32)
    yield Case([edge[:, None], edge[None, :]])
    for scalar in (0.0, -0.0, 3.0, 0.1, of.TINIEST, of.LARGEST):
        yield Case([edge, torch.tensor(scalar)])
        yield Case([torch.tensor(scalar), edge])
    for draw in of.FINITE:
        yield Case([floats(rng, (101,), draw), floats(rng, (101,), draw)])
    for a, b in BROADCASTS:
        yield Case([floats(rng, a, _mixed), floats(rng, b, _mixed)])


def _unary(rng: Random) -> Iterator[Case]:
    yield Case([torch.tensor([*of.CORNERS, of.INFINITY], dtype=torch.float32)])
    for draw in of.FINITE:
        yield Case([floats(rng, (131,), draw).abs()])
    for shape in ((), (0,), (2, 0, 3), (1, 1), (3, 5, 2)):
        yield Case([floats(rng, shape, of.normal)])


@cases("neg", "abs")
def _signs(rng: Random) -> Iterator[Case]:
    yield from _unary(rng)
    yield Case([torch.tensor([-of.INFINITY])])
    yield Case([torch.tensor(INT64_CORNERS)])


def integer_pairs(rng: Random) -> Iterator[Case]:
    edge = torch.tensor(INT64_CORNERS)
    yield Case([edge[:, None], edge[None, :]])
    yield Case([integers(rng, (77,), -(2**63), 2**63), integers(rng, (77,), -(2**63), 2**63)])
    for a, b in BROADCASTS:
        yield Case([integers(rng, a, -9, 9), integers(rng, b, -9, 9)])


TAKES_INTEGERS = [one.name for one in of_family(Family.MAP) if one.arity == 2 and dtypes(one) >= {DType.F32, DType.I64}]
"""Elementwise operators that have a second set of cases: `integer_pairs`."""


def _logical(rng: Random) -> Iterator[Case]:
    for a, b in BROADCASTS:
        yield Case([booleans(rng, a), booleans(rng, b)])


def _boolean(rng: Random) -> Iterator[Case]:
    for shape in ((), (77,), (2, 0), (3, 5)):
        yield Case([booleans(rng, shape)])


@cases("to_f32", "to_bf16", "to_f16")
def _to_number(rng: Random) -> Iterator[Case]:
    yield from _boolean(rng)
    yield Case([torch.tensor(INT64_CORNERS)])
    hard = []
    for exponent in range(24, 63):
        # Halfway between two FP32 numbers, and one beside it: those beyond 2^53 do not survive a detour through FP64.
        unit = 1 << max(exponent - 23, 0)
        for odd in (0, 1):
            middle = (1 << exponent) + odd * unit + unit // 2
            hard += [sign * (middle + off) for sign in (1, -1) for off in (-1, 0, 1)]
    yield Case([torch.tensor([*hard, 2**63 - 1, -(2**63), 2**63 - 2**38, 2**63 - 2**38 - 1])])
    yield Case([torch.tensor([rng.choice((1, -1)) * rng.getrandbits(rng.randrange(1, 64)) for _ in range(200)])])


for _one in of_family(Family.MAP):
    if _one.name not in CASES and _one.name != "where":
        _of_numbers, _of_bools = ((_unary, _boolean), (_binary, _logical))[_one.arity - 1]
        CASES[_one.name] = _of_numbers if DType.F32 in dtypes(_one) else _of_bools


def _tensors(rng: Random, shape: of.Shape) -> list[torch.Tensor]:
    """One of each dtype; FP32 with every kind of bits, NaN among them, since movement copies bits."""
    bits = torch.tensor([rng.getrandbits(32) - 2**31 for _ in range(_numel(shape))], dtype=torch.int32)
    return [
        bits.view(torch.float32).reshape(shape),
        integers(rng, shape, -(2**63), 2**63),
        booleans(rng, shape),
    ]


def _numel(shape: of.Shape) -> int:
    return int(torch.Size(shape).numel())


@cases("reshape")
def _reshape(rng: Random) -> Iterator[Case]:
    for before, after in (
        ((2, 3, 4), (4, 6)),
        ((24,), (2, 3, 4)),
        ((), (1, 1)),
        ((1,), ()),
        ((0, 3), (5, 0)),
        ((2, 3), (2, 3)),
    ):
        for x in _tensors(rng, before):
            yield Case([x], {"shape": after})


@cases("permute")
def _permute(rng: Random) -> Iterator[Case]:
    for shape, dims in (((2, 3, 4), (2, 0, 1)), ((2, 3), (1, 0)), ((), ()), ((3, 0, 2), (1, 2, 0)), ((5,), (0,))):
        for x in _tensors(rng, shape):
            yield Case([x], {"dims": dims})


@cases("expand")
def _expand(rng: Random) -> Iterator[Case]:
    for shape, wide in (
        ((), (3,)),
        ((), ()),
        ((1, 3), (4, 3)),
        ((3, 1), (2, 3, 5)),
        ((1,), (0,)),
        ((2, 0), (3, 2, 0)),
    ):
        for x in _tensors(rng, shape):
            yield Case([x], {"shape": wide})


@cases("slice")
def _slice(rng: Random) -> Iterator[Case]:
    for x in _tensors(rng, (7, 3)):
        for start, stop, step in ((0, 7, 1), (1, 6, 2), (3, 3, 1), (7, 7, 5), (0, 7, 9), (2, 7, 2**63 - 1)):
            yield Case([x], {"dim": 0, "start": start, "stop": stop, "step": step})
        yield Case([x], {"dim": 1, "start": 1, "stop": 3, "step": 2})
    yield Case([floats(rng, (2, 0), of.normal)], {"dim": 1, "start": 0, "stop": 0, "step": 3})


@cases("flip")
def _flip(rng: Random) -> Iterator[Case]:
    for shape, dim in (((5,), 0), ((2, 3, 4), 1), ((2, 0), 1), ((1, 3), 0)):
        for x in _tensors(rng, shape):
            yield Case([x], {"dim": dim})


@cases("cat")
def _cat(rng: Random) -> Iterator[Case]:
    for shapes, dim in (
        ([(2, 3), (1, 3), (0, 3)], 0),
        ([(2, 3), (2, 0), (2, 5)], 1),
        ([(4,)], 0),
        ([(0,), (0,)], 0),
        ([(1, 1, 2)] * 5, 1),
    ):
        for parts in zip(*(_tensors(rng, shape) for shape in shapes), strict=True):
            yield Case(list(parts), {"dim": dim})


@cases("pad")
def _pad(rng: Random) -> Iterator[Case]:
    for shape, low, high in (
        ((2, 3), (1, 0), (0, 2)),
        ((2, 3), (0, 0), (0, 0)),
        ((), (), ()),
        ((0, 2), (1, 1), (2, 0)),
        ((3,), (4,), (5,)),
    ):
        for x, fill in zip(_tensors(rng, shape), _tensors(rng, ()), strict=True):
            yield Case([x, fill], {"low": low, "high": high})


@cases("where")
def _where(rng: Random) -> Iterator[Case]:
    for c, a, b in (
        ((77,), (77,), (77,)),
        ((), (5,), (5,)),
        ((5,), (), ()),
        ((3, 1), (1, 4), (2, 1, 1)),
        ((2, 0), (1, 1), (1,)),
        ((9,), (9,), ()),
    ):
        for x, y in zip(_tensors(rng, a), _tensors(rng, b), strict=True):
            yield Case([booleans(rng, c), x, y])
    zeros = torch.tensor([0.0, -0.0, of.INFINITY, -of.INFINITY])
    yield Case([torch.tensor([True, False, True, False]), zeros, -zeros])


@cases("gather")
def _gather(rng: Random) -> Iterator[Case]:
    for shape, dim, count in (((5,), 0, 9), ((3, 4), 1, 2), ((3, 4), 0, 7), ((2, 1, 3), 1, 4), ((2, 3), 1, 0)):
        index = integers(rng, (*shape[:dim], count, *shape[dim + 1 :]), 0, shape[dim])
        for x in _tensors(rng, shape):
            yield Case([x, index], {"dim": dim})
    yield Case([floats(rng, (0, 3), of.normal), integers(rng, (0, 3), 0, 1)], {"dim": 1})


@cases("take")
def _take(rng: Random) -> Iterator[Case]:
    for shape, wanted in (((5,), (3, 2)), ((4, 3), (7,)), ((4, 2, 2), ()), ((3, 0), (2,)), ((3, 2), (0, 4))):
        for x in _tensors(rng, shape):
            yield Case([x, integers(rng, wanted, 0, shape[0])])


REDUCED: list[of.Shape] = [(), (1,), (7,), (130,), (3, 5), (5, 67), (2, 3, 4), (4, 1, 3), (1, 3, 1, 2)]


def _dims(rank: int) -> list[of.Shape]:
    return [dims for k in range(rank + 1) for dims in combinations(range(rank), k)]


@cases("amax", "amin")
def _extreme(rng: Random) -> Iterator[Case]:
    for shape in REDUCED:
        for dims in _dims(len(shape)):
            yield Case([floats(rng, shape, _mixed)], {"dims": dims})
            yield Case([floats(rng, shape, lambda r: r.choice((0.0, -0.0, 0.0, -1.0)))], {"dims": dims})
    yield Case([floats(rng, (0, 3), of.normal)], {"dims": (1,)})
    for zeros in ((0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0), (-0.0,)):
        yield Case([torch.tensor(zeros)], {"dims": (0,)})
        yield Case([torch.tensor(zeros)], {"dims": ()})


@cases("argmax")
def _argmax(rng: Random) -> Iterator[Case]:
    for shape in REDUCED:
        for dim in range(len(shape)):
            yield Case([floats(rng, shape, lambda r: r.choice((1.0, 2.0, 0.0, -0.0)))], {"dim": dim})
            yield Case([floats(rng, shape, _mixed)], {"dim": dim})
    for line in ((0.0, -0.0), (-0.0, 0.0), (-of.INFINITY, -of.INFINITY), (1.0, of.INFINITY, of.INFINITY)):
        yield Case([torch.tensor(line)], {"dim": 0})
    yield Case([torch.full((300,), 2.0)], {"dim": 0})
    yield Case([floats(rng, (0, 3), of.normal)], {"dim": 1})


@cases("sum_i64")
def _sum_i64(rng: Random) -> Iterator[Case]:
    for shape in (*REDUCED, (0, 3)):
        for dims in _dims(len(shape)):
            yield Case([integers(rng, shape, -(2**63), 2**63)], {"dims": dims})


@cases("any")
def _any(rng: Random) -> Iterator[Case]:
    for shape in (*REDUCED, (0, 3)):
        for dims in _dims(len(shape)):
            yield Case([booleans(rng, shape) & booleans(rng, shape)], {"dims": dims})


@cases("max_pool_index")
def _max_pool_index(rng: Random) -> Iterator[Case]:
    for shape, kernel, stride, padding, dilation in (
        ((2, 3, 6, 5), (2, 2), (2, 2), (0, 0), (1, 1)),
        ((1, 2, 7, 7), (3, 2), (2, 1), (1, 1), (1, 1)),
        ((1, 1, 9, 8), (3, 3), (1, 2), (1, 0), (2, 3)),
        ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
        ((1, 1, 2, 2), (2, 2), (3, 3), (1, 1), (1, 2)),
        ((1, 19, 4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    ):
        attributes = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
        for draw in (
            of.normal,
            _mixed,
            lambda r: r.choice((0.0, -0.0)),
            lambda r: r.choice((1.0, 2.0)),
            lambda r: -of.INFINITY,
            lambda r: -of.LARGEST,
        ):
            yield Case([floats(rng, shape, draw)], attributes)


@cases("sum")
def _sum(rng: Random) -> Iterator[Case]:
    for shape in (*REDUCED, (0,), (0, 3), (3, 0), (2, 0, 3)):
        for dims in _dims(len(shape)):
            for draw in rng.sample(of.FINITE, 3):
                yield Case([floats(rng, shape, draw)], {"dims": dims})
    for draw in of.FINITE:
        yield Case([floats(rng, (3, 257), draw)], {"dims": (1,)})
        yield Case([floats(rng, (257, 3), draw)], {"dims": (0,)})


@cases("scatter_add")
def _scatter_add(rng: Random) -> Iterator[Case]:
    for shape, narrow, dim, size in (
        ((40,), (40,), 0, 3),
        ((3, 20), (3, 20), 1, 4),
        ((20, 3), (20, 1), 0, 4),
        ((2, 9, 2), (1, 9, 1), 1, 2),
        ((5,), (5,), 0, 20),
        ((0,), (0,), 0, 3),
        ((2, 0), (2, 0), 1, 3),
        ((2, 0), (2, 1), 0, 3),
        ((0, 2), (0, 2), 0, 0),
    ):
        for draw in of.FINITE:
            index = integers(rng, narrow, 0, max(size, 1))
            yield Case([floats(rng, shape, draw), index], {"dim": dim, "size": size})


@cases("loss", "store")
def _identity(rng: Random) -> Iterator[Case]:
    yield Case([floats(rng, (), of.normal)])


@cases("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos")
def _function(rng: Random) -> Iterator[Case]:
    yield Case([torch.tensor(of.CORNERS, dtype=torch.float32)])
    for draw in of.FINITE:
        yield Case([floats(rng, (67,), draw)])
    # Where the results live: around overflow, underflow and saturation.
    for low, high in ((-110, -80), (80, 95), (-20, 20), (-(2.0**-12), 2.0**-12), (0.5, 2.0), (-1.0, 0.0)):
        yield Case([floats(rng, (67,), lambda r, a=low, b=high: r.uniform(a, b))])
    powers = [sign * 2.0**e for e in range(-149, 8) for sign in (1, -1)]
    yield Case([torch.tensor(powers, dtype=torch.float32)])
    for shape in ((), (0, 2), (1, 1), (3, 5)):
        yield Case([floats(rng, shape, of.normal)])
