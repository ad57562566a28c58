"""The compiled loops do what the torch reference does, to the bit."""

import math

import numpy as np
import pytest
import torch
from roundlog.kernels.marking import ascending
from roundlog.kernels.reducing import all_finite
from roundlog.operators.bounds import FullBound, ProductBound, RelativeBound, mark, mark_by_reference

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    1 + 2.0**-24,
    1 + 2.0**-24 + 2.0**-52,
    -(1 + 3 * 2.0**-24),
    2.0**-149,
    2.0**-150,
    -(2.0**-150),
    2.0**-126 - 2.0**-150,
    2.0**-1074,
    2.0**128 - 2.0**103,
    2.0**128 - 2.0**104,
    -(2.0**128),
    1e300,
    math.inf,
    -math.inf,
    math.nan,
]


def values(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(shape, dtype=torch.float64, generator=generator)
    y *= 2.0 ** torch.randint(-160, 130, shape, generator=generator).double()
    flat = y.reshape(-1)
    spots = torch.randint(0, flat.numel(), (min(flat.numel(), 4 * len(SPECIAL)),), generator=generator)
    flat[spots] = torch.tensor(SPECIAL * 4, dtype=torch.float64)[: len(spots)]
    # Many values right at boundaries.
    flat[::3] = flat[::3].float().double() * (1 + 2.0**-24)
    return y


def bounds(y: torch.Tensor, seed: int) -> list:
    generator = torch.Generator().manual_seed(seed)
    rows = y.shape[0] * y.shape[1]

    def some(*shape: int) -> torch.Tensor:
        sizes = 2.0 ** torch.randint(-60, 0, shape, generator=generator).double()
        return torch.rand(shape, dtype=torch.float64, generator=generator) * sizes

    return [
        ProductBound(some(rows), some(1, y.shape[2])),
        ProductBound(some(rows), some(y.shape[0], y.shape[2])),
        ProductBound(some(rows), some(rows, y.shape[2])),
        FullBound(some(y.numel())),
        RelativeBound(2.0**-40, 2.0**-200),
        RelativeBound(0.0, 0.0),
    ]


@pytest.mark.parametrize(
    ("shape", "scale", "threads"),
    [
        *(((3, 5, 7), scale, 1) for scale in (1.0, 4.0, 11.0)),
        ((1, 1, 1), 4.0, 2),
        ((2, 150, 70), 4.0, 2),
        ((4, 1, 9000), 4.0, 1),
        ((2, 700, 33), 11.0, 2),
    ],
)
def test_marking_is_the_references_to_the_bit(shape, scale: float, threads: int) -> None:
    torch.set_num_threads(threads)
    y = values(shape, 1)
    for bound in bounds(y, 2):
        expected, near = mark_by_reference(y, bound, scale)
        rounded, marked = mark(y, bound, scale)
        assert torch.equal(marked.indices, near.indices)
        assert torch.equal(marked.d.nan_to_num(-1), near.d.nan_to_num(-1))
        assert torch.equal(
            rounded.view(torch.int32)[rounded.isfinite()], expected.view(torch.int32)[expected.isfinite()]
        )
        assert torch.equal(rounded.isnan(), expected.isnan())
        assert marked.indices.numel() or isinstance(bound, RelativeBound)


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_marked_elements_are_put_into_order(count: int) -> None:
    indices = 17 + np.random.default_rng(count).permutation(count)
    for some in (indices, np.sort(indices)):
        near = ascending(some, some * 0.5, some * 0.25)
        assert np.array_equal(near.indices, np.sort(indices))
        assert np.array_equal(near.y, near.indices * 0.5) and np.array_equal(near.d, near.indices * 0.25)


def test_marking_reads_any_layout_and_writes_memory_of_its_own() -> None:
    y = values((6, 5, 4), 3)
    view = y.permute(2, 0, 1)
    bound = FullBound(torch.rand(y.numel(), dtype=torch.float64) * 1e-8)
    expected, near = mark_by_reference(view.contiguous(), bound, 4.0)
    rounded, marked = mark(view, bound, 4.0)
    assert torch.equal(marked.indices, near.indices)
    assert rounded.is_contiguous()
    assert torch.equal(torch.nan_to_num(rounded), torch.nan_to_num(expected))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 16384, 99999])
def test_one_value_that_is_not_finite_is_seen_anywhere(bad: float, where: int) -> None:
    x = np.full(100_000, np.finfo(np.float32).max, dtype=np.float32)
    assert all_finite(x)
    x[where] = bad
    assert not all_finite(x)
