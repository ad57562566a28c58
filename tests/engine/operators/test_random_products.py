"""Products and convolutions of random shapes, layouts and numbers, by tiles of all kinds of vectors: what they
round is held against exact sums, and what they mark against what they have to mark and what they may not."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.kernels import gemm_microkernel, threads
from roundlog.kernels.line_microkernel import TOGETHER, vectors_at_once
from roundlog.kernels.line_products import FEW, span_of
from roundlog.log import Entries
from roundlog.number_format import FLOAT32
from roundlog.operators import operator
from roundlog.operators.bounds import FullBound, mark_by_reference
from roundlog.operators.contraction import Contraction
from roundlog.operators.summation import chain, longest_block
from roundlog.rounding import Recorder

SCALE = 4.0
Case = tuple[str, list[torch.Tensor], dict[str, Any]]


def numbers(rng: Random, *shape: int) -> torch.Tensor:
    """FP32 numbers of one of several kinds: normal ones, such as have ties, of all magnitudes, subnormal ones, zeros of
    either sign, and now and then one that is not finite."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    x = torch.randn(shape, generator=generator)
    kind = rng.randrange(5)
    if kind == 1:
        x = (x * 8).round() / 8
    elif kind == 2:
        x = torch.ldexp(x, torch.randint(-70, 50, shape, generator=generator))
    elif kind == 3:
        x = torch.ldexp(x, torch.randint(-149, -120, shape, generator=generator))
    elif kind == 4:
        x[torch.rand(shape, generator=generator) < 0.5] = -0.0
    if rng.random() < 0.3:
        flat = x.view(-1)
        flat[rng.randrange(len(flat))] = rng.choice([math.nan, math.inf, -math.inf, 3e38])
    return x


def laid_out(rng: Random, x: torch.Tensor) -> torch.Tensor:
    """The same tensor as it may lie in memory: its axes in any order, spread out, behind other numbers."""
    order = rng.sample(range(x.ndim), x.ndim)
    moved = x.permute(order)
    steps = [rng.choice([1, 1, 1, 2, 3]) for _ in order]
    front = [rng.randrange(3) for _ in order]
    room = torch.full([f + size * step + 1 for f, size, step in zip(front, moved.shape, steps, strict=True)], 7.0)
    inside = tuple(slice(f, f + n * step, step) for f, n, step in zip(front, moved.shape, steps, strict=True))
    room[inside] = moved
    found = room[inside].permute([order.index(axis) for axis in range(x.ndim)])
    assert torch.equal(found.nan_to_num(), x.nan_to_num())
    return found


def product(rng: Random) -> Case:
    batches, rows, columns = rng.choice([1, 1, 3]), rng.randint(1, rng.choice([FEW, 40])), rng.randint(1, 60)
    terms = rng.choice([1, 2, rng.randint(1, 40), rng.randint(200, 300), rng.randint(500, 1100)])
    a, b = numbers(rng, batches, rows, terms), numbers(rng, batches, terms, columns)
    if batches == 1 and rng.random() < 0.5:
        a, b = a[0], b[0]
    if rows <= FEW:
        # Kernels of few rows read terms, or columns, that lie side by side.
        return "matmul", [laid_out(rng, a), b if rng.random() < 0.5 else b.mT.contiguous().mT], {}
    return "matmul", [laid_out(rng, a), laid_out(rng, b)], {}


def convolution(rng: Random) -> Case:
    """One of a convolution and its two gradients."""
    groups, inner, each = rng.choice([1, 1, 2, 5]), rng.choice([1, 3, 9, rng.randint(1, 80)]), rng.randint(1, 11)
    kernel = [rng.randint(1, 4) for _ in "hw"]
    stride, dilation = ([rng.choice([1, 1, 2, 3, 6]) for _ in "hw"] for _ in range(2))
    padding = [rng.choice([0, 1, rng.randint(0, 5)]) for _ in "hw"]
    least = [max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilation, kernel, padding, strict=True)]
    size = [rng.randint(s, max(s, rng.choice([3, 14, 20]))) for s in least]
    x, w = (rng.randint(1, 3), groups * inner, *size), (groups * each, inner, *kernel)
    options = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}
    forward = operator("conv2d")
    assert isinstance(forward, Contraction)
    g = forward.output_shape((x, w), options)
    name = rng.choice(["conv2d", "conv2d_grad_input", "conv2d_grad_weight"])
    shapes, more = {
        "conv2d": ([x, w], {}),
        "conv2d_grad_input": ([g, w], {"size": tuple(size)}),
        "conv2d_grad_weight": ([g, x], {"size": tuple(kernel)}),
    }[name]
    return name, [laid_out(rng, numbers(rng, *shape)) for shape in shapes], {**options, **more}


