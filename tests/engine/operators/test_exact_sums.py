"""Sums: nothing is in doubt where FP64 adds exactly, long ones are in doubt by the blocks that they are added up in,
and those of few slices among many are what they are when all slices are computed."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from roundlog.kernels import reducing
from roundlog.number_format import FLOAT32, narrow_float32
from roundlog.operators import Inexact, Summation, operator
from roundlog.operators import summation as sum_bounds
from roundlog.operators.summation import BLOCK_TERMS, InParts, parts_keep_chain, sum_depth, sum_gamma
from roundlog.rounding import Follower, Recorder, certify


def summation(name: str) -> Summation:
    op = operator(name)
    assert isinstance(op, Summation)
    return op


def bounds(x: torch.Tensor, dims: tuple[int, ...]) -> np.ndarray:
    y, bound = summation("sum").evaluate([x], {"dims": dims})
    return bound.whole(y).numpy().reshape(-1)


def test_loops_add_up_in_the_blocks_that_the_bound_counts() -> None:
    assert reducing._BLOCK == BLOCK_TERMS


@pytest.mark.parametrize(("dims", "bits"), [((0,), 32), ((1,), 25)])
def test_ties_that_fp64_adds_exactly_are_rounded_and_not_logged(dims: tuple[int, ...], bits: int) -> None:
    rng = np.random.default_rng(0)
    place = 2.0 ** (8 - bits)
    x = rng.integers(-8, 9, (300, 257)).astype(np.float32)
    x[:, 0], x[:, 1] = 1, place
    x[:, 2:] = x[:, 2:] - x[:, :1:-1]  # what is left is 1 + place, a tie
    x = torch.from_numpy(x if dims == (1,) else np.ascontiguousarray(x.T))
    assert (bounds(x, dims) == 0).all()
    recorder, kind = Recorder(4), narrow_float32(bits)
    rounded = recorder.round(0, summation("sum"), [x], {"dims": dims}, kind)
    assert (rounded == 1).all() and not recorder.take()
    follower = Follower.without_log(4)
    assert torch.equal(follower.round(0, summation("sum"), [x], {"dims": dims}, kind), rounded)


@pytest.mark.parametrize("k", [1, 2, 255, 256, 257, 700])
def test_a_bound_of_zero_is_given_only_where_every_partial_sum_is_an_fp64_number(k: int) -> None:
    """From one last place below what FP64 holds to one above it."""
    for place in range(-32, -20):
        x = np.full((1, k), np.float32(2.0**28))
        x[0, -1] = np.float32(1.0 + 2.0**-23) * np.float32(2.0 ** (place + 23)) if k > 1 else 1
        total = sum((Fraction(float(v)) for v in x[0]), Fraction(0))
        (d,) = bounds(torch.from_numpy(x), (1,))
        fits = k == 1 or total < Fraction(2) ** (53 + place)
        assert (d == 0) == fits
        y = float(summation("sum").approximate([torch.from_numpy(x)], {"dims": (1,)}))
        assert abs(Fraction(y) - total) <= Fraction(float(d))


@pytest.mark.slow
def test_every_kernel_finds_the_same_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, columns, and torch, for other devices: otherwise one would look where another has logged nothing."""
    rng = np.random.default_rng(1)
    for k in (3, 256, 257, 1000, 70_000):
        x = np.ldexp(rng.integers(-9, 10, (6, k)), rng.integers(-20, 21, (6, 1))).astype(np.float32)
        x[3:] = np.ldexp(rng.standard_normal((3, k)), rng.integers(-40, 40, (3, k)))
        rows, lines = torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(x.T))
        around = torch.from_numpy(np.ascontiguousarray(x.reshape(6, 1, k).transpose(1, 0, 2)))
        found = [bounds(rows, (1,)), bounds(lines, (0,)), bounds(around, (0, 2))]
        y, measures = sum_bounds.sum_by_torch(rows, (1,))
        found.append(summation("sum").bound_of(measures, k).whole(y).numpy().reshape(-1))
        with monkeypatch.context() as patch:
            patch.setattr(sum_bounds, "bound_sums", bound_by_torch)
            found.append(bounds(rows, (1,)))
        for other in found[1:]:
            assert np.array_equal(found[0] == 0, other == 0)
            assert np.allclose(found[0], other, rtol=1e-12, atol=0)
        exact = [sum(map(Fraction, row.tolist()), Fraction(0)) for row in x.astype(np.float64)]
        for value, total, d in zip(y.reshape(-1).tolist(), exact, found[3].tolist(), strict=True):
            assert abs(Fraction(value) - total) <= Fraction(d)


