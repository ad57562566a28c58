"""Inputs for the operators that sum products."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.program import DType

from tests.engine.operators import operands as of
from tests.engine.operators.operands import floats
from tests.engine.operators.operator_cases import Case, cases


def cancelling(rng: Random, a: torch.Tensor, b: torch.Tensor, axis_a: int, axis_b: int) -> None:
    """Make the second half of the sum undo the first, up to a last place or two: catastrophic cancellation."""
    half = a.shape[axis_a] // 2
    if half and a.shape[axis_a] == b.shape[axis_b]:
        a.narrow(axis_a, half, half).copy_(a.narrow(axis_a, 0, half))
        b.narrow(axis_b, half, half).copy_(-b.narrow(axis_b, 0, half))
        b.view(torch.int32).bitwise_xor_(torch.tensor(rng.choice((0, 1)), dtype=torch.int32))


@cases("matmul")
def _matmul(rng: Random) -> Iterator[Case]:
    for a, b in (
        ((1, 1), (1, 1)),
        ((3, 5), (5, 2)),
        ((1, 33), (33, 1)),
        ((13, 31), (31, 7)),
        ((2, 3, 4), (2, 4, 5)),
        ((3, 1, 7), (3, 7, 1)),
        ((2, 0), (0, 3)),
        ((0, 2), (2, 3)),
        ((3, 2), (2, 0)),
        ((0, 3, 2), (0, 2, 2)),
        ((2, 3, 0), (2, 0, 2)),
    ):
        for draw in of.FINITE:
            yield Case([floats(rng, a, draw), floats(rng, b, draw)])
        for draw in (of.normal, of.huge, of.tiny):
            x, y = floats(rng, a, draw), floats(rng, b, draw)
            cancelling(rng, x, y, len(a) - 1, len(b) - 2)
            yield Case([x, y])
    yield Case([floats(rng, (2, 300), of.huge), floats(rng, (300, 2), of.tiny)])


@cases("tensor_core_matmul")
def _tensor_core_matmul(rng: Random) -> Iterator[Case]:
    """Of every arithmetic and dtype: full groups and not, one segment and more, and what has no value."""
    shapes = [((3, 5), (5, 2)), ((2, 33), (33, 3)), ((2, 3, 16), (2, 16, 1)), ((1, 0), (0, 2)), ((0, 4), (4, 1))]
    for name, arithmetic in ARITHMETICS.items():
        for dtype in (one for one in (torch.bfloat16, torch.float16) if DType.of(one) in arithmetic.terms):
            for a, b in shapes:
                for draw in of.FINITE:
                    yield Case([floats(rng, x, draw).to(dtype) for x in (a, b)], {"arithmetic": name})
            x, y = floats(rng, (3, 48), of.normal), floats(rng, (48, 3), of.normal)
            cancelling(rng, x, y, 1, 0)
            yield Case([x.to(dtype), y.to(dtype)], {"arithmetic": name})
            for terms in (2048, 2050):
                long = [floats(rng, shape, of.normal).to(dtype) for shape in ((1, terms), (terms, 1))]
                yield Case(long, {"arithmetic": name})


GEOMETRIES = [
    # x, w, stride, padding, dilation, groups
    ((2, 3, 5, 4), (4, 3, 3, 2), (1, 1), (0, 0), (1, 1), 1),
    ((1, 4, 6, 7), (6, 2, 3, 3), (2, 1), (1, 2), (1, 1), 2),
    ((2, 2, 7, 6), (4, 1, 2, 3), (1, 3), (0, 1), (2, 2), 2),
    ((1, 3, 5, 5), (3, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((1, 1, 1, 1), (2, 1, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((1, 2, 2, 3), (1, 2, 1, 1), (2, 2), (3, 0), (1, 1), 1),
    ((1, 1, 8, 8), (1, 1, 2, 2), (5, 4), (0, 0), (3, 1), 1),
    ((3, 2, 4, 1), (2, 2, 4, 1), (1, 1), (0, 0), (1, 1), 1),
]


def _convolutions(rng: Random) -> Iterator[tuple[tuple[of.Shape, of.Shape, of.Shape], dict[str, object], object]]:
    for x, w, stride, padding, dilation, groups in GEOMETRIES:
        out = tuple((x[2 + a] + 2 * padding[a] - dilation[a] * (w[2 + a] - 1) - 1) // stride[a] + 1 for a in (0, 1))
        attributes = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        for draw in of.FINITE:
            yield (x, w, (x[0], w[0], *out)), attributes, draw


@cases("conv2d")
def _conv2d(rng: Random) -> Iterator[Case]:
    for (x, w, _), attributes, draw in _convolutions(rng):
        yield Case([floats(rng, x, draw), floats(rng, w, draw)], attributes)
        if draw is of.huge and x[1] > 1:
            a, b = floats(rng, x, draw), floats(rng, w, draw)
            cancelling(rng, a, b, 1, 1)
            yield Case([a, b], attributes)


@cases("conv2d_grad_input")
def _conv2d_grad_input(rng: Random) -> Iterator[Case]:
    for (x, w, g), attributes, draw in _convolutions(rng):
        yield Case([floats(rng, g, draw), floats(rng, w, draw)], {**attributes, "size": x[2:]})
        if draw is of.huge and w[0] > 1:
            a, b = floats(rng, g, draw), floats(rng, w, draw)
            cancelling(rng, a, b, 1, 0)
            yield Case([a, b], {**attributes, "size": x[2:]})


@cases("conv2d_grad_weight")
def _conv2d_grad_weight(rng: Random) -> Iterator[Case]:
    for (x, w, g), attributes, draw in _convolutions(rng):
        yield Case([floats(rng, g, draw), floats(rng, x, draw)], {**attributes, "size": w[2:]})
        if draw is of.huge and x[0] > 1:
            a, b = floats(rng, g, draw), floats(rng, x, draw)
            cancelling(rng, a, b, 0, 0)
            yield Case([a, b], {**attributes, "size": w[2:]})
