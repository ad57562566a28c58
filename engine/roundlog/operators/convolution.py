"""2-d convolutions and their gradients, as contractions: windows are multiplied as matrices, because a library's own
convolutions may be FFT or Winograd algorithms, which keep no elementwise bound."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from roundlog.kernels.exact_products import Runs
from roundlog.operators.bounds import Ambiguous, Bound, ProductBound
from roundlog.operators.contraction import (
    Contraction,
    Index,
    blocked_product,
    column_energies,
    row_energies,
    row_norms,
)
from roundlog.operators.cpu import conv
from roundlog.operators.registry import (
    Attributes,
    Tensors,
    Types,
    integer,
    ints,
    register,
)
from roundlog.operators.summation import (
    SLACK,
    Measures,
    Shapes,
    Summation,
    additions_of_taps,
    blocked_gamma,
    gamma,
    parts_keep_chain,
)
from roundlog.program import ProgramError, TensorType

Shape = tuple[int, ...]


class _Convolution(Contraction):
    """Base of the three convolutions. x[N, C, H, W], w[O, C/groups, I, J], g[N, O, P, Q] with P = (H + 2 padding -
    dilation (I - 1) - 1) // stride + 1, Q likewise; the product of g[n, o, p, q], w[o, c, i, j] and x[n, c', p stride +
    i dilation - padding, q stride + j dilation - padding], c' = c + the group's first channel, belongs together.
    Products with padding are left out, also where the other factor is infinite: kernels that write the padding out as
    zeros make NaN of those, which `roundlog.rounding.resolve.settle` computes again."""

    def geometry(self, x: tuple[int, ...], w: tuple[int, ...], attributes: Attributes) -> tuple[int, int]:
        """(P, Q), everything checked."""
        if len(x) != 4 or len(w) != 4:
            raise ProgramError(f"convolves {list(x)} with {list(w)}, expected four axes each")
        lists = [ints(attributes, name) for name in ("stride", "padding", "dilation")]
        groups = integer(attributes, "groups")
        if min(*x, *w) < 1:
            raise ProgramError(f"convolves {list(x)} with {list(w)}, and one of them is empty")
        if any(len(item) != 2 for item in lists) or min(*lists[0], *lists[2], groups) < 1 or min(lists[1]) < 0:
            raise ProgramError(f"has the impossible stride, padding, dilation or groups {lists}, {groups}")
        if max(*lists[0], *lists[1], *lists[2]) >= 2**20:
            raise ProgramError("has a stride, padding or dilation of a million or more")
        if x[1] % groups or w[0] % groups or w[1] != x[1] // groups:
            raise ProgramError(f"weights {list(w)} do not fit {list(x)} in {groups} groups")
        sizes = []
        for a, (stride, padding, dilation) in enumerate(zip(*lists, strict=True)):
            span = x[2 + a] + 2 * padding - dilation * (w[2 + a] - 1) - 1
            if span < 0:
                raise ProgramError(f"the kernel {list(w)} is larger than the padded input {list(x)}")
            sizes.append(span // stride + 1)
        return sizes[0], sizes[1]

    def workspace(self, inputs: Types, attributes: Attributes, output: TensorType) -> int:
        x, w, g = self.roles(inputs[0].shape, inputs[1].shape, output.shape)
        # im2col writes out every window of x: a column of channels * taps for every output position.
        columns = g[0] * g[2] * g[3] * x[1] * w[2] * w[3]
        return super().workspace(inputs, attributes, output) + 8 * columns

    @staticmethod
    @abstractmethod
    def roles(a: Shape, b: Shape, y: Shape) -> tuple[Shape, Shape, Shape]:
        """(x, w, g) of the class docstring, from the shapes of the inputs and the output."""

    @staticmethod
    def options(attributes: Attributes) -> tuple[Shape, Shape, Shape, int]:
        stride, padding, dilation = (ints(attributes, name) for name in ("stride", "padding", "dilation"))
        return stride, padding, dilation, integer(attributes, "groups")

    @staticmethod
    def columns(x: torch.Tensor, kernel: Shape, attributes: Attributes) -> torch.Tensor:
        """f64[N, groups, C/groups * I * J, P * Q]: every window of x as a column (im2col), on any device."""
        stride, padding, dilation, groups = _Convolution.options(attributes)
        wide = F.unfold(x.to(torch.float64), kernel, dilation, padding, stride)
        return wide.reshape(x.shape[0], groups, -1, wide.shape[2])

    rounded: ClassVar[Callable[..., tuple[torch.Tensor, Ambiguous]]]
    """Both inputs, what is convolved and the scale -> what `certify` returns, on the CPU."""
    runs_of: ClassVar[Callable[..., tuple[Runs, Runs, Index, Index]]]
    """Both inputs, what is convolved and elements -> what `runs` returns."""

    def certify(self, inputs: Tensors, attributes: Attributes, scale: float) -> tuple[torch.Tensor, Ambiguous]:
        a, b = inputs
        if a.device.type != "cpu":
            return super().certify(inputs, attributes, scale)
        return type(self).rounded(a, b, self._convolved(inputs, attributes), scale)

    def runs(self, inputs: Tensors, attributes: Attributes, elements: Index) -> tuple[Runs, Runs, Index, Index]:
        return type(self).runs_of(*inputs, self._convolved(inputs, attributes), elements)

    def _convolved(self, inputs: Tensors, attributes: Attributes) -> conv.Shape:
        shapes = (tuple(inputs[0].shape), tuple(inputs[1].shape))
        x, w, g = self.roles(*shapes, self.output_shape(shapes, attributes))
        stride, padding, dilation, groups = self.options(attributes)
        geometry = np.array([*x[2:], *w[2:], *g[2:], *stride, *padding, *dilation], dtype=np.int64)
        return conv.Shape(x[0], x[1], w[0], groups, geometry)


def _plain_convolution() -> AbstractContextManager[None]:
    """Convolution for sums of squares: cuDNN may choose FFT or Winograd algorithms, which keep no elementwise bound."""
    manager: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=False)
    return manager


def _channel_energies(x: torch.Tensor) -> torch.Tensor:
    """f32[N, C, H, W] -> f64[C]."""
    n, channels = x.shape[:2]
    return row_energies(x.reshape(n, channels, prod(x.shape[2:]))).sum(0)


@register("conv2d")
class Conv2d(_Convolution):
    @staticmethod
    def roles(a: Shape, b: Shape, y: Shape) -> tuple[Shape, Shape, Shape]:
        return a, b, y

    def output_shape(self, shapes: Shapes, attributes: Attributes) -> tuple[int, ...]:
        x, w = shapes
        return (x[0] if x else 0, w[0] if w else 0, *self.geometry(x, w, attributes))

    def terms(self, shapes: Shapes, attributes: Attributes) -> int:
        return prod(shapes[1][1:])

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        x, w = inputs
        groups = self.options(attributes)[3]
        columns = self.columns(x, tuple(w.shape[2:]), attributes)
        y = blocked_product(w.reshape(groups, w.shape[0] // groups, -1), columns)
        return y.reshape(self.output_shape((tuple(x.shape), tuple(w.shape)), attributes))

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        x, w = inputs
        stride, padding, dilation, groups = self.options(attributes)
        n, channels, height, width = x.shape
        planes = x.reshape(n * groups, channels // groups, height * width)
        energy = column_energies(planes).reshape(n * groups, 1, height, width)
        ones = torch.ones((1, 1, *w.shape[2:]), dtype=torch.float64, device=x.device)
        with _plain_convolution():
            windows = F.conv2d(energy, ones, None, stride, padding, dilation).sqrt_()
        weights = row_norms(w.reshape(w.shape[0], -1)) * blocked_gamma(prod(w.shape[1:]))
        return ProductBound(weights.repeat(n), windows.reshape(n * groups, -1))

    rounded = staticmethod(conv.forward)
    runs_of = staticmethod(conv.forward_runs)


@register("conv2d_grad_input")
class Conv2dGradInput(_Convolution):
    @staticmethod
    def roles(a: Shape, b: Shape, y: Shape) -> tuple[Shape, Shape, Shape]:
        return y, b, a

    def _x(self, shapes: Shapes, attributes: Attributes) -> tuple[int, ...]:
        g, w = shapes
        size = ints(attributes, "size")
        if len(g) != 4 or len(w) != 4 or len(size) != 2 or min(size) < 1:
            raise ProgramError(f"cannot take the gradient {list(g)} back through {list(w)} to {list(size)}")
        return (g[0], w[1] * integer(attributes, "groups"), *size)

    def output_shape(self, shapes: Shapes, attributes: Attributes) -> tuple[int, ...]:
        g, w = shapes
        x = self._x(shapes, attributes)
        out = self.geometry(x, w, attributes)
        if g[1:] != (w[0], *out):
            raise ProgramError(f"the gradient {list(g)} does not fit an output of {[g[0], w[0], *out]}")
        return x

    def terms(self, shapes: Shapes, attributes: Attributes) -> int:
        w = shapes[1]
        return w[0] // integer(attributes, "groups") * w[2] * w[3]

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        g, w = inputs
        stride, padding, dilation, groups = self.options(attributes)
        x = self._x((tuple(g.shape), tuple(w.shape)), attributes)
        gradients = g.reshape(g.shape[0], groups, g.shape[1] // groups, -1)
        columns = blocked_product(w.reshape(groups, w.shape[0] // groups, -1).mT, gradients)
        columns = columns.reshape(g.shape[0], x[1] * prod(w.shape[2:]), -1)
        return F.fold(columns, x[2:], tuple(w.shape[2:]), dilation, padding, stride)

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        g, w = inputs
        stride, padding, dilation, groups = self.options(attributes)
        n = g.shape[0]
        planes = g.reshape(n * groups, g.shape[1] // groups, prod(g.shape[2:]))
        energy = column_energies(planes).reshape(n * groups, 1, *g.shape[2:])
        ones = torch.ones((1, 1, *w.shape[2:]), dtype=torch.float64, device=g.device)
        # conv_transpose2d needs to know which of several inputs of one output size is meant.
        extra = [
            y.shape[2 + a]
            - ((g.shape[2 + a] - 1) * stride[a] - 2 * padding[a] + dilation[a] * (w.shape[2 + a] - 1) + 1)
            for a in (0, 1)
        ]
        with _plain_convolution():
            windows = F.conv_transpose2d(energy, ones, None, stride, padding, extra, 1, dilation)
        outputs, taps = w.shape[0] // groups, w.shape[2] * w.shape[3]
        by_channel = w.reshape(groups, outputs, w.shape[1], taps).transpose(1, 2)
        weights = row_norms(by_channel.reshape(groups * w.shape[1], -1))
        weights = weights * gamma(additions_of_taps(outputs, taps) + 1) * SLACK
        return ProductBound(weights.repeat(n), windows.clamp_(min=0).sqrt_().reshape(n * groups, -1))

    rounded = staticmethod(conv.to_input)
    runs_of = staticmethod(conv.to_input_runs)


@register("conv2d_grad_weight")
class Conv2dGradWeight(_Convolution, Summation):
    @staticmethod
    def roles(a: Shape, b: Shape, y: Shape) -> tuple[Shape, Shape, Shape]:
        return b, y, a

    def _w(self, shapes: Shapes, attributes: Attributes) -> tuple[int, ...]:
        g, x = shapes
        size, groups = ints(attributes, "size"), integer(attributes, "groups")
        if len(g) != 4 or len(x) != 4 or len(size) != 2 or groups < 1:
            raise ProgramError(f"cannot correlate {list(g)} with {list(x)} into a kernel of {list(size)}")
        return (g[1], x[1] // groups, *size)

    def output_shape(self, shapes: Shapes, attributes: Attributes) -> tuple[int, ...]:
        g, x = shapes
        w = self._w(shapes, attributes)
        out = self.geometry(x, w, attributes)
        if g != (x[0], w[0], *out):
            raise ProgramError(f"the gradient {list(g)} does not fit an output of {[x[0], w[0], *out]}")
        return w

    def terms(self, shapes: Shapes, attributes: Attributes) -> int:
        g = shapes[0]
        return g[0] * g[2] * g[3]

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        g, x = inputs
        groups = self.options(attributes)[3]
        w = self._w((tuple(g.shape), tuple(x.shape)), attributes)
        gradients = g.reshape(g.shape[0], groups, g.shape[1] // groups, -1).permute(1, 2, 0, 3).flatten(2)
        columns = self.columns(x, w[2:], attributes).permute(1, 2, 0, 3).flatten(2)
        return blocked_product(gradients, columns.mT).reshape(w)

    def measures(self, inputs: Tensors, attributes: Attributes) -> Measures:
        """The squared norms of the channels of g, and of everything that a tap reads of a channel of x: where maps are
        small, some taps read nothing but padding. f64[O] and f64[groups, C/groups * I * J]."""
        g, x = inputs
        energy = column_energies(x.reshape(1, x.shape[0], prod(x.shape[1:]))).reshape(1, *x.shape[1:])
        of_x = self.columns(energy, ints(attributes, "size"), attributes).sum(-1)
        return _channel_energies(g), of_x.reshape(integer(attributes, "groups"), -1)

    def bound_of(self, measures: Measures, terms: int) -> Bound:
        of_g, of_x = (energy.sqrt() for energy in measures)
        return ProductBound(of_g * blocked_gamma(terms), of_x)

    def part(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Measures]:
        g, x = inputs
        if g.device.type == "cpu":
            return conv.weight_sums(g, x, self._convolved(inputs, attributes))
        return super().part(inputs, attributes)

    def measured(self, part: Types, output: TensorType) -> int:
        g, x = part
        return g.shape[1] + x.shape[1] * prod(output.shape[2:])

    def keeps_bound(self, parts: Sequence[int]) -> bool:
        return parts_keep_chain(parts)

    rounded = staticmethod(conv.to_weight)
    runs_of = staticmethod(conv.to_weight_runs)
