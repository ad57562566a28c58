"""Windows over the last axes. Convolutions, over three axes by those over two: the depth of a window becomes channels.
Pooling: an average is the sum of a window, which is one exact sum, then one division. Images read between their
pixels: interpolation, adaptive averages and border padding, in which each output is a fixed combination of inputs
along every axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.reductions import mean_over
from roundlog.capture.rules.rule_table import Context, rule
from roundlog.capture.rules.shapes_and_views import pad, slice_backward
from roundlog.program import Attribute, DType


class Depth:
    """The first of three axes: `outputs` windows of `kernel` slices of what has `size` slices."""

    def __init__(self, size: int, kernel: int, stride: int, padding: int, dilation: int) -> None:
        self.size, self.kernel, self.stride, self.padding, self.dilation = size, kernel, stride, padding, dilation
        self.outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1

    def spread(self, c: Context, x: Value) -> Value:
        """[N, C, D, H, W] -> [N * outputs, C * kernel, H, W]: every window by itself."""
        n, channels, _, height, width = c.shape(x)
        x = pad(c, x, [0, 0, self.padding, 0, 0], [0, 0, self.padding, 0, 0])
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
        whole = (samples, channels, self.size + 2 * self.padding, height, width)
        total: Value | None = None
        for tap in range(self.kernel):
            part = c.squeeze(c.op("slice", split, dim=0, start=tap, stop=tap + 1, step=1), [0])
            first = tap * self.dilation
            last = first + (self.outputs - 1) * self.stride + 1
            placed = slice_backward(c, part, whole, 2, first, last, self.stride)
            total = placed if total is None else c.op("add", total, placed)
        assert total is not None
        if self.padding:
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


def _two(items: Sequence[int], fill: int) -> tuple[int, int]:
    """Options of a 1-d or 2-d convolution as those of a 2-d one: a 1-d one has height 1."""
    return (fill, items[0]) if len(items) == 1 else (items[0], items[1])


def _options(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> dict[str, Attribute]:
    return {"stride": _two(stride, 1), "padding": _two(padding, 0), "dilation": _two(dilation, 1), "groups": groups}


def _as_plane(c: Context, x: Value) -> Value:
    """[N, C, L] as [N, C, 1, L]."""
    shape = c.shape(x)
    return c.builder.reshape(x, (*shape[:2], 1, shape[2])) if len(shape) == 3 else x


@rule("convolution")
def convolution(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    rank, whole = c.rank(x), tuple(int(n) for n in c.node.meta["val"].shape)
    if rank == 5:
        volumes = Convolution3d(c, whole if transposed else c.shape(x), c.shape(w), stride, padding, dilation, groups)
        y = volumes.grad_input(x, w) if transposed else volumes.forward(x, w)
    else:
        options, x2, w2 = _options(stride, padding, dilation, groups), _as_plane(c, x), _as_plane(c, w)
        if transposed:
            y = c.op("conv2d_grad_input", x2, w2, **options, size=_two(whole[2:], 1))
        else:
            y = c.op("conv2d", x2, w2, **options)
    if bias is not None:
        y = c.op("add", y, c.builder.reshape(bias, (1, c.shape(bias)[0], *[1] * (c.rank(y) - 2))))
    return c.squeeze(y, [2]) if rank == 3 else y


@rule("convolution_backward")
def convolution_backward(
    c: Context,
    g: Value,
    x: Value,
    w: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    if c.rank(x) == 5:
        return _convolution3d_backward(c, g, x, w, (stride, padding, dilation, groups), transposed, mask)
    options = _options(stride, padding, dilation, groups)
    rank = c.rank(x)
    g2, x2, w2 = _as_plane(c, g), _as_plane(c, x), _as_plane(c, w)
    grad_x = grad_w = grad_b = None
    if mask[0]:
        if transposed:
            grad_x = c.op("conv2d", g2, w2, **options)
        else:
            grad_x = c.op("conv2d_grad_input", g2, w2, **options, size=c.shape(x2)[2:])
    if mask[1]:
        # In a transposed convolution, input and gradient change places.
        pair = (x2, g2) if transposed else (g2, x2)
        grad_w = c.op("conv2d_grad_weight", *pair, **options, size=c.shape(w2)[2:])
    if mask[2]:
        grad_b = c.squeeze(c.op("sum", g2, dims=(0, 2, 3)), [0, 2, 3])
    if rank == 3:
        grad_x = None if grad_x is None else c.squeeze(grad_x, [2])
        grad_w = None if grad_w is None else c.squeeze(grad_w, [2])
    return grad_x, grad_w, grad_b


def _convolution3d_backward(
    c: Context,
    g: Value,
    x: Value,
    w: Value,
    options: tuple[Sequence[int], Sequence[int], Sequence[int], int],
    transposed: bool,
    mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    # In a transposed convolution, input and gradient change places.
    fine, coarse = (g, x) if transposed else (x, g)
    convolution = Convolution3d(c, c.shape(fine), c.shape(w), *options)
    grad_x = grad_w = grad_b = None
    if mask[0]:
        grad_x = convolution.forward(g, w) if transposed else convolution.grad_input(g, w)
    if mask[1]:
        grad_w = convolution.grad_weight(coarse, fine)
    if mask[2]:
        grad_b = c.squeeze(c.op("sum", g, dims=(0, 2, 3, 4)), [0, 2, 3, 4])
    return grad_x, grad_w, grad_b


def _pair(items: Sequence[int]) -> tuple[int, int]:
    """An option of both axes, which may be given once."""
    return items[0], items[-1]


def _overhang(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
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
    k, s, p, d = (_pair(items) for items in (kernel, stride or kernel, padding, dilation))
    n, channels, height, width = c.shape(x)
    extra = [_overhang(c.shape(x)[2 + a], k[a], s[a], p[a], d[a], ceil_mode) for a in (0, 1)]
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


@rule("max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward")
def max_pool_backward(c: Context, g: Value, x: Value, *options: object) -> Value:
    """Gradient by the indices, which are the last of the options; the others do not count."""
    index = options[-1] if options else None
    assert isinstance(index, Value)
    outer, sizes = c.shape(x)[:-2], c.shape(x)[-2:]
    count = prod(c.shape(g)[-2:])
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
        self.kernel, self.stride, self.padding = _pair(kernel), _pair(stride or kernel), _pair(padding)
        self.extra = [
            _overhang(n, k, s, p, 1, ceil_mode)
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
        self._c, self._include_pad, self._divisor = c, include_pad, divisor

    def ones(self) -> Value:
        """Weights of a convolution that adds up windows."""
        return self._c.builder.constant(1.0, DType.F32, (1, 1, *self.kernel))

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
                shape = (len(held), 1) if axis == 0 else (1, len(held))
                along.append(c.builder.reshape(c.literal(held.to(torch.float32)), shape))
        return c.op("mul", *along)


@rule("avg_pool2d")
def avg_pool(c: Context, x: Value, kernel: Sequence[int], *options: Any) -> Value:
    outer, sizes = c.shape(x)[:-2], c.shape(x)[-2:]
    windows = Averages(c, sizes, kernel, *options)
    planes = pad(c, c.builder.reshape(x, (prod(outer), 1, *sizes)), [0] * 4, [0, 0, *windows.extra])
    total = c.op("conv2d", planes, windows.ones(), **windows.options)
    return c.builder.reshape(c.op("div", total, windows.count()), (*outer, *windows.outputs))


@rule("avg_pool2d_backward")
def avg_pool_backward(c: Context, g: Value, x: Value, kernel: Sequence[int], *options: Any) -> Value:
    outer, sizes = c.shape(x)[:-2], c.shape(x)[-2:]
    windows = Averages(c, sizes, kernel, *options)
    share = c.builder.reshape(c.op("div", g, windows.count()), (prod(outer), 1, *windows.outputs))
    wider = tuple(n + e for n, e in zip(sizes, windows.extra, strict=True))
    back = c.op("conv2d_grad_input", share, windows.ones(), **windows.options, size=wider)
    for axis, size in enumerate(sizes):
        if windows.extra[axis]:
            back = c.op("slice", back, dim=2 + axis, start=0, stop=size, step=1)
    return c.builder.reshape(back, c.shape(x))


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
