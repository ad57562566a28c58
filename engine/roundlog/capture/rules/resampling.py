"""Images read between their pixels: interpolation, adaptive averages and border padding, in which each output is a
fixed combination of inputs along every axis, and reads at positions that a tensor holds (grid_sample)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.powers import round_
from roundlog.capture.rules.reductions import mean_over
from roundlog.capture.rules.rule_table import Context, rule
from roundlog.program import DType

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


_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER = 0, 1


@dataclass(frozen=True, slots=True)
class _Axis:
    """Positions along one axis of the image: f32[N, P]."""

    size: int
    position: Value
    """Position in elements, the first at 0."""
    slope: Value
    """Derivative of the position with respect to the grid."""


@dataclass(frozen=True, slots=True)
class _Corner:
    """One of the elements around every position."""

    weights: tuple[Value, Value]
    """Down and across: f32[N, P]."""
    inside: Value
    """bool[N, P]."""
    index: Value
    """i64[N, P]: rows of the images' elements; 0 outside."""


def _axes(c: Context, shape: Sequence[int], grid: Value, padding: int, align: bool) -> tuple[_Axis, _Axis]:
    """Down and across. The grid's last axis holds x, then y."""
    if padding not in (_ZEROS, _BORDER):
        raise CaptureError("reads images beyond their border by reflection: use padding_mode zeros or border")
    found = []
    samples, count = c.shape(grid)[0], c.shape(grid)[1] * c.shape(grid)[2]
    for size, place in ((shape[2], 1), (shape[3], 0)):
        if not 0 < size <= 1 << 20:
            raise CaptureError(f"reads images of {size} lines: up to {1 << 20} are supported")
        along = c.op("slice", grid, dim=3, start=place, stop=place + 1, step=1)
        along = c.op("add", c.builder.reshape(along, (samples, count)), c.f32(1.0))
        if align:
            scale = c.f32((size - 1) / 2)
            position = c.op("mul", along, scale)
        else:
            scale = c.f32(size / 2)
            position = c.op("sub", c.op("mul", along, scale), c.f32(0.5))
        slope = c.builder.expand(scale, c.shape(position))
        if padding == _BORDER:
            low, high = c.f32(0.0), c.f32(size - 1)
            within = c.op("logical_and", c.op("lt", low, position), c.op("lt", position, high))
            slope = c.op("where", within, slope, low)
            position = c.op("minimum", c.op("maximum", position, low), high)
        found.append(_Axis(size, position, slope))
    return found[0], found[1]


def _corners(c: Context, images: int, axes: tuple[_Axis, _Axis], mode: int) -> list[_Corner]:
    """Four for bilinear, in row-major order; one for nearest, whose weights are one."""
    if mode not in (_BILINEAR, _NEAREST):
        raise CaptureError("samples by bicubic interpolation: use bilinear or nearest")
    sides: list[list[tuple[Value, Value, Value]]] = []
    for axis in axes:
        if mode == _NEAREST:
            lines = [(round_(c, axis.position), c.f32(1.0))]
        else:
            low = c.op("floor", axis.position)
            high = c.op("add", low, c.f32(1.0))
            lines = [(low, c.op("sub", high, axis.position)), (high, c.op("sub", axis.position, low))]
        sides.append([(weight, *_line(c, axis.size, line)) for line, weight in lines])
    (height, width) = (axis.size for axis in axes)
    first = c.builder.reshape(c.iota(images, 0, height * width), (images, 1))
    result = []
    for down, row_inside, row in sides[0]:
        for across, column_inside, column in sides[1]:
            inside = c.op("logical_and", row_inside, column_inside)
            index = c.op("add", c.op("add", c.op("mul", row, c.i64(width)), column), first)
            result.append(_Corner((down, across), inside, index))
    return result


def _line(c: Context, size: int, line: Value) -> tuple[Value, Value]:
    """Whether whole numbers are lines of the image, and those that are as int64 (others 0)."""
    inside = c.op("logical_and", c.op("le", c.f32(0.0), line), c.op("le", line, c.f32(size - 1)))
    known = c.op("where", inside, line, c.f32(0.0))
    return inside, c.builder.natural(known, max(size - 1, 1).bit_length())


