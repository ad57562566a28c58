"""Operators that compute with each row that a mask chooses by itself, and sums, means, extremes and norms of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import fx

from roundlog.capture.builder import Value
from roundlog.capture.masked_rows.row_masks import Axes, Call, Lowered, lowers
from roundlog.capture.rules.reductions import cumsum, kept
from roundlog.capture.rules.rule_table import base_name
from roundlog.program import DType

_NAMES = """
    _to_copy alias bernoulli contiguous copy detach elu_backward empty_like fill full_like gelu_backward
    hardshrink_backward hardsigmoid_backward hardswish_backward leaky_relu_backward lift_fresh lift_fresh_copy
    log_sigmoid_backward masked_fill mish_backward new_empty_strided ones_like rsub sigmoid_backward silu_backward
    softplus_backward softshrink_backward tanh_backward zero zeros_like
    exponential normal normal_functional rand_like randint_like randn_like uniform
"""
_LIKE_POINTWISE = frozenset(_NAMES.split())
"""Operators that compute element by element, though PyTorch does not mark them so."""

_STOPPING = frozenset(("remainder", "fmod", "div", "floor_divide", "_to_copy", "round", "pow"))
"""Operators on which some numbers stop a run, which therefore get a harmless one where nothing counts."""


def is_pointwise(node: fx.Node) -> bool:
    """Whether an operator computes element by element."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or base_name(node.target) in _LIKE_POINTWISE


def pointwise(call: Call) -> Lowered:
    """Element by element, the masks of tensors that meet have to be the same."""
    axes = call.broadcast(call.tensors(), len(call.traced.shape))
    replaced = {}
    if base_name(call.node.target) in _STOPPING:
        replaced = {node: call.filled(node, 1) for node in call.tensors()}
    return call.plain(replaced), axes


@lowers(
    "full",
    "zeros",
    "ones",
    "empty",
    "empty_permuted",
    "new_zeros",
    "new_empty",
    "new_full",
    "new_ones",
    "rand",
    "randn",
    "randint",
)
def making(call: Call) -> Lowered:
    """Tensors of one number, or of random ones."""
    return call.plain(), call.made()


@lowers("native_dropout")
def dropout(call: Call) -> Lowered:
    axes = call.axes(call.node.args[0])  # type: ignore[arg-type]
    return call.plain(), (axes, axes)


@lowers("scalar_tensor")
def number(call: Call) -> Lowered:
    """A number of chosen elements as a tensor."""
    (item,) = call.node.all_input_nodes
    found = call.table.number(item.meta["val"])
    return call.c.builder.convert(found, DType.of(call.traced.dtype)), ()


@lowers("arange.start_step", "arange")
def counting(call: Call) -> Lowered:
    """0, 1, 2 ... for the chosen elements: as many as are chosen before each."""
    start, step = call.argument("start", 0), call.argument("step", 1)
    if (start, step) != (0, 1):
        call.refuse("counts chosen elements from another number than 0, or by another step than 1")
    (mask,) = call.made()
    assert mask is not None
    before = call.c.op("sub", cumsum(call.c, mask, 0), call.c.i64(1))
    return call.c.builder.convert(before, DType.of(call.traced.dtype)), (mask,)


def along(call: Call, x: fx.Node, dims: tuple[int, ...], what: str) -> Axes:
    """The masks of a tensor; none may lie along these axes."""
    axes = call.axes(x)
    if any(axes[dim] is not None for dim in dims):
        call.refuse(what)
    return axes


@lowers("native_layer_norm")
def layer_norm(call: Call) -> Lowered:
    x = call.argument("input")
    rank, last = len(call.shape(x)), len(call.argument("normalized_shape"))
    axes = along(call, x, tuple(range(rank - last, rank)), "normalises over chosen elements")
    for other in call.tensors():
        if other is not x and any(call.axes(other)):
            call.refuse()
    outer = (*axes[: rank - last], *[None] * last)
    return call.plain(), (axes, outer, outer)


@lowers("native_group_norm")
def group_norm(call: Call) -> Lowered:
    x, *others = call.tensors()
    axes = along(call, x, tuple(range(1, len(call.shape(x)))), "normalises over chosen elements")
    if any(any(call.axes(other)) for other in others):
        call.refuse()
    return call.plain(), (axes, (axes[0], None), (axes[0], None))


@lowers(
    "max_pool2d_with_indices",
    "avg_pool2d",
    "avg_pool3d",
    "_adaptive_avg_pool2d",
    "convolution",
    "max_pool2d_with_indices_backward",
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
)
def images(call: Call) -> Lowered:
    """Images, some of them chosen by a mask."""
    x, *others = call.tensors()
    rank = len(call.shape(x))
    axes = along(call, x, tuple(range(1, rank)), "looks at the neighbours of chosen elements")
    if axes[0] is None or (rank < 4 and base_name(call.node.target) != "convolution"):
        call.refuse()
    with_batch = base_name(call.node.target).endswith("_backward")
    if any(call.axes(other) != axes if with_batch else any(call.axes(other)) for other in others):
        call.refuse()
    result = call.plain()
    return (result, (axes, axes)) if isinstance(result, tuple) else (result, axes)


@lowers("convolution_backward")
def convolution_backward(call: Call) -> Lowered:
    """Gradients of a convolution: those of the weights are sums over the images."""
    g, x, w = call.tensors()[:3]
    axes = along(call, g, tuple(range(1, len(call.shape(g)))), "looks at the neighbours of chosen elements")
    if call.axes(x) != axes or any(call.axes(w)):
        call.refuse()
    result = call.plain({g: call.filled(g, 0), x: call.filled(x, 0)})
    none: Any = (None,) * len(call.shape(w))
    return result, (axes, none, (None,))


@lowers("mm", "bmm", "mv", "dot")
def matrix_product(call: Call) -> Lowered:
    """Matrix products; where the contracted axes are of chosen elements, what does not count is zero on both sides."""
    a, b = call.node.args
    return _contracted(call, a, b)


@lowers("addmm", "baddbmm")
def product_and_sum(call: Call) -> Lowered:
    bias, a, b = call.node.args[:3]
    result, axes = _contracted(call, a, b)
    masks, sizes = call.axes(bias), call.shape(bias)  # type: ignore[arg-type]
    for mask, size, other in zip(masks[::-1], sizes[::-1], axes[::-1], strict=False):
        if mask != other and (mask is not None or size != 1):
            call.refuse("adds to rows that one mask chooses")
    return result, axes


def _contracted(call: Call, a: Any, b: Any) -> Lowered:
    one, two = call.axes(a), call.axes(b)
    inner = max(len(two) - 2, 0)
    if one[-1] != two[inner] or one[:-2] != two[:inner]:
        call.refuse("multiplies rows that one mask chooses with others")
    filled = {} if one[-1] is None else {node: call.filled(node, 0) for node in (a, b)}
    return call.plain(filled), (*one[:-1], *two[inner + 1 :])


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