def sums(op: Contraction, inputs: list[torch.Tensor], attributes: dict[str, Any], count: int) -> torch.Tensor:
    """f64: the outputs, by their definition, rounded once."""
    listed = op.listed([x.contiguous() for x in inputs], attributes, np.arange(count))

    def total(row: list[float]) -> float:
        finite = all(map(math.isfinite, row))
        return math.fsum(row) if finite else sum(row)

    return torch.tensor([total(row) for row in listed.tolist()], dtype=torch.float64)


@pytest.fixture(params=[8, 4, pytest.param(2, marks=pytest.mark.slow)], ids=["8 lanes", "4 lanes", "2 lanes"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of so many lanes, on three threads."""
    monkeypatch.setattr(gemm_microkernel, "tile_lanes", lambda: request.param)
    monkeypatch.setattr(threads, "MIN_ELEMENTS", 1)
    torch.set_num_threads(3)


@pytest.mark.parametrize("made", [product, convolution], ids=lambda made: made.__name__)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("by")
def test_random_products_are_rounded_and_marked_as_their_exact_sums_demand(made: Any, seed: int) -> None:
    rng = Random(f"{made.__name__} {seed}")
    for _ in range(12):
        name, inputs, attributes = made(rng)
        op = operator(name)
        assert isinstance(op, Contraction)
        shapes = tuple(inputs[0].shape), tuple(inputs[1].shape)
        shape = op.output_shape(shapes, attributes)
        case = name, shapes, attributes
        count = math.prod(shape)
        exact = sums(op, inputs, attributes, count)
        expected = torch.from_numpy(op._exact_by_terms(*inputs, attributes, np.arange(count), FLOAT32)).reshape(shape)
        recorder = Recorder(SCALE)
        got = recorder.round(0, op, inputs, attributes)
        logged = recorder.take().get(0, Entries.empty()).indices
        assert torch.equal(got.nan_to_num().view(torch.int32), expected.nan_to_num().view(torch.int32)), case
        assert torch.equal(got.isnan(), expected.isnan()), case

        rounded, marked = op.certify(inputs, attributes, SCALE)
        assert (marked.indices[1:] > marked.indices[:-1]).all(), case
        sure = torch.ones(count, dtype=torch.bool)
        sure[marked.indices] = False
        assert torch.equal(rounded.view(-1)[sure].view(torch.int32), expected.view(-1)[sure].view(torch.int32)), case
        # Bounds are those of the definition, and hold.
        d = op.bound(inputs, attributes, exact.reshape(shape)).whole(exact)
        assert not (d[logged] == 0).any(), case
        finite = exact.isfinite() & d.isfinite() & (exact.abs() < 1e38)
        chosen = finite[marked.indices]
        at = marked.indices[chosen]
        assert torch.allclose(marked.d[chosen], d[at], rtol=2.0**-19, atol=0), case
        assert ((marked.y[chosen] - exact[at]).abs() <= d[at] + exact[at].abs() * 2.0**-53).all(), case
        # An approximation lies within d of the exact sum: this much has to be marked, and nothing beyond.
        needed, allowed = (
            set(mark_by_reference(exact, FullBound(d), SCALE + more)[1].indices.tolist()) for more in (-2, 2)
        )
        found, known = set(marked.indices.tolist()), set(finite.nonzero().flatten().tolist())
        # Where d is 0, an approximation is the sum, and rounded rightly: tiles do not mark it.
        needed -= set((d == 0).nonzero().flatten().tolist())
        assert needed & known <= found, case
        assert found & known <= allowed, case


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.usefixtures("by")
def test_a_convolution_that_reads_padding_alone_has_gradients_of_zeros(channels: int) -> None:
    """A stride of 5 steps over the only pixel: no tap reads it, and no product is left."""
    x, w, g = (torch.ones(1, channels, 1, 1), torch.ones(2, channels, 1, 1), torch.ones(1, 2, 1, 1))
    options = {"stride": (5, 5), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    for name, inputs, more, shape in (
        ("conv2d", [x, w], {}, (1, 2, 1, 1)),
        ("conv2d_grad_input", [g, w], {"size": (1, 1)}, (1, channels, 1, 1)),
        ("conv2d_grad_weight", [g, x], {"size": (1, 1)}, (2, channels, 1, 1)),
    ):
        found = Recorder(SCALE).round(0, operator(name), inputs, {**options, **more})
        assert torch.equal(found, torch.zeros(shape)), name


def test_no_term_of_a_few_rows_goes_through_more_additions_than_its_bound_allows() -> None:
    for lanes in gemm_microkernel.TILES:
        for rows in (1, TOGETHER):
            at_once = lanes * vectors_at_once(rows)
            for terms in [*range(1, 3000), 5000, 8192, 16384, 70000, 1 << 20]:
                span = span_of(longest_block(terms), lanes, rows)
                # Of a span: those of its steps, of the halvings, of the rest; then one for every further span. What is
                # added to nothing stays what it is.
                steps, rest = divmod(min(span, terms), at_once)
                of_span = steps - 1 + at_once.bit_length() - 1 + rest if steps else rest - 1
                assert of_span + -(-terms // span) - 1 < chain(terms), (lanes, rows, terms)
