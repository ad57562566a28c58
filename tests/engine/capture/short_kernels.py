"""Kernels of PyTorch that take numbers beside BF16 tensors, with arguments for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from roundlog.capture.decompositions import decompositions
from roundlog.capture.rules import rule_table
from torch import Tensor
from torch._ops import OpOverload

Function = Callable[[Tensor, Tensor, float], Tensor]

aten = torch.ops.aten

OF_NUMBERS: dict[OpOverload, list[Function]] = {
    aten._unsafe_masked_index.default: [
        lambda x, y, s: aten._unsafe_masked_index(x, x > 0, [torch.arange(len(x)).flip(0)], s)
    ],
    aten.add.Tensor: [lambda x, y, s: torch.add(x, y, alpha=s)],
    aten.add.Scalar: [lambda x, y, s: aten.add.Scalar(x, s)],
    aten.addcdiv.default: [lambda x, y, s: torch.addcdiv(x, y, x, value=s)],
    aten.addcmul.default: [lambda x, y, s: torch.addcmul(x, y, x, value=s)],
    aten.addmm.default: [
        lambda x, y, s: torch.addmm(square(x), square(x), square(y), beta=s),
        lambda x, y, s: torch.addmm(square(x), square(x), square(y), alpha=s),
    ],
    aten.baddbmm.default: [
        lambda x, y, s: torch.baddbmm(cube(x), cube(x), cube(y), beta=s),
        lambda x, y, s: torch.baddbmm(cube(x), cube(x), cube(y), alpha=s),
    ],
    aten.celu.default: [lambda x, y, s: aten.celu(x, s)],
    aten.clamp.default: [lambda x, y, s: aten.clamp(x, -s, s), lambda x, y, s: aten.clamp(x, s / 3, s)],
    aten.clamp_max.default: [lambda x, y, s: aten.clamp_max(x, s)],
    aten.clamp_min.default: [lambda x, y, s: aten.clamp_min(x, s)],
    aten.constant_pad_nd.default: [lambda x, y, s: aten.constant_pad_nd(x, [1, 1], s)],
    aten.div.Scalar: [lambda x, y, s: aten.div.Scalar(x, s)],
    aten.div.Scalar_mode: [
        lambda x, y, s: aten.div.Scalar_mode(x, s, rounding_mode="trunc"),
    ],
    aten.elu.default: [lambda x, y, s: aten.elu(x, s, s, s), lambda x, y, s: aten.elu(x, s)],
    aten.elu_backward.default: [
        lambda x, y, s: aten.elu_backward(y, s, s, s, False, x),
        lambda x, y, s: aten.elu_backward(y, s, s, s, True, aten.elu(x, s, s, s)),
    ],
    aten.hardshrink.default: [lambda x, y, s: aten.hardshrink(x, s)],
    aten.hardshrink_backward.default: [lambda x, y, s: aten.hardshrink_backward(y, x, s)],
    aten.hardtanh.default: [lambda x, y, s: aten.hardtanh(x, -s, s)],
    aten.hardtanh_backward.default: [lambda x, y, s: aten.hardtanh_backward(y, x, -s, s)],
    aten.huber_loss.default: [lambda x, y, s: aten.huber_loss(x, torch.zeros_like(x), 0, s)],
    aten.huber_loss_backward.default: [lambda x, y, s: aten.huber_loss_backward(y, x, torch.zeros_like(x), 0, s)],
    aten.index_fill.int_Scalar: [lambda x, y, s: aten.index_fill(x, 0, torch.tensor([1, 3]), s)],
    aten.leaky_relu.default: [lambda x, y, s: aten.leaky_relu(x, s)],
    aten.leaky_relu_backward.default: [lambda x, y, s: aten.leaky_relu_backward(y, x, s, False)],
    aten.nan_to_num.default: [lambda x, y, s: aten.nan_to_num(x / x.relu(), s, s, -s)],
    aten.lerp.Scalar: [lambda x, y, s: aten.lerp.Scalar(x, y, s), lambda x, y, s: aten.lerp.Scalar(x, y, s / 3)],
    aten.masked_fill.Scalar: [lambda x, y, s: aten.masked_fill.Scalar(x, x > 0, s)],
    aten.mul.Scalar: [lambda x, y, s: aten.mul.Scalar(x, s)],
    aten.native_dropout_backward.default: [lambda x, y, s: aten.native_dropout_backward(x, y > 0, s)],
    aten.new_full.default: [lambda x, y, s: aten.new_full(x, [4], s)],
    aten.full_like.default: [lambda x, y, s: aten.full_like(x, s)],
    aten.fill.Scalar: [lambda x, y, s: aten.fill.Scalar(x, s)],
    aten.pow.Tensor_Scalar: [lambda x, y, s: aten.pow.Tensor_Scalar(x.sigmoid(), s)],
    aten.pow.Scalar: [lambda x, y, s: aten.pow.Scalar(s, x / 64)],
    aten.rsub.Tensor: [lambda x, y, s: aten.rsub.Tensor(x, y, alpha=s)],
    aten.rsub.Scalar: [lambda x, y, s: aten.rsub.Scalar(x, s)],
    aten.scatter.value: [lambda x, y, s: aten.scatter.value(x, 0, torch.tensor([1, 3]), s)],
    aten.smooth_l1_loss.default: [lambda x, y, s: aten.smooth_l1_loss(x, torch.zeros_like(x), 0, s)],
    aten.smooth_l1_loss_backward.default: [
        lambda x, y, s: aten.smooth_l1_loss_backward(y, x, torch.zeros_like(x), 0, s)
    ],
    aten.softplus.default: [lambda x, y, s: aten.softplus(x, s, s / 4), lambda x, y, s: aten.softplus(x, s)],
    aten.softplus_backward.default: [lambda x, y, s: aten.softplus_backward(y, x, s, s / 4)],
    aten.softshrink.default: [lambda x, y, s: aten.softshrink(x, s)],
    aten.softshrink_backward.default: [lambda x, y, s: aten.softshrink_backward(y, x, s)],
    aten.special_xlog1py.other_scalar: [lambda x, y, s: aten.special_xlog1py.other_scalar(x, s)],
    aten.special_xlog1py.self_scalar: [lambda x, y, s: aten.special_xlog1py.self_scalar(s, x.abs())],
    aten.sub.Tensor: [lambda x, y, s: torch.sub(x, y, alpha=s)],
    aten.sub.Scalar: [lambda x, y, s: aten.sub.Scalar(x, s)],
    aten.threshold.default: [lambda x, y, s: aten.threshold(x, s, s)],
    aten.threshold_backward.default: [lambda x, y, s: aten.threshold_backward(y, x, s)],
    aten.xlogy.Scalar_Other: [lambda x, y, s: aten.xlogy.Scalar_Other(x, s)],
    aten.xlogy.Scalar_Self: [lambda x, y, s: aten.xlogy.Scalar_Self(s, x.abs())],
    **{
        op: [lambda x, y, s, op=op: torch.where(op(x, s), x, y)]
        for op in (getattr(aten, name).Scalar for name in ("eq", "ne", "lt", "le", "gt", "ge"))
    },
}
"""ATen kernel -> functions of two BF16 tensors of one axis, and a number."""

REFUSED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "addr": lambda x, y: torch.addr(square(x), x[:2], y[:2]),
    "addmv": lambda x, y: torch.addmv(x[:2], square(x), y[:2], alpha=0.1),
    "renorm": lambda x, y: torch.renorm(x.view(2, -1), 2, 0, 0.1),
    "logit": lambda x, y: torch.logit(x.sigmoid(), 0.1),
    "index_add": lambda x, y: x.index_add(0, torch.arange(len(x)), y, alpha=0.1),
    "div of tensors": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "add of two numbers": lambda x, y: torch.add(x, 0.1, alpha=0.1),
    "rsub of two numbers": lambda x, y: torch.rsub(x, 0.1, alpha=0.1),
}
"""Functions of two BF16 tensors that call a kernel that is refused."""

ELSEWHERE = frozenset(
    (
        *("_cdist_backward", "_cdist_forward", "linalg_vector_norm", "norm", "dist"),
        *("arange", "linspace", "logspace", "full", "scalar_tensor", "histc", "isin"),
        *("_scaled_dot_product_flash_attention_for_cpu", "bernoulli", "native_dropout", "normal", "normal_functional"),
        *("native_batch_norm", "native_batch_norm_backward", "native_group_norm", "native_layer_norm"),
        *("cudnn_batch_norm", "cudnn_batch_norm_backward", "miopen_batch_norm_backward"),
        *("multi_margin_loss", "multi_margin_loss_backward", "std", "std_mean", "var", "var_mean"),
        *("fmod", "remainder", "floor_divide", "bitwise_and", "bitwise_or", "bitwise_xor"),
        "fake_quantize_per_tensor_affine_cachemask",
    )
)
"""Kernels whose numbers are no operands: orders of norms, epsilons, degrees of freedom, bounds of a range, chances;
and those that take no BF16."""


def square(x: Tensor) -> Tensor:
    return x[:4].view(2, 2)


def cube(x: Tensor) -> Tensor:
    return x[:8].view(2, 2, 2)


def taking_numbers() -> Iterator[OpOverload]:
    """Kernels with a number among their arguments, and a rule or a decomposition of it."""
    for op in _known():
        if any(str(one.type) in ("number", "float", "Optional[number]", "Optional[float]") for one in _arguments(op)):
            yield op


def of_two_tensors() -> Iterator[OpOverload]:
    """Pointwise kernels of two tensors, and a rule or a decomposition of them."""
    for op in _known():
        if torch.Tag.pointwise in op.tags and sum(str(one.type) == "Tensor" for one in _arguments(op)) == 2:
            yield op


def _arguments(op: OpOverload) -> Any:
    return op._schema.arguments


def _known() -> Iterator[OpOverload]:
    table = decompositions()
    for name in sorted(dir(aten)):
        packet = getattr(aten, name)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            if op._schema.is_mutable or "out" in overload or name.startswith("_foreach") or not _is_kernel(op):
                continue
            full = name if overload == "default" else f"{name}.{overload}"
            if op in table or {name, full} & rule_table.RULES.keys():
                yield op


def _is_kernel(op: OpOverload) -> bool:
    try:
        return not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    except RuntimeError:
        return False  # of Python's numbers alone


_OTHERS = (
    aten.equal.default,
    aten.heaviside.default,
    aten.gelu_backward.default,
    aten.logit_backward.default,
    aten.logaddexp2.default,
    *(aten.div.Tensor_mode, aten.fmod.Tensor, aten.remainder.Tensor, aten.floor_divide.default),
)
"""Kernels that give no tensor, take no two dtypes or no tensor without axes, or are refused."""


def beside_a_number(op: OpOverload) -> list[Callable[[Tensor, Tensor], Tensor]]:
    """A kernel of two tensors, of a BF16 tensor and an FP32 tensor without axes."""
    if "bitwise" in str(op) or op in OF_NUMBERS or op in _OTHERS:
        return []
    if op == aten.pow.Tensor_Tensor:
        return [lambda x, t: op(x.sigmoid(), t), lambda x, t: op(t, x / 64)]
    found: list[Callable[[Tensor, Tensor], Tensor]] = [lambda x, t: op(x, t), lambda x, t: op(t, x)]
    if op in (aten.xlogy.Tensor, aten.special_xlog1py.default):
        found = [lambda x, t: op(x.abs(), t), lambda x, t: op(t, x.abs())]
    return found
