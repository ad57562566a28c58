"""Pooling over the last two or three axes, and convolutions over three by those over two: the depth of a window becomes
channels. An average is the sum of a window, which is one exact sum, then one division."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.rule_table import Context, rule
from roundlog.capture.rules.shapes_and_views import pad, slice_backward
from roundlog.program import Attribute, DType


def several(items: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    """An option of every axis, which may be given once for all."""
    given = (items,) if isinstance(items, int) else tuple(items)
    return given * axes if len(given) == 1 else given


def overhang(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Elements by which the last window reaches beyond the padding: `ceil_mode` allows it if the window starts
    inside."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode or span % stride == 0:
        return 0
    outputs = -(-span // stride) + 1
    if (outputs - 1) * stride >= size + padding:
        return 0
    return (outputs - 1) * stride - span


@rule("max_pool2d_with_indices")
def max_pool(
    c: Context,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    if c.rank(x) == 3:
        whole = max_pool(c, c.builder.reshape(x, (1, *c.shape(x))), kernel, stride, padding, dilation, ceil_mode)
        return c.squeeze(whole[0], [0]), c.squeeze(whole[1], [0])
    k, s, p, d = (several(items, 2) for items in (kernel, stride or kernel, padding, dilation))
    n, channels, height, width = c.shape(x)
    extra = [overhang(c.shape(x)[2 + a], k[a], s[a], p[a], d[a], ceil_mode) for a in (0, 1)]
    # Nothing is chosen where the windows overhang: the elements before it are larger, or as large and earlier.
    wider = pad(c, x, [0] * 4, [0, 0, *extra], float("-inf"))
    index = c.op("max_pool_index", wider, kernel=k, stride=s, padding=p, dilation=d)
    if any(extra):
        # Where an element of the wider plane stands in the plane.
        plane = c.builder.reshape(c.iota(height * width), (height, width))
        places = pad(c, plane, [0, 0], extra)
        index = c.op("take", c.builder.reshape(places, (prod(c.shape(places)),)), index)
    windows = c.shape(index)[2:]
    planes = c.builder.reshape(x, (n, channels, height * width))
    flat = c.builder.reshape(index, (n, channels, prod(windows)))
    largest = c.op("gather", planes, flat, dim=2)
    return c.builder.reshape(largest, (n, channels, *windows)), index


@rule(
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
    "adaptive_max_pool2d_backward",
)
def max_pool_backward(c: Context, g: Value, x: Value, *options: object) -> Value:
    """Gradient by the indices, which are the last of the options; the others do not count."""
    index = options[-1] if options else None
    assert isinstance(index, Value)
    axes = 2 if "2d" in str(c.node.target) else 3
    outer, sizes = c.shape(x)[:-axes], c.shape(x)[-axes:]
    count = prod(c.shape(g)[-axes:])
    planes, flat = (c.builder.reshape(part, (prod(outer), count)) for part in (g, index))
    back = c.op("scatter_add", planes, flat, dim=1, size=prod(sizes))
    return c.builder.reshape(back, (*outer, *sizes))


@rule("adaptive_max_pool2d")
def adaptive_max_pool(c: Context, x: Value, outputs: Sequence[int]) -> tuple[Value, Value]:
    """Maxima of windows of one size, and their indices."""
    sizes = c.shape(x)[-2:]
    if any(size % output for size, output in zip(sizes, outputs, strict=True)):
        raise CaptureError(
            f"pools {sizes[0]} x {sizes[1]} elements to {outputs[0]} x {outputs[1]}: take numbers that divide them"
        )
    return max_pool(c, x, [size // output for size, output in zip(sizes, outputs, strict=True)])


class Depth:
    """The first of three axes: `outputs` windows of `kernel` slices of what has `size` slices."""

    def __init__(self, size: int, kernel: int, stride: int, padding: int, dilation: int, extra: int = 0) -> None:
        self.size, self.kernel, self.stride, self.padding, self.dilation = size, kernel, stride, padding, dilation
        self.extra = extra
        self.outputs = (size + 2 * padding + extra - dilation * (kernel - 1) - 1) // stride + 1

    def spread(self, c: Context, x: Value, fill: float = 0.0) -> Value:
        """[N, C, D, H, W] -> [N * outputs, C * kernel, H, W]: every window by itself."""
        n, channels, _, height, width = c.shape(x)
        x = pad(c, x, [0, 0, self.padding, 0, 0], [0, 0, self.padding + self.extra, 0, 0], fill)
        slices = []
        for tap in range(self.kernel):
            first = tap * self.dilation
            last = first + (self.outputs - 1) * self.stride + 1
            part = c.op("slice", x, dim=2, start=first, stop=last, step=self.stride)
            slices.append(c.builder.reshape(part, (n, channels, 1, self.outputs, height, width)))
        # [N, C, kernel, outputs, H, W]
        windows = c.builder.permute(c.op("cat", *slices, dim=2), (0, 3, 1, 2, 4, 5))
        return c.builder.reshape(windows, (n * self.outputs, channels * self.kernel, height, width))

    def gather(self, c: Context, windows: Value, samples: int) -> Value:
        """The gradient of `spread`: slices that several windows hold are added up."""
        channels, height, width = c.shape(windows)[1] // self.kernel, *c.shape(windows)[2:]
        split = c.builder.reshape(windows, (samples, self.outputs, channels, self.kernel, height, width))
        split = c.builder.permute(split, (3, 0, 2, 1, 4, 5))
        whole = (samples, channels, self.size + 2 * self.padding + self.extra, height, width)
        total: Value | None = None
        for tap in range(self.kernel):
            part = c.squeeze(c.op("slice", split, dim=0, start=tap, stop=tap + 1, step=1), [0])
            first = tap * self.dilation
            last = first + (self.outputs - 1) * self.stride + 1
            placed = slice_backward(c, part, whole, 2, first, last, self.stride)
            total = placed if total is None else c.op("add", total, placed)
        assert total is not None
        if self.padding or self.extra:
            total = c.op("slice", total, dim=2, start=self.padding, stop=self.padding + self.size, step=1)
        return total


def _by_sample(c: Context, y: Value, samples: int) -> Value:
    """[N * D, C, H, W] -> [N, C, D, H, W]."""
    shape = c.shape(y)
    split = c.builder.reshape(y, (samples, shape[0] // samples, *shape[1:]))
    return c.builder.permute(split, (0, 2, 1, 3, 4))


def _by_slice(c: Context, y: Value) -> Value:
    """[N, C, D, H, W] -> [N * D, C, H, W]."""
    n, channels, depth, height, width = c.shape(y)
    return c.builder.reshape(c.builder.permute(y, (0, 2, 1, 3, 4)), (n * depth, channels, height, width))


def _flat(c: Context, w: Value) -> Value:
    """Weights [O, C, I, J, K] -> [O, C * I, J, K]."""
    o, channels, depth, height, width = c.shape(w)
    return c.builder.reshape(w, (o, channels * depth, height, width))


class Convolution3d:
    """A convolution over three axes; x and w as PyTorch gives them."""

    def __init__(
        self,
        c: Context,
        x: tuple[int, ...],
        w: tuple[int, ...],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self._c, self._x, self._w = c, x, w
        self._depth = Depth(x[2], w[2], stride[0], padding[0], dilation[0])
        self._options: dict[str, Attribute] = {
            "stride": tuple(stride[1:]),
            "padding": tuple(padding[1:]),
            "dilation": tuple(dilation[1:]),
            "groups": groups,
        }

    def forward(self, x: Value, w: Value) -> Value:
        c = self._c
        y = c.op("conv2d", self._depth.spread(c, x), _flat(c, w), **self._options)
        return _by_sample(c, y, self._x[0])

    def grad_input(self, g: Value, w: Value) -> Value:
        c = self._c
        depth = self._depth
        if c.dtype(g).is_short and (depth.kernel - 1) * depth.dilation >= depth.stride:
            raise CaptureError(
                "convolves volumes of short numbers, whose gradient is a sum of sums: use .float() before"
            )
        back = c.op("conv2d_grad_input", _by_slice(c, g), _flat(c, w), **self._options, size=self._x[3:])
        return depth.gather(c, back, self._x[0])

    def grad_weight(self, g: Value, x: Value) -> Value:
        c = self._c
        windows = self._depth.spread(c, x)
        back = c.op("conv2d_grad_weight", _by_slice(c, g), windows, **self._options, size=self._w[3:])
        return c.builder.reshape(back, self._w)


@rule("max_pool3d_with_indices")
def max_pool3d(
    c: Context,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """The largest of every slice of a window, then the largest of those, with its place in the volume."""
    if c.rank(x) != 5:
        raise CaptureError("pools over three axes without an axis for the batch: give it one by .unsqueeze(0)")
    k, s, p, d = (several(items, 3) for items in (kernel, stride or kernel, padding, dilation))
    n, channels, size, height, width = c.shape(x)
    depth = Depth(size, k[0], s[0], p[0], d[0], overhang(size, k[0], s[0], p[0], d[0], ceil_mode))
    # [N * C, outputs, kernel, H, W]: one channel at a time, so that windows of one slice stay together.
    volumes = c.builder.reshape(x, (n * channels, 1, size, height, width))
    values, places = max_pool(c, depth.spread(c, volumes, float("-inf")), k[1:], s[1:], p[1:], d[1:], ceil_mode)
    first = c.op("argmax", values, dim=1)
    largest, place = (c.op("gather", part, first, dim=1) for part in (values, places))
    # Which slice of the volume that is: its window's first one, and `first` of them further on.
    starts = torch.arange(depth.outputs) * depth.stride - depth.padding
    starts = starts.repeat(n * channels).reshape(-1, 1, 1, 1)
    slice_ = c.op("add", c.op("mul", first, c.i64(depth.dilation)), c.literal(starts))
    index = c.op("add", c.op("mul", slice_, c.i64(height * width)), place)
    shape = (n, channels, depth.outputs, *c.shape(values)[2:])
    return c.builder.reshape(largest, shape), c.builder.reshape(index, shape)


class Averages:
    """Windows of an average over planes."""

    def __init__(
        self,
        c: Context,
        sizes: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        include_pad: bool = True,
        divisor: int | None = None,
    ) -> None:
        self.sizes = tuple(sizes)
        self.kernel, self.padding = several(kernel, 2), several(padding, 2)
        self.stride = several(stride or kernel, 2)
        self.extra = [
            overhang(n, k, s, p, 1, ceil_mode)
            for n, k, s, p in zip(sizes, self.kernel, self.stride, self.padding, strict=True)
        ]
        self.outputs = tuple(
            (n + 2 * p + e - k) // s + 1
            for n, p, e, k, s in zip(sizes, self.padding, self.extra, self.kernel, self.stride, strict=True)
        )
        self.options: dict[str, Attribute] = {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": (1, 1),
            "groups": 1,
        }
        self.ones = c.builder.constant(1.0, DType.F32, (1, 1, *self.kernel))
        """Weights of a convolution that adds up windows."""
        self._c, self._include_pad, self._divisor = c, include_pad, divisor

    def count(self) -> Value:
        """f32[], or f32[outputs...] where windows hold different numbers of elements: what a sum is divided by."""
        c = self._c
        if self._divisor:
            return c.f32(self._divisor)
        along = []
        for axis, size in enumerate(self.sizes):
            low = torch.arange(self.outputs[axis]) * self.stride[axis] - self.padding[axis]
            # Padding counts as elements if asked for; what a window overhangs by never does.
            border = self.padding[axis] if self._include_pad else 0
            held = (low + self.kernel[axis]).clamp(max=size + border) - low.clamp(min=-border)
            if bool((held == held[0]).all()):
                along.append(c.f32(int(held[0])))
            else:
                along.append(c.literal(held.to(torch.float32).reshape((-1, 1) if axis == 0 else (1, -1))))
        return c.op("mul", *along)


@rule("avg_pool2d")
def avg_pool(c: Context, x: Value, kernel: Sequence[int], *options: Any) -> Value:
    outer, sizes = c.shape(x)[:-2], c.shape(x)[-2:]
    windows = Averages(c, sizes, kernel, *options)
    planes = pad(c, c.builder.reshape(x, (prod(outer), 1, *sizes)), [0] * 4, [0, 0, *windows.extra])
    total = c.op("conv2d", planes, windows.ones, **windows.options)
    return c.builder.reshape(c.op("div", total, windows.count()), (*outer, *windows.outputs))


@rule("avg_pool2d_backward")
def avg_pool_backward(c: Context, g: Value, x: Value, kernel: Sequence[int], *options: Any) -> Value:
    outer, sizes = c.shape(x)[:-2], c.shape(x)[-2:]
    windows = Averages(c, sizes, kernel, *options)
    share = c.builder.reshape(c.op("div", g, windows.count()), (prod(outer), 1, *windows.outputs))
    wider = tuple(n + e for n, e in zip(sizes, windows.extra, strict=True))
    back = c.op("conv2d_grad_input", share, windows.ones, **windows.options, size=wider)
    for axis, size in enumerate(sizes):
        if windows.extra[axis]:
            back = c.op("slice", back, dim=2 + axis, start=0, stop=size, step=1)
    return c.builder.reshape(back, c.shape(x))
