"""Convolutions written as products of matrices, by operators that every program has: windows are laid beside each other
(im2col) by slices that are joined, so that a product's terms have the order that is stated for each.

A convolution is that of `roundlog.operators.convolution`: x[N, C, H, W], w[O, C/groups, I, J], g[N, O, P, Q].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from roundlog.operators.movement import MAX_JOINED
from roundlog.operators.registry import integer, ints, operator
from roundlog.program import Attribute, DType, Node, TensorType


@dataclass(slots=True)
class NodeList:
    """Nodes of a program that is being written; values are their indices."""

    nodes: list[Node] = field(default_factory=list)
    source: str = ""
    """Line of the user's that following nodes come from."""

    def add(self, name: str, *inputs: int, **attributes: Attribute) -> int:
        """Append an operator. Raises ProgramError if it does not apply."""
        types = [self.nodes[value].type for value in inputs]
        kind = operator(name).infer(types, attributes, TensorType((), DType.F32))
        return self.append(Node(name, inputs, attributes, kind, self.source))

    def append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def constant(self, bits: int, kind: TensorType) -> int:
        """A tensor filled with one pattern."""
        return self.append(Node("constant", (), {"bits": (bits,)}, kind, self.source))

    def type(self, value: int) -> TensorType:
        return self.nodes[value].type

    def shape(self, value: int) -> tuple[int, ...]:
        return self.nodes[value].type.shape

    def reshape(self, value: int, *shape: int) -> int:
        return value if self.shape(value) == shape else self.add("reshape", value, shape=shape)

    def permute(self, value: int, *dims: int) -> int:
        return value if dims == tuple(range(len(dims))) else self.add("permute", value, dims=dims)

    def cut(self, value: int, dim: int, start: int, stop: int, step: int = 1) -> int:
        if (start, stop, step) == (0, self.shape(value)[dim], 1):
            return value
        return self.add("slice", value, dim=dim, start=start, stop=stop, step=step)

    def padded(self, value: int, low: Sequence[int], high: Sequence[int]) -> int:
        """With zeros before and behind every axis."""
        if not any((*low, *high)):
            return value
        zero = self.constant(0, TensorType((), self.type(value).dtype))
        return self.add("pad", value, zero, low=tuple(low), high=tuple(high))

    def joined(self, values: Sequence[int], dim: int) -> int:
        """One after another, in groups if they are many."""
        while len(values) > MAX_JOINED:
            starts = range(0, len(values), MAX_JOINED)
            values = [self.joined(values[start : start + MAX_JOINED], dim) for start in starts]
        return values[0] if len(values) == 1 else self.add("cat", *values, dim=dim)


@dataclass(frozen=True, slots=True)
class _Taps:
    """Along one axis of an input, what the kernel's taps read for all outputs: tap t reads first + t * step, and every
    `stride`-th after it, `outputs` of them. Of the input `low` zeros come before it, and enough behind."""

    count: int
    first: int
    step: int
    stride: int
    outputs: int

    def ends(self) -> tuple[int, int]:
        """The least place that is read, and the one behind the last."""
        last = self.first + (self.count - 1) * self.step
        return min(self.first, last), max(self.first, last) + (self.outputs - 1) * self.stride + 1


def _columns(new: NodeList, x: int, taps: tuple[_Taps, _Taps], groups: int) -> int:
    """[channels, N, height, width] -> [groups, channels/groups * taps * taps, N * outputs * outputs]: by channel, tap
    and tap, what they read for all outputs of all samples."""
    shape = new.shape(x)
    low, high = [0, 0], [0, 0]
    for axis, size in enumerate(shape[2:]):
        start, stop = taps[axis].ends()
        low.append(max(0, -start))
        high.append(max(0, stop - size))
    x = new.padded(x, low, high)
    for axis in (0, 1):
        # The rows' taps have become an axis before the samples' when it comes to those of the columns.
        samples, dim = 1 + axis, 2 + 2 * axis
        its, parts = taps[axis], []
        for tap in range(its.count):
            start = low[2 + axis] + its.first + tap * its.step
            part = new.cut(x, dim, start, start + (its.outputs - 1) * its.stride + 1, its.stride)
            sizes = new.shape(part)
            parts.append(new.reshape(part, *sizes[:samples], 1, *sizes[samples:]))
        x = new.joined(parts, samples)
    channels, samples = shape[:2]
    terms = channels // groups * taps[0].count * taps[1].count
    return new.reshape(x, groups, terms, samples * taps[0].outputs * taps[1].outputs)


def _turned(new: NodeList, x: int) -> int:
    """[N, C, H, W] as [C, N, H, W], and back."""
    return new.permute(x, 1, 0, 2, 3)


