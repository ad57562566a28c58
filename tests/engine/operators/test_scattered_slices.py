"""Sums of few slices among many are what they are when all slices are computed: values, marks and bounds."""

from __future__ import annotations

import pytest
import torch
from roundlog.operators import Inexact, operator
from roundlog.rounding import Recorder

SHAPES = {
    "rows": ((60, 33), 0, 500),
    "a vector": ((60,), 0, 500),
    "an axis in the middle": ((3, 60, 5), 1, 400),
    "the last axis": ((4, 60), 1, 300),
    "many slices": ((60, 7), 0, 40),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("outside", [False, True])
def test_few_slices_among_many_are_the_same(name: str, outside: bool) -> None:
    size, dim, places = SHAPES[name]
    torch.manual_seed(len(name))
    # Sums of several terms, ties among them, and sums that cancel.
    x = torch.randn(size) * 2.0 ** torch.randint(-12, 12, size)
    x[x.abs() < 0.5] = 2.0**-24
    index = torch.randint(0, 20, (60,)) * (places // 20)
    if outside:
        index[::7], index[1::7] = -3, places + 4
    shape = [1] * len(size)
    shape[dim] = 60
    op, inputs, attributes = operator("scatter_add"), [x, index.reshape(shape)], {"dim": dim, "size": places}
    expected, near = Inexact.certify(op, inputs, attributes, 2.0**28)
    rounded, marked = op.certify(inputs, attributes, 2.0**28)
    assert rounded.shape == expected.shape
    assert len(marked.indices)
    assert torch.equal(marked.indices, near.indices)
    assert torch.equal(marked.d, near.d)
    assert bool(((marked.y - near.y).abs() <= 2 * near.d).all())
    expected.view(-1)[near.indices] = rounded.view(-1)[near.indices] = 0.0
    assert torch.equal(rounded.view(torch.int32), expected.view(torch.int32))
    exact = op.exact(inputs, attributes, torch.arange(expected.numel()))
    assert torch.equal(Recorder(4).round(0, op, inputs, attributes).reshape(-1), exact)


def test_nothing_is_placed_anywhere() -> None:
    index = torch.full((4, 1), 100)
    rounded, marked = operator("scatter_add").certify([torch.ones(4, 3), index], {"dim": 0, "size": 50}, 4.0)
    assert rounded.shape == (50, 3) and not rounded.any() and not len(marked.indices)
