"""Average pooling over the last two or three axes: the sum of a window, which is one exact sum, then one division.

Sums are a convolution with ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from roundlog.capture.builder import Value
from roundlog.capture.rules.movement import pad
from roundlog.capture.rules.pooling import overhang, several
from roundlog.capture.rules.table import Context, rule
from roundlog.capture.rules.volume import Convolution3d
from roundlog.program import Attribute, DType


class Averages:
    """Windows of an average over the last axes, two or three."""

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
        self.wider = tuple(n + e for n, e in zip(sizes, self.extra, strict=True))
        """Sizes with what the last windows reach beyond."""
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


class _PlaneSums:
    """Sums of windows of planes."""

    def __init__(self, c: Context, windows: Averages) -> None:
        self._c, self._windows = c, windows

    def forward(self, planes: Value) -> Value:
        return self._c.op("conv2d", planes, _ones(self._c, self._windows), **self._windows.options)

    def grad_input(self, g: Value) -> Value:
        windows = self._windows
        ones = _ones(self._c, windows)
        return self._c.op("conv2d_grad_input", g, ones, **windows.options, size=windows.wider)


class _VolumeSums:
    """Sums of windows of volumes."""

    def __init__(self, c: Context, windows: Averages, volumes: int) -> None:
        x, w = (volumes, 1, *windows.wider), (1, 1, *windows.kernel)
        self._convolution = Convolution3d(c, x, w, windows.stride, windows.padding, (1, 1, 1), 1)
        self._ones = _ones(c, windows)

    def forward(self, volumes: Value) -> Value:
        return self._convolution.forward(volumes, self._ones)

    def grad_input(self, g: Value) -> Value:
        return self._convolution.grad_input(g, self._ones)


def _ones(c: Context, windows: Averages) -> Value:
    return c.builder.constant(1.0, DType.F32, (1, 1, *windows.kernel))


def _sums(c: Context, windows: Averages, outer: int) -> _PlaneSums | _VolumeSums:
    """The sums of windows of so many planes or volumes."""
    return _PlaneSums(c, windows) if len(windows.sizes) == 2 else _VolumeSums(c, windows, outer)


def _axes(c: Context) -> int:
    return 2 if "2d" in str(c.node.target) else 3


@rule("avg_pool2d", "avg_pool3d")
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
    axes = _axes(c)
    outer, sizes = c.shape(x)[:-axes], c.shape(x)[-axes:]
    windows = Averages(c, sizes, kernel, stride, padding, ceil_mode, include_pad, divisor)
    sums = _sums(c, windows, prod(outer))
    parts = c.builder.reshape(x, (prod(outer), 1, *sizes))
    total = sums.forward(pad(c, parts, [0] * (2 + axes), [0, 0, *windows.extra]))
    return c.builder.reshape(c.op("div", total, windows.count()), (*outer, *windows.outputs))


@rule("avg_pool2d_backward", "avg_pool3d_backward")
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
    axes = _axes(c)
    outer, sizes = c.shape(x)[:-axes], c.shape(x)[-axes:]
    windows = Averages(c, sizes, kernel, stride, padding, ceil_mode, include_pad, divisor)
    sums = _sums(c, windows, prod(outer))
    share = c.builder.reshape(c.op("div", g, windows.count()), (prod(outer), 1, *windows.outputs))
    back = sums.grad_input(share)
    for axis, size in enumerate(sizes):
        if windows.extra[axis]:
            back = c.op("slice", back, dim=2 + axis, start=0, stop=size, step=1)
    return c.builder.reshape(back, c.shape(x))