def _axes(node: Node) -> list[tuple[int, int, int]]:
    """Stride, padding and dilation of both axes."""
    lists = [ints(node.attributes, name) for name in ("stride", "padding", "dilation")]
    return [(lists[0][axis], lists[1][axis], lists[2][axis]) for axis in (0, 1)]


def _windows(new: NodeList, node: Node, x: int, kernel: Sequence[int], outputs: Sequence[int]) -> int:
    """The columns of x, by (c, i, j), of (n, p, q)."""
    rows, columns = (
        _Taps(kernel[axis], -padding, dilation, stride, outputs[axis])
        for axis, (stride, padding, dilation) in enumerate(_axes(node))
    )
    return _columns(new, _turned(new, x), (rows, columns), integer(node.attributes, "groups"))


Multiply = Callable[[int, int], int]
"""Appends a product [groups, M, K] @ [groups, K, N], or of matrices, of two values."""


def _product(new: NodeList, multiply: Multiply, a: int, b: int) -> int:
    """[groups, M, K] @ [groups, K, N]; of one group, a product of matrices."""
    if new.shape(a)[0] > 1:
        return multiply(a, b)
    return multiply(new.reshape(a, *new.shape(a)[1:]), new.reshape(b, *new.shape(b)[1:]))


def forward(new: NodeList, node: Node, x: int, w: int, multiply: Multiply, bias: int | None = None) -> int:
    """conv2d: the terms of y[n, o, p, q] by channel of the group, kernel row and kernel column; padding is zeros, which
    are terms. bias: [O], last term of every sum, times 1."""
    groups, (o, _, *kernel), out = integer(node.attributes, "groups"), new.shape(w), node.type.shape
    columns = _windows(new, node, x, kernel, out[2:])
    weights = new.reshape(w, groups, o // groups, prod(new.shape(w)[1:]))
    if bias is not None:
        weights = new.joined([weights, new.reshape(bias, groups, o // groups, 1)], 2)
        dtype, outputs = new.type(columns).dtype, new.shape(columns)[2]
        format = dtype.number_format()
        assert format is not None
        one = new.constant(format.of_float32(_ONE), TensorType((groups, 1, outputs), dtype))
        columns = new.joined([columns, one], 1)
    y = _product(new, multiply, weights, columns)
    return _turned(new, new.reshape(y, o, out[0], *out[2:]))


_ONE = 127 << 23
"""1 as FP32's pattern."""


def grad_input(new: NodeList, node: Node, g: int, w: int, multiply: Multiply) -> int:
    """conv2d_grad_input: the terms of x[n, c, h, v] by output channel of the group, kernel row and kernel column; where
    no output reads x through a tap, a zero is the term."""
    groups, (o, channels, *kernel) = integer(node.attributes, "groups"), new.shape(w)
    samples, _, *outputs = new.shape(g)
    size = node.type.shape[2:]
    g, axes = _turned(new, g), _axes(node)
    # Zeros between the outputs: output p stands at p * stride.
    strides = [stride for stride, _, _ in axes]
    if max(strides) > 1:
        g = new.reshape(g, o, samples, outputs[0], 1, outputs[1], 1)
        g = new.padded(g, [0] * 6, [0, 0, 0, strides[0] - 1, 0, strides[1] - 1])
        g = new.reshape(g, o, samples, outputs[0] * strides[0], outputs[1] * strides[1])
    rows, columns = (
        _Taps(kernel[axis], padding, -dilation, 1, size[axis]) for axis, (_, padding, dilation) in enumerate(axes)
    )
    windows = _columns(new, g, (rows, columns), groups)
    weights = new.permute(new.reshape(w, groups, o // groups, channels, prod(kernel)), 0, 2, 1, 3)
    weights = new.reshape(weights, groups, channels, o // groups * prod(kernel))
    x = _product(new, multiply, weights, windows)
    return _turned(new, new.reshape(x, groups * channels, samples, *size))


def grad_weight(new: NodeList, node: Node, g: int, x: int, multiply: Multiply) -> int:
    """conv2d_grad_weight: the terms of w[o, c, i, j] by sample, output row and output column; what meets padding is a
    zero, and a term."""
    groups, (samples, o, *outputs) = integer(node.attributes, "groups"), new.shape(g)
    columns = _windows(new, node, x, node.type.shape[2:], outputs)
    gradients = new.reshape(_turned(new, g), groups, o // groups, samples * prod(outputs))
    return new.reshape(_product(new, multiply, gradients, new.permute(columns, 0, 2, 1)), *node.type.shape)


CONVOLUTIONS: dict[str, Callable[[NodeList, Node, int, int, Multiply], int]] = {
    "conv2d": forward,
    "conv2d_grad_input": grad_input,
    "conv2d_grad_weight": grad_weight,
}
"""By a convolution's name, its output: given the list, the node, its two inputs there, and how to multiply."""
