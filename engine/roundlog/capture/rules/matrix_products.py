"""Matrix products, and solutions of triangular systems."""

from __future__ import annotations

from math import prod

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.rule_table import Context, Scalar, rule


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
