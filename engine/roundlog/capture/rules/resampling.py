"""Images read between their pixels: interpolation, adaptive averages and border padding, in which each output is a
fixed combination of inputs along every axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from roundlog.capture.builder import Value
from roundlog.capture.rules.reductions import mean_over
from roundlog.capture.rules.rule_table import Context, rule

_aten = torch.ops.aten

Weights = Callable[[int, int, float | None], torch.Tensor]
"""(inputs, outputs, scale) of an axis -> f64[inputs, outputs]."""


def combine(c: Context, x: Value, weights: Sequence[torch.Tensor | None], *, backward: bool = False) -> Value:
    """Multiply the last axes of x by matrices, one an axis (None leaves it alone); `backward` by their transposes."""
    first = c.rank(x) - len(weights)
    for number, matrix in enumerate(weights):
        if matrix is None:
            continue
        factor = c.literal(matrix.to(torch.float32))
        if backward:
            factor = c.builder.permute(factor, (1, 0))
        dim, last = first + number, c.rank(x) - 1
        lines = c.move(x, dim, last)
        shape = c.shape(lines)
        product = c.op("matmul", c.builder.reshape(lines, (prod(shape[:-1]), shape[-1])), factor)
        x = c.move(c.builder.reshape(product, (*shape[:-1], c.shape(factor)[1])), last, dim)
    return x


def _unit(count: int) -> torch.Tensor:
    return torch.eye(count, dtype=torch.float64)


def _linear(align: bool) -> Weights:
    return lambda n, m, scale: _aten.upsample_linear1d(_unit(n)[None], [m], align, scale)[0]


def _in_a_plane(name: str) -> Callable[[bool], Weights]:
    """For operators that know planes only: an axis whose size stays they leave alone."""
    function = getattr(_aten, name)

    def of_axis(n: int, m: int, scale: float | None, align: bool) -> torch.Tensor:
        planes = _unit(n)[:, None, :, None].repeat(1, 1, 1, 2)
        weights: torch.Tensor = function(planes, [m, 2], align, scale, None)[:, 0, :, 0]
        return weights

    return lambda align: lambda n, m, scale: of_axis(n, m, scale, align)


def _averages(n: int, m: int, scale: float | None) -> torch.Tensor:
    return F.adaptive_avg_pool1d(_unit(n)[None], m)[0]


def _matrices(
    weights: Weights, sizes: Sequence[int], outputs: Sequence[int], scales: Sequence[float | None]
) -> list[torch.Tensor | None]:
    result: list[torch.Tensor | None] = []
    for size, output, scale in zip(sizes, outputs, scales, strict=True):
        matrix = weights(size, output, scale)
        result.append(None if size == output and torch.equal(matrix, _unit(size)) else matrix)
    return result


def _interpolation(name: str, weights: Callable[[bool], Weights]) -> None:
    @rule(name)
    def forward(c: Context, x: Value, outputs: Sequence[int], align: bool, *scales: float | None) -> Value:
        every = (*scales, *[None] * len(outputs))[: len(outputs)]
        return combine(c, x, _matrices(weights(align), c.shape(x)[2:], outputs, every))

    @rule(f"{name}_backward")
    def backward(
        c: Context, g: Value, outputs: Sequence[int], inputs: Sequence[int], align: bool, *scales: float | None
    ) -> Value:
        every = (*scales, *[None] * len(outputs))[: len(outputs)]
        return combine(c, g, _matrices(weights(align), inputs[2:], outputs, every), backward=True)


for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _interpolation(_name, _linear)
for _name in ("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    _interpolation(_name, _in_a_plane(_name))


def _windows(sizes: Sequence[int], outputs: Sequence[int]) -> list[int] | None:
    """(outputs, window) of every axis, one after another, where windows are of one size and do not overlap."""
    if any(size % output for size, output in zip(sizes, outputs, strict=True)):
        return None
    return [n for size, output in zip(sizes, outputs, strict=True) for n in (output, size // output)]


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_average(c: Context, x: Value, outputs: Sequence[int]) -> Value:
    outer, sizes = c.shape(x)[: -len(outputs)], c.shape(x)[-len(outputs) :]
    split = _windows(sizes, outputs)
    if split is None:
        return combine(c, x, _matrices(_averages, sizes, outputs, [None] * len(outputs)))
    means = mean_over(c, c.builder.reshape(x, (*outer, *split)), range(len(outer) + 1, len(outer) + len(split), 2))
    return c.builder.reshape(means, (*outer, *outputs))


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_average_backward(c: Context, g: Value, x: Value) -> Value:
    axes = 2 if "2d" in str(c.node.target) else 3
    outer, sizes, outputs = c.shape(x)[:-axes], c.shape(x)[-axes:], c.shape(g)[-axes:]
    split = _windows(sizes, outputs)
    if split is None:
        return combine(c, g, _matrices(_averages, sizes, outputs, [None] * axes), backward=True)
    share = c.op("div", g, c.f32(prod(sizes) // prod(outputs)))
    narrow = [1 if place % 2 else n for place, n in enumerate(split)]
    wide = c.builder.expand(c.builder.reshape(share, (*outer, *narrow)), (*outer, *split))
    return c.builder.reshape(wide, c.shape(x))


def pick(c: Context, x: Value, sources: Sequence[torch.Tensor]) -> Value:
    """Copy elements along the last axes: output i of an axis is its input sources[i]."""
    first = c.rank(x) - len(sources)
    for number, source in enumerate(sources):
        dim = first + number
        if not torch.equal(source, torch.arange(c.shape(x)[dim])):
            x = c.move(c.op("take", c.move(x, dim, 0), c.literal(source)), 0, dim)
    return x


def unpick(c: Context, g: Value, sources: Sequence[torch.Tensor], sizes: Sequence[int]) -> Value:
    """The gradient of `pick`: all that came from one element, added up at once."""
    outer, outputs = c.shape(g)[: -len(sources)], c.shape(g)[-len(sources) :]
    place = c.i64(0)
    for axis, (source, size) in enumerate(zip(sources, sizes, strict=True)):
        along = [len(source) if a == axis else 1 for a in range(len(sources))]
        place = c.op("add", c.op("mul", place, c.i64(size)), c.builder.reshape(c.literal(source), along))
    lines = c.builder.reshape(g, (prod(outer), prod(outputs)))
    at = c.builder.reshape(c.builder.expand(place, outputs), (1, prod(outputs)))
    sums = c.op("scatter_add", lines, at, dim=1, size=prod(sizes))
    return c.builder.reshape(sums, (*outer, *sizes))


def _nearest(name: str, axes: int, one_axis: Any) -> None:
    def sources(inputs: Sequence[int], outputs: Sequence[int], scales: Sequence[float | None]) -> list[torch.Tensor]:
        every = (*scales, *[None] * axes)[:axes]
        numbers = [torch.arange(n, dtype=torch.float32)[None, None] for n in inputs]
        return [
            one_axis(line, [m], scale)[0, 0].to(torch.int64)
            for line, m, scale in zip(numbers, outputs, every, strict=True)
        ]

    @rule(name)
    def forward(c: Context, x: Value, outputs: Sequence[int], *scales: float | None) -> Value:
        return pick(c, x, sources(c.shape(x)[2:], outputs, scales))

    @rule(f"{name}_backward")
    def backward(c: Context, g: Value, outputs: Sequence[int], inputs: Sequence[int], *scales: float | None) -> Value:
        return unpick(c, g, sources(inputs[2:], outputs, scales), inputs[2:])


for _rank in (1, 2, 3):
    _nearest(f"upsample_nearest{_rank}d", _rank, _aten.upsample_nearest1d)
    _nearest(f"_upsample_nearest_exact{_rank}d", _rank, _aten._upsample_nearest_exact1d)


def _border(sizes: Sequence[int], padding: Sequence[int]) -> list[torch.Tensor]:
    """Padding comes in pairs, the last axis first, as in `constant_pad_nd`."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    return [torch.arange(-low, n + high).clamp(0, n - 1) for n, (low, high) in zip(sizes, pairs, strict=True)]


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(c: Context, x: Value, padding: Sequence[int]) -> Value:
    return pick(c, x, _border(c.shape(x)[-(len(padding) // 2) :], padding))


@rule("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(c: Context, g: Value, x: Value, padding: Sequence[int]) -> Value:
    sizes = c.shape(x)[-(len(padding) // 2) :]
    return unpick(c, g, _border(sizes, padding), sizes)
