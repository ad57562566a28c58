"""Pooling: windows by their largest element, or by their mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from roundlog.capture.builder import Value
from roundlog.capture.rules.movement import pad as padded
from roundlog.capture.rules.table import Context, rule
from roundlog.program import Attribute, DType


def several(items: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    """An option of every axis, which may be given once for all."""
    given = (items,) if isinstance(items, int) else tuple(items)
    return given * axes if len(given) == 1 else given


def overhang(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """How far the last window reaches beyond the padding, which `ceil_mode` allows as long as it starts inside."""
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
    wider = padded(c, x, [0] * 4, [0, 0, *extra], float("-inf"))
    index = c.op("max_pool_index", wider, kernel=k, stride=s, padding=p, dilation=d)
    if any(extra):
        # Where an element of the wider plane stands in the plane.
        plane = c.builder.reshape(c.iota(height * width), (height, width))
        places = padded(c, plane, [0, 0], extra)
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
    "adaptive_max_pool3d_backward",
)
def max_pool_backward(c: Context, g: Value, x: Value, *options: object) -> Value:
    """Of the options only the last counts: the indices."""
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
    """By windows of one size; others are taken apart before any rule sees them."""
    sizes = c.shape(x)[-2:]
    return max_pool(c, x, [size // output for size, output in zip(sizes, outputs, strict=True)])


class Averages:
    """The windows of an average over the last axes: f32 sums of them are taken by a convolution with ones."""

    def __init__(
        self,
        c: Context,
        sizes: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        include_pad: bool,
        divisor: int | None,
    ) -> None:
        axes = len(sizes)
        self.sizes = tuple(sizes)
        self.kernel, self.padding = several(kernel, axes), several(padding, axes)
        self.stride = several(stride or kernel, axes)
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
            "dilation": (1,) * axes,
            "groups": 1,
        }
        self._c, self._include_pad, self._divisor = c, include_pad, divisor

    def count(self) -> Value:
        """f32[], or f32[outputs...] where windows hold different numbers of elements: what a sum is divided by."""
        c = self._c
        if self._divisor:
            return c.f32(self._divisor)
        product: Value | None = None
        for axis, size in enumerate(self.sizes):
            low = torch.arange(self.outputs[axis]) * self.stride[axis] - self.padding[axis]
            # Padding counts as elements if asked for; what a window overhangs by never does.
            border = self.padding[axis] if self._include_pad else 0
            held = (low + self.kernel[axis]).clamp(max=size + border) - low.clamp(min=-border)
            if bool((held == held[0]).all()):
                along = c.f32(int(held[0]))
            else:
                shape = [len(held) if a == axis else 1 for a in range(len(self.sizes))]
                along = c.builder.reshape(c.literal(held.to(torch.float32)), shape)
            product = along if product is None else c.op("mul", product, along)
        assert product is not None
        return product


@rule("avg_pool2d")
def avg_pool(
    c: Context,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    """The sum of a window is its convolution with ones, one exact sum; then one division."""
    windows = Averages(c, c.shape(x)[-2:], kernel, stride, padding, ceil_mode, include_pad, divisor)
    planes = c.builder.reshape(x, (prod(c.shape(x)[:-2]), 1, *windows.sizes))
    planes = padded(c, planes, [0] * 4, [0, 0, *windows.extra])
    ones = c.builder.constant(1.0, DType.F32, (1, 1, *windows.kernel))
    sums = c.op("conv2d", planes, ones, **windows.options)
    return c.builder.reshape(c.op("div", sums, windows.count()), (*c.shape(x)[:-2], *windows.outputs))


@rule("avg_pool2d_backward")
def avg_pool_backward(
    c: Context,
    g: Value,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    include_pad: bool,
    divisor: int | None,
) -> Value:
    windows = Averages(c, c.shape(x)[-2:], kernel, stride, padding, ceil_mode, include_pad, divisor)
    share = c.op("div", g, windows.count())
    planes = c.builder.reshape(share, (prod(c.shape(x)[:-2]), 1, *windows.outputs))
    ones = c.builder.constant(1.0, DType.F32, (1, 1, *windows.kernel))
    wider = tuple(n + e for n, e in zip(windows.sizes, windows.extra, strict=True))
    back = c.op("conv2d_grad_input", planes, ones, **windows.options, size=wider)
    for axis, size in enumerate(windows.sizes):
        if windows.extra[axis]:
            back = c.op("slice", back, dim=2 + axis, start=0, stop=size, step=1)
    return c.builder.reshape(back, c.shape(x))
