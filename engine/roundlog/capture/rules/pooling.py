"""Pooling: windows by their largest element, or by their mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.table import Context, rule
from roundlog.program import DType


def _pair(items: Sequence[int] | int) -> tuple[int, int]:
    if isinstance(items, int):
        return items, items
    return (items[0], items[0]) if len(items) == 1 else (items[0], items[1])


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
    index = c.op(
        "max_pool_index",
        x,
        kernel=_pair(kernel),
        stride=_pair(stride or kernel),
        padding=_pair(padding),
        dilation=_pair(dilation),
    )
    n, channels, height, width = c.shape(x)
    windows = c.shape(index)[2:]
    planes = c.builder.reshape(x, (n, channels, height * width))
    flat = c.builder.reshape(index, (n, channels, prod(windows)))
    largest = c.op("gather", planes, flat, dim=2)
    return c.builder.reshape(largest, (n, channels, *windows)), index


@rule("max_pool2d_with_indices_backward")
def max_pool_backward(
    c: Context,
    g: Value,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    index: Value,
) -> Value:
    n, channels, height, width = c.shape(x)
    count = prod(c.shape(g)[2:])
    planes = c.builder.reshape(g, (n, channels, count))
    flat = c.builder.reshape(index, (n, channels, count))
    back = c.op("scatter_add", planes, flat, dim=2, size=height * width)
    return c.builder.reshape(back, (n, channels, height, width))


def _window_count(
    c: Context,
    kernel: tuple[int, int],
    padding: tuple[int, int],
    include_pad: bool,
    divisor: int | None,
) -> Value:
    if divisor:
        return c.f32(divisor)
    if not include_pad and any(padding):
        raise CaptureError("averages over windows of different sizes: use count_include_pad=True")
    return c.f32(prod(kernel))


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
    k, p = _pair(kernel), _pair(padding)
    n, channels, height, width = c.shape(x)
    planes = c.builder.reshape(x, (n * channels, 1, height, width))
    ones = c.builder.constant(1.0, DType.F32, (1, 1, *k))
    sums = c.op("conv2d", planes, ones, stride=_pair(stride or kernel), padding=p, dilation=(1, 1), groups=1)
    mean = c.op("div", sums, _window_count(c, k, p, include_pad, divisor))
    return c.builder.reshape(mean, (n, channels, *c.shape(sums)[2:]))


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
    k, p = _pair(kernel), _pair(padding)
    n, channels, height, width = c.shape(x)
    share = c.op("div", g, _window_count(c, k, p, include_pad, divisor))
    planes = c.builder.reshape(share, (n * channels, 1, *c.shape(g)[2:]))
    ones = c.builder.constant(1.0, DType.F32, (1, 1, *k))
    back = c.op(
        "conv2d_grad_input",
        planes,
        ones,
        stride=_pair(stride or kernel),
        padding=p,
        dilation=(1, 1),
        groups=1,
        size=(height, width),
    )
    return c.builder.reshape(back, (n, channels, height, width))
