"""Distances between all rows of two matrices."""

from __future__ import annotations

from math import inf, prod

import torch

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.elementwise import sign
from roundlog.capture.rules.powers import pow_
from roundlog.capture.rules.reduction import vector_norm
from roundlog.capture.rules.table import Context, rule

MAX_DIFFERENCES = 1 << 28
"""Every row is subtracted from every other: above so many differences an operator is refused."""


def _differences(c: Context, a: Value, b: Value) -> Value:
    """[..., P, M] and [..., R, M] -> [..., P, R, M]."""
    (rows, width), count = c.shape(a)[-2:], c.shape(b)[-2]
    outer = torch.broadcast_shapes(c.shape(a)[:-2], c.shape(b)[:-2])
    if prod(outer) * rows * count * width > MAX_DIFFERENCES:
        raise CaptureError(
            f"subtracts {rows} rows of {width} from {count}, more than {MAX_DIFFERENCES} differences: use fewer rows"
        )
    return c.op(
        "sub",
        c.builder.reshape(a, (*c.shape(a)[:-2], rows, 1, width)),
        c.builder.reshape(b, (*c.shape(b)[:-2], 1, count, width)),
    )


@rule("_cdist_forward", at_capture=True)
def distances(c: Context, a: Value, b: Value, p: float, mode: int | None = None) -> Value:
    """The p-norms of all differences, each as linalg_vector_norm."""
    return vector_norm(c, _differences(c, a, b), p, (-1,))


@rule("_cdist_backward", at_capture=True)
def distances_backward(c: Context, g: Value, a: Value, b: Value, p: float, distance: Value) -> Value:
    """The gradient of the first rows; where a distance is zero, zero."""
    difference, zero = _differences(c, a, b), c.f32(0.0)
    g, distance = (c.builder.reshape(x, (*c.shape(x), 1)) for x in (g, distance))
    if p == 0:
        each = c.op("mul", zero, difference)
    elif p == 1:
        each = c.op("mul", g, sign(c, difference))
    elif p == inf:
        largest = c.op("eq", c.op("abs", difference), distance)
        each = c.op("where", largest, c.op("mul", g, sign(c, difference)), zero)
    else:
        none = c.op("eq", distance, zero)
        ratio = c.op("div", difference, c.op("where", none, c.f32(1.0), distance))
        if p != 2:
            # g * sign(d) * (|d| / distance)^(p - 1); where d is zero, zero.
            still = c.op("eq", ratio, zero)
            size = pow_(c, c.op("where", still, c.f32(1.0), c.op("abs", ratio)), p - 1)
            ratio = c.op("where", still, zero, c.op("mul", sign(c, ratio), size))
        each = c.op("where", none, zero, c.op("mul", g, ratio))
    axis = c.rank(each) - 2
    return c.squeeze(c.op("sum", each, dims=(axis,)), [axis])