@pytest.mark.parametrize("shape", [(6, 300), (3, 6, 256), (5, 6, 700), (300, 6, 1)])
def test_one_loop_rounds_and_marks_sums_as_their_bounds_say(shape: tuple[int, ...]) -> None:
    """Over what lies before and behind a middle axis, cut into blocks wherever runs end; ties, infinities and NaN."""
    rng = np.random.default_rng(len(shape) + shape[-1])
    whole = rng.integers(-9, 10, shape) * 2.0 ** rng.integers(-2, 3, shape)
    wild = rng.standard_normal(shape) * 2.0 ** rng.integers(-60, 40, shape)
    hidden = np.zeros(shape)
    hidden.reshape(-1)[:: max(1, shape[-1])] = 1.0
    hidden.reshape(-1)[1 :: max(2, shape[-1])] = 2.0**-24
    for numbers in (whole, wild, hidden, rng.standard_normal(shape), np.full(shape, 3.0e38)):
        for odd in (None, np.inf, np.nan):
            x = torch.from_numpy(numbers.astype(np.float32))
            if odd is not None:
                x.view(-1)[-1] = odd
            for dims in [(0,), (len(shape) - 1,), (0, len(shape) - 1), tuple(range(len(shape)))]:
                op, attributes = summation("sum"), {"dims": dims}
                rounded, found = certify(op, [x], attributes, 4.0, FLOAT32)
                with patch.object(type(op), "certify", Inexact.certify):
                    expected, near = certify(op, [x], attributes, 4.0, FLOAT32)
                assert rounded.shape == expected.shape
                assert torch.equal(rounded.view(torch.int32), expected.view(torch.int32)) or odd is not None
                assert torch.equal(rounded.nan_to_num(), expected.nan_to_num())
                assert torch.equal(found.indices, near.indices)
                for one, right in ((found.y, near.y), (found.d, near.d)):
                    assert np.array_equal(one.numpy(), right.numpy(), equal_nan=True)


def bound_by_torch(magnitude: Any, least: Any, finest: Any, gamma: float) -> Any:
    measures = tuple(map(torch.from_numpy, (magnitude, least, finest)))
    return sum_bounds.bound_of_sums(measures, torch.tensor(gamma, dtype=torch.float64)).numpy()


def test_the_depth_of_a_sum_is_that_of_its_blocks() -> None:
    def depth(count: int, level: int = 0) -> int:
        if count <= BLOCK_TERMS or level == 2:
            return max(count - 1, 0)
        return BLOCK_TERMS - 1 + depth(-(-count // BLOCK_TERMS), level + 1)

    for count in (0, 1, 2, 255, 256, 257, 511, 512, 513, 65_535, 65_536, 65_537, 1 << 20, (1 << 24) + 1, 1 << 30):
        assert sum_depth(count) == depth(count)
    assert sum_gamma(1) == 0
    assert not parts_keep_chain([256] * 3 + [1], sum_depth) or sum_depth(769) >= 258


def test_parts_of_scattered_numbers_know_what_is_exact() -> None:
    rng = np.random.default_rng(2)
    x = torch.from_numpy(np.ldexp(rng.standard_normal((40, 3)), rng.integers(-30, 30, (40, 3))).astype(np.float32))
    index = torch.from_numpy(rng.integers(-1, 6, (40, 1)))
    op, attributes = summation("scatter_add"), {"dim": 0, "size": 5}
    y, bound = op.evaluate([x, index], attributes)
    parts = InParts(op, 40, 4, lambda i: [x[i * 10 : i * 10 + 10], index[i * 10 : i * 10 + 10]])
    again, same = parts.evaluate((), attributes)
    d, of_parts = bound.whole(y), same.whole(again)
    assert torch.equal(d == 0, of_parts == 0) and (d == 0).any() and (d > 0).any()
    assert torch.allclose(d, of_parts, rtol=1e-12, atol=0)


SLICES = {
    "rows": ((60, 33), 0, 500),
    "a vector": ((60,), 0, 500),
    "an axis in the middle": ((3, 60, 5), 1, 400),
    "the last axis": ((4, 60), 1, 300),
    "many slices": ((60, 7), 0, 40),
}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("outside", [False, True])
def test_few_slices_among_many_are_the_same(name: str, outside: bool) -> None:
    size, dim, places = SLICES[name]
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


def test_scatter_add_of_indices_out_of_range_gives_zeros() -> None:
    index = torch.full((4, 1), 100)
    rounded, marked = operator("scatter_add").certify([torch.ones(4, 3), index], {"dim": 0, "size": 50}, 4.0)
    assert rounded.shape == (50, 3) and not rounded.any() and not len(marked.indices)
