"""Sums, means, extremes and norms of chosen rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from torch import fx

from roundlog.capture.builder import Value
from roundlog.capture.chosen.axes import Axes
from roundlog.capture.chosen.row_calls import Call, Lowered, lowers
from roundlog.capture.rules.reduction import kept
from roundlog.program import DType

_LARGEST = 2**63 - 1


def _over(call: Call, x: fx.Node) -> tuple[tuple[int, ...], Axes]:
    """The axes that are reduced, and the masks of the others."""
    rank = len(call.shape(x))
    dims = call.argument("dim")
    over = call.c.dims(dims, rank)
    axes = call.axes(x)
    keepdim = bool(call.argument("keepdim", False))
    left = [None if dim in over else mask for dim, mask in enumerate(axes) if keepdim or dim not in over]
    return over, tuple(left)


def _limit(call: Call, x: fx.Node, sign: int) -> float | bool:
    """The number that is beyond all others of its dtype."""
    dtype = call.c.dtype(call.value(x))
    if dtype == DType.BOOL:
        return sign > 0
    return sign * inf if dtype == DType.F32 else _LARGEST if sign > 0 else -_LARGEST - 1


def _reduced(call: Call, fill: float | bool) -> Lowered:
    x: Any = call.node.args[0]
    over, left = _over(call, x)
    chosen = any(call.axes(x)[dim] is not None for dim in over)
    return call.plain({x: call.filled(x, fill)} if chosen else {}), left


@lowers("sum", "any", "linalg_vector_norm")
def total(call: Call) -> Lowered:
    order = call.argument("ord", 2)
    if order < 0:
        call.refuse("takes a norm of a negative order of chosen elements")
    return _reduced(call, 0)


@lowers("all", "prod")
def product(call: Call) -> Lowered:
    return _reduced(call, 1)


@lowers("amax", "max")
def largest(call: Call) -> Lowered:
    return _reduced(call, _limit(call, call.node.args[0], -1))  # type: ignore[arg-type]


@lowers("amin", "min")
def smallest(call: Call) -> Lowered:
    return _reduced(call, _limit(call, call.node.args[0], 1))  # type: ignore[arg-type]


@lowers("argmax", "argmin")
def place(call: Call) -> Lowered:
    """Places along axes that all count along."""
    x: Any = call.node.args[0]
    over, left = _over(call, x)
    if any(call.axes(x)[dim] is not None for dim in over):
        call.refuse("asks for the place of a chosen element")
    return call.plain(), left


@lowers("max.dim", "min.dim")
def extreme_and_place(call: Call) -> Lowered:
    values, axes = place(call)
    return values, (axes, axes)


@lowers("topk", "sort", "sort.stable", "kthvalue", "median.dim", "median", "cummax", "cummin", "cumprod")
def ordered(call: Call) -> Lowered:
    """Orders along axes that all count along."""
    x: Any = call.node.args[0]
    axes, rank = call.axes(x), len(call.shape(x))
    if str(call.node.target) == "aten.median.default":
        call.refuse("orders chosen elements")
    dim = call.c.dim(call.argument("dim", -1), rank)
    if axes[dim] is not None:
        call.refuse("orders chosen elements")
    left = axes
    if any(name in str(call.node.target) for name in ("kthvalue", "median")) and not call.argument("keepdim", False):
        left = tuple(mask for axis, mask in enumerate(axes) if axis != dim)
    result = call.plain()
    return (result, (left, left)) if isinstance(result, tuple) else (result, left)


@lowers("cumsum")
def running(call: Call) -> Lowered:
    x: Any = call.node.args[0]
    return call.plain({x: call.filled(x, 0)}), call.axes(x)


@lowers("_softmax", "_log_softmax", "_safe_softmax")
def softmax(call: Call) -> Lowered:
    """Exponentials of what does not count are zero."""
    x: Any = call.node.args[0]
    dim = call.c.dim(call.argument("dim"), len(call.shape(x)))
    chosen = call.axes(x)[dim] is not None
    return call.plain({x: call.filled(x, -inf)} if chosen else {}), call.axes(x)


def _mean(call: Call, x: Value, axes: Axes, over: Sequence[int]) -> tuple[Value, Value]:
    """The mean over axes that stay, and the number of elements in it, f32."""
    c = call.c
    count = c.i64(1)
    for dim in over:
        mask = axes[dim]
        size = c.i64(c.shape(x)[dim]) if mask is None else call.table.count(mask)
        count = c.op("mul", count, size)
    count = c.builder.convert(count, DType.F32)
    return c.op("div", c.op("sum", call.table.filled(x, axes, 0), dims=tuple(over)), count), count


@lowers("mean")
def mean(call: Call) -> Lowered:
    x: Any = call.node.args[0]
    over, left = _over(call, x)
    axes = call.axes(x)
    if all(axes[dim] is None for dim in over):
        return call.plain(), left
    value = call.c.to_torch_dtype(call.value(x), call.argument("dtype"))
    found = _mean(call, value, axes, over)[0]
    return kept(call.c, found, over, bool(call.argument("keepdim", False))), left


@lowers("var.correction", "var_mean.correction")
def variance(call: Call) -> Lowered:
    x: Any = call.node.args[0]
    over, left = _over(call, x)
    both = "var_mean" in str(call.node.target)
    axes, c = call.axes(x), call.c
    if all(axes[dim] is None for dim in over):
        return call.plain(), (left, left) if both else left
    average, count = _mean(call, call.value(x), axes, over)
    centred = call.table.filled(c.op("sub", call.value(x), average), axes, 0)
    squares = c.op("sum", c.op("mul", centred, centred), dims=over)
    left_over = c.op("maximum", c.op("sub", count, c.f32(call.argument("correction", 1))), c.f32(0.0))
    keepdim = bool(call.argument("keepdim", False))
    found = kept(c, c.op("div", squares, left_over), over, keepdim)
    return ((found, kept(c, average, over, keepdim)), (left, left)) if both else (found, left)
