"""Convolutions and max pooling over three axes, by those over two: the depth of a window becomes channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.movement import pad, slice_backward
from roundlog.capture.rules.pooling import max_pool, overhang, several
from roundlog.capture.rules.table import Context, rule
from roundlog.program import Attribute


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
        back = c.op("conv2d_grad_input", _by_slice(c, g), _flat(c, w), **self._options, size=self._x[3:])
        return self._depth.gather(c, back, self._x[0])

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