def _rows(c: Context, x: Value) -> Value:
    """[N, C, H, W] -> [N * H * W, C]."""
    samples, channels, height, width = c.shape(x)
    return c.builder.reshape(c.builder.permute(x, (0, 2, 3, 1)), (samples * height * width, channels))


def _column(c: Context, x: Value) -> Value:
    return c.builder.reshape(x, (*c.shape(x), 1))


def _read(c: Context, rows: Value, corner: _Corner) -> Value:
    """[N, P, C], zero outside."""
    return c.op("where", _column(c, corner.inside), c.op("take", rows, corner.index), c.f32(0.0))


@rule("grid_sampler_2d", at_capture=True)
def grid_sampler(c: Context, x: Value, grid: Value, mode: int, padding: int, align: bool) -> Value:
    """Bilinear or nearest, padding by zeros or border: the products of weights and elements, added up in row-major
    order."""
    samples, height, width, _ = c.shape(grid)
    rows, total = _rows(c, x), None
    for corner in _corners(c, samples, _axes(c, c.shape(x), grid, padding, align), mode):
        element = _read(c, rows, corner)
        if mode == _BILINEAR:
            element = c.op("mul", _column(c, c.op("mul", *corner.weights)), element)
        total = element if total is None else c.op("add", total, element)
    assert total is not None
    return c.builder.permute(c.builder.reshape(total, (samples, height, width, c.shape(x)[1])), (0, 3, 1, 2))


@rule("grid_sampler_2d_backward", at_capture=True)
def grid_sampler_backward(
    c: Context, g: Value, x: Value, grid: Value, mode: int, padding: int, align: bool, wanted: Sequence[bool]
) -> tuple[Value | None, Value | None]:
    """Gradient of the image by one scatter_add, of the grid by sums over the channels."""
    samples, channels, *image = c.shape(x)
    axes = _axes(c, c.shape(x), grid, padding, align)
    corners = _corners(c, samples, axes, mode)
    count = c.shape(axes[0].position)[1]
    lines = c.builder.reshape(c.builder.permute(g, (0, 2, 3, 1)), (samples, count, channels))
    of_image = of_grid = None
    if wanted[0]:
        parts, places = [], []
        for corner in corners:
            part = lines
            if mode == _BILINEAR:
                part = c.op("mul", _column(c, c.op("mul", *corner.weights)), lines)
            parts.append(c.builder.reshape(part, (samples * count, channels)))
            index = c.op("where", corner.inside, corner.index, c.i64(-1))
            places.append(c.builder.reshape(index, (samples * count, 1)))
        source, place = (c.op("cat", *values, dim=0) if len(values) > 1 else values[0] for values in (parts, places))
        sums = c.op("scatter_add", source, place, dim=0, size=samples * image[0] * image[1])
        of_image = c.builder.permute(c.builder.reshape(sums, (samples, *image, channels)), (0, 3, 1, 2))
    if wanted[1]:
        slopes = _slopes(c, lines, _rows(c, x), corners, axes) if mode == _BILINEAR else None
        of_grid = c.builder.constant(0.0, DType.F32, c.shape(grid)) if slopes is None else slopes
        of_grid = c.builder.reshape(of_grid, c.shape(grid))
    return of_image, of_grid


def _slopes(c: Context, g: Value, rows: Value, corners: Sequence[_Corner], axes: tuple[_Axis, _Axis]) -> Value:
    """[N, P, 2]: what every position's x and y add to the loss."""
    sums = [c.squeeze(c.op("sum", c.op("mul", g, _read(c, rows, corner)), dims=(2,)), [2]) for corner in corners]
    (up, left), (down, right) = corners[0].weights, corners[3].weights
    across = c.op(
        "add",
        c.op("mul", c.op("sub", sums[1], sums[0]), up),
        c.op("mul", c.op("sub", sums[3], sums[2]), down),
    )
    along = c.op(
        "add",
        c.op("mul", c.op("sub", sums[2], sums[0]), left),
        c.op("mul", c.op("sub", sums[3], sums[1]), right),
    )
    pair = [c.op("mul", slope, axis.slope) for slope, axis in ((across, axes[1]), (along, axes[0]))]
    return c.op("cat", *(_column(c, part) for part in pair), dim=2)
