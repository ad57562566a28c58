"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.pooling import Convolution3d
from roundlog.capture.rules.rule_table import Context, Scalar, rule
from roundlog.program import Attribute


@rule("mm", "bmm")
def matmul(c: Context, a: Value, b: Value) -> Value:
    return c.op("matmul", a, b)


def _scaled(c: Context, x: Value, factor: Scalar) -> Value:
    return x if factor == 1 else c.op("mul", c.f32(factor), x)


@rule("addmm", "baddbmm")
def addmm(c: Context, bias: Value, a: Value, b: Value, *, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    """A product, rounded, and a bias that is added; in BF16, with a bias that is the same for every row, one sum."""
    if beta == 0:  # then it does not matter what the bias is
        return _scaled(c, c.op("matmul", a, b), alpha)
    if c.dtype(a).is_short:
        return _product_with_row(c, bias, a, b, beta)
    return c.op("add", _scaled(c, c.op("matmul", a, b), alpha), _scaled(c, bias, beta))


def _product_with_row(c: Context, bias: Value, a: Value, b: Value, beta: Scalar) -> Value:
    """A column of betas beside a, times the bias below b."""
    outer, rank, columns = c.shape(b)[:-2], c.rank(b), c.shape(b)[-1]
    bias = c.builder.reshape(bias, (1,) * (rank - c.rank(bias)) + c.shape(bias))
    row = c.builder.expand(bias, (*outer, 1, columns))
    factors = c.builder.constant(beta, c.dtype(a), (*c.shape(a)[:-1], 1))
    a = c.op("cat", a, factors, dim=rank - 1)
    node = c.builder.nodes[b]
    if rank == 2 and node.op == "permute":
        # The weight of a layer, which lies in memory as it was before: longer lines of it are copied faster.
        weight = c.op("cat", Value(node.inputs[0]), c.move(row, 0, 1), dim=1)
        return c.op("matmul", a, c.move(weight, 0, 1))
    return c.op("matmul", a, c.op("cat", b, row, dim=rank - 2))


@rule("mv")
def mv(c: Context, a: Value, x: Value) -> Value:
    column = c.builder.reshape(x, (c.shape(x)[0], 1))
    return c.squeeze(c.op("matmul", a, column), [1])


@rule("dot")
def dot(c: Context, a: Value, b: Value) -> Value:
    n = c.shape(a)[0]
    product = c.op("matmul", c.builder.reshape(a, (1, n)), c.builder.reshape(b, (n, 1)))
    return c.builder.reshape(product, ())


def _two(name: str, items: Sequence[int], fill: int) -> tuple[int, int]:
    """Options of a 1-d or 2-d convolution as those of a 2-d one: a 1-d one has height 1."""
    if len(items) not in (1, 2):
        raise CaptureError(f"convolves over {len(items)} axes ({name}): one, two and three are supported")
    return (fill, items[0]) if len(items) == 1 else (items[0], items[1])


def _options(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> dict[str, Attribute]:
    return {
        "stride": _two("stride", stride, 1),
        "padding": _two("padding", padding, 0),
        "dilation": _two("dilation", dilation, 1),
        "groups": groups,
    }


def _flat(c: Context, x: Value) -> Value:
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
    if c.rank(x) == 5:
        return _convolution3d(c, x, w, bias, stride, padding, dilation, transposed, groups)
    options = _options(stride, padding, dilation, groups)
    rank = c.rank(x)
    x2, w2 = _flat(c, x), _flat(c, w)
    if transposed:
        size = tuple(int(n) for n in c.node.meta["val"].shape[2:])
        y = c.op("conv2d_grad_input", x2, w2, **options, size=_two("size", size, 1))
    else:
        y = c.op("conv2d", x2, w2, **options)
    if bias is not None:
        y = c.op("add", y, c.builder.reshape(bias, (1, c.shape(bias)[0], 1, 1)))
    return c.squeeze(y, [2]) if rank == 3 else y


def _convolution3d(
    c: Context,
    x: Value,
    w: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> Value:
    shape = tuple(int(n) for n in c.node.meta["val"].shape)
    options = (stride, padding, dilation, groups)
    if transposed:
        y = Convolution3d(c, shape, c.shape(w), *options).grad_input(x, w)
    else:
        y = Convolution3d(c, c.shape(x), c.shape(w), *options).forward(x, w)
    return y if bias is None else c.op("add", y, c.builder.reshape(bias, (1, c.shape(bias)[0], 1, 1, 1)))


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
    g2, x2, w2 = _flat(c, g), _flat(c, x), _flat(c, w)
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


MAX_ROWS = 256
"""Most rows of a triangular system, which are solved one after another."""


@rule("linalg_solve_triangular", at_capture=True)
def solve_triangular(
    c: Context, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    """Solution by substitution, row by row: one contraction with the rows that are known, a difference, a quotient."""
    if not left:
        transposed = (c.move(x, c.rank(x) - 1, c.rank(x) - 2) for x in (a, b))
        x = solve_triangular(c, *transposed, upper=not upper, unitriangular=unitriangular)
        return c.move(x, c.rank(x) - 1, c.rank(x) - 2)
    rows = c.shape(a)[-1]
    if rows > MAX_ROWS:
        raise CaptureError(f"solves a triangular system of {rows} rows: up to {MAX_ROWS} are supported")
    outer = torch.broadcast_shapes(c.shape(a)[:-2], c.shape(b)[:-2])
    a, b = (
        c.builder.reshape(c.builder.expand(x, (*outer, *c.shape(x)[-2:])), (prod(outer), *c.shape(x)[-2:]))
        for x in (a, b)
    )

    def cut(x: Value, dim: int, start: int, stop: int) -> Value:
        return c.op("slice", x, dim=dim, start=start, stop=stop, step=1)

    known: Value | None = None
    for row in range(rows - 1, -1, -1) if upper else range(rows):
        this, line = cut(b, 1, row, row + 1), cut(a, 1, row, row + 1)
        if known is not None:
            weights = cut(line, 2, row + 1, rows) if upper else cut(line, 2, 0, row)
            this = c.op("sub", this, c.op("matmul", weights, known))
        if not unitriangular:
            this = c.op("div", this, cut(line, 2, row, row + 1))
        parts = (this,) if known is None else (this, known) if upper else (known, this)
        known = c.op("cat", *parts, dim=1) if len(parts) > 1 else this
    solved = b if known is None else known
    return c.builder.reshape(solved, (*outer, *c.shape(solved)[1:]))
