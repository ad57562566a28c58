"""Operators that compute with each chosen row by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from roundlog.capture.chosen.axes import Axes
from roundlog.capture.chosen.row_calls import Call, Lowered, lowers
from roundlog.capture.rules.scan import cumsum
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


def _base(node: fx.Node) -> str:
    base = str(node.target).removeprefix("aten.").partition(".")[0]
    return base if base.startswith("_") else base.removesuffix("_")


def is_pointwise(node: fx.Node) -> bool:
    """Whether an operator computes element by element."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or _base(node) in _LIKE_POINTWISE


def pointwise(call: Call) -> Lowered:
    """Element by element, the masks of tensors that meet have to be the same."""
    axes = call.broadcast(call.tensors(), len(call.traced.shape))
    replaced = {}
    if _base(call.node) in _STOPPING:
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
    """The masks of a tensor, none of which lies along these axes."""
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
    """Images, of which a mask chooses some."""
    x, *others = call.tensors()
    rank = len(call.shape(x))
    axes = along(call, x, tuple(range(1, rank)), "looks at the neighbours of chosen elements")
    if axes[0] is None or (rank < 4 and _base(call.node) != "convolution"):
        call.refuse()
    with_batch = _base(call.node).endswith("_backward")
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
def product(call: Call) -> Lowered:
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
