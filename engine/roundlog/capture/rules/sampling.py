"""Images read at positions that a tensor holds (grid_sample)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.powers import round_
from roundlog.capture.rules.table import Context, rule
from roundlog.program import DType

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
