"""Table of the ATen operators that PyTorch takes apart before they are lowered, and of those that are kept whole for a
rule of ours.

Operators on BF16 and FP16 are taken apart in FP32, as PyTorch computes them inside of one kernel, so that nothing is
rounded on the way but what comes out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from roundlog.arithmetic import is_short
from roundlog.capture.constants import with_known_values
from roundlog.capture.decompositions import fused_layers, losses, random_numbers
from roundlog.capture.decompositions.complex_numbers import with_pairs
from roundlog.capture.rules.short_formats import by_name, common_dtype, refuse_rounding_between, with_rounded_numbers

_aten = torch.ops.aten

Table = dict[Any, Callable[..., Any]]


def in_fp32(table: Table) -> Table:
    """A table for `make_fx` whose functions see short numbers widened to FP32, and whose results get the dtypes that
    the operator gives. Operators that PyTorch itself composes of others are left as they are, and views."""
    return {op: _widened(op, function) if _is_kernel(op) else function for op, function in table.items()}


_PRODUCTS = frozenset((torch.ops.aten.mv.default, torch.ops.aten.dot.default, torch.ops.aten.baddbmm.default))
"""Operators that are taken apart in FP32 only: of short numbers, their rules make one product, rounded once."""


def _is_kernel(op: Any) -> bool:
    """Whether PyTorch computes an operator by one kernel, whose results are its own memory."""
    if not isinstance(op, OpOverload) or op._schema.is_mutable or op._schema.name == "aten::_to_copy":
        return False
    if any(returned.alias_info is not None for returned in op._schema.returns):
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def _widened(op: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> Any:
        if not any(_is_short(leaf) for leaf in tree_leaves((args, kwargs))):
            return function(*args, **kwargs)
        if op in _PRODUCTS:
            return NotImplemented
        refuse_rounding_between(op, by_name(op, args, kwargs))
        wide, options = tree_map(_wide, _as_kernel_takes(op, args, kwargs))
        result = function(*wide, **options)
        if result is NotImplemented:
            return result
        leaves, form = tree_flatten(result)
        declared = [_dtype(leaf) for leaf in tree_leaves(_traced(op, args, kwargs))]
        if op in _OF_INPUTS:
            declared = [_dtype(args[place]) for place in _OF_INPUTS[op]]
        return tree_unflatten([_as(one, dtype) for one, dtype in zip(leaves, declared, strict=True)], form)

    return apply


def _as_kernel_takes(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Arguments, with single numbers rounded where the kernel rounds them to the format of the tensors beside them."""
    dtype = common_dtype(op, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)])
    if dtype is None or not is_short(dtype):
        return args, kwargs

    def taken(thing: Any) -> Any:
        is_number = isinstance(thing, torch.Tensor) and not thing.ndim and thing.dtype == torch.float32
        return thing.to(dtype) if is_number else thing

    return tree_map(taken, with_rounded_numbers(op, args, kwargs, dtype))


def _is_short(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) and is_short(thing.dtype)


def _wide(thing: Any) -> Any:
    return thing.to(torch.float32) if _is_short(thing) else thing


_OF_INPUTS = {torch.ops.aten.native_group_norm_backward.default: (1, 4, 4)}
"""Operators whose tensors without numbers have other dtypes than PyTorch's results -> arguments that have these."""


def _dtype(thing: Any) -> torch.dtype | None:
    return thing.dtype if isinstance(thing, torch.Tensor) else None


def _as(result: Any, dtype: torch.dtype | None) -> Any:
    """A result in a dtype."""
    if not isinstance(result, torch.Tensor) or dtype is None or result.dtype == dtype:
        return result
    return result.to(dtype)


def _traced(op: OpOverload, args: Any, kwargs: Any) -> Any:
    """The results of an operator, without numbers."""
    (mode, *_) = (leaf.fake_mode for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor))
    with _disable_current_modes(), mode:
        return op(*args, **kwargs)


def norms() -> Table:
    """Normalisation of short numbers. PyTorch's kernels on the CPU keep the mean and the reciprocal deviation in FP32
    where the weights, or the running statistics, are FP32, as under autocast, and in the format of the numbers
    otherwise. Its tensors without numbers say the second in both cases."""
    kinds = (_aten.native_layer_norm.default, _aten.native_group_norm.default, _aten.native_batch_norm.default)
    return {op: _norm(op) for op in kinds}


def _norm(op: Callable[..., Any]) -> Callable[..., Any]:
    def apply(x: torch.Tensor, *rest: Any) -> Any:
        if not is_short(x.dtype):
            return NotImplemented
        wide = [one.float() if isinstance(one, torch.Tensor) else one for one in rest]
        y, mean, rstd = op(x.float(), *wide)
        for own, written in zip(rest, wide, strict=True):
            # Running statistics, which batch norm writes.
            if op is _aten.native_batch_norm.default and own is not written and isinstance(own, torch.Tensor):
                own.copy_(written)
        tensors = [one for one in rest if isinstance(one, torch.Tensor)]
        kept = torch.float32 if any(one.dtype == torch.float32 for one in tensors) else x.dtype
        return y.to(x.dtype), mean.to(kept), rstd.to(kept)

    return apply


_BEYOND_CORE = (
    _aten.addmv,
    _aten.dist,
    _aten.hardtanh,
    _aten.leaky_relu,
)
"""Operators that PyTorch's own core table leaves whole, though it has a decomposition of them."""

_BETTER_IN_ONE = ("embedding_dense_backward", "slice_backward", "select_backward")
"""One scatter_add or pad each, where PyTorch writes into zeros."""

_MOVEMENT = (
    *("roll", "eye", "replication_pad1d", "replication_pad2d", "replication_pad3d"),
    *(f"upsample_nearest{n}d" for n in (1, 2, 3)),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
)
"""PyTorch computes their indices in floating point, or by remainders."""

_MATRICES = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
"""Matrix products with constants."""

_OVERFLOWING = ("elu_backward", "softplus", "softplus_backward", "mish", "mish_backward", "logaddexp", "xlogy")
"""PyTorch's decompositions overflow, or take the logarithm of zero, on a branch that `where` then discards: a program
would stop there."""

_WRONG = ("_safe_softmax", "multilabel_margin_loss_forward", "soft_margin_loss", "soft_margin_loss_backward")
"""A row of -inf alone gives zeros; what stands behind the first -1 is no target; soft margins overflow, and cancel."""

_KEPT_WHOLE = frozenset((*_BETTER_IN_ONE, *_MOVEMENT, *_MATRICES, *_OVERFLOWING, *_WRONG))


@functools.cache
def decompositions() -> dict[Any, Any]:
    """The table for `make_fx`."""
    table: dict[Any, Any] = {**core_aten_decompositions(), **get_decompositions(_BEYOND_CORE)}
    table = {op: function for op, function in table.items() if _base(op) not in _KEPT_WHOLE}
    table[_aten.split_with_sizes.default] = _split_with_sizes
    table[_aten.celu.default] = _celu
    table[_aten._grouped_mm.default] = _grouped_mm
    # Forward-mode derivatives begin with tensors known to be zero, whose operators PyTorch computes on another device.
    table[_aten._efficientzerotensor.default] = torch.zeros
    table = {**in_fp32({**table, **own_decompositions()}), **norms()}
    return with_known_values(with_pairs(table))


def own_decompositions() -> dict[Any, Any]:
    """Functions of our own that take operators apart, whose docstrings are in the documentation."""
    return {
        **random_numbers.decompositions(),
        **losses.decompositions(),
        **fused_layers.decompositions(),
    }


def _base(op: Any) -> str:
    return str(op).removeprefix("aten.").partition(".")[0]


def _split_with_sizes(x: torch.Tensor, sizes: list[int], dim: int = 0) -> list[torch.Tensor]:
    """Parts of a tensor, as slices: PyTorch's decomposition looks at the memory itself, by as_strided."""
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [x.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True)]


def _celu(x: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    """CELU by way of elu, whose exponential does not overflow."""
    result: torch.Tensor = _aten.elu(x, alpha, 1.0, 1.0 / alpha)
    return result


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The experts of a mixture. Which rows are whose depends on values, and programs have fixed shapes: so every expert
    sees all rows, and those that are not its own come to nothing."""
    if offs is None:
        return a @ b
    if a.ndim == 3:
        raise NotImplementedError("a grouped product whose columns belong to experts")
    rows = torch.arange(a.shape[-2] if b.ndim == 3 else a.shape[-1], device=offs.device)
    starts = torch.cat([offs.new_zeros(1), offs[:-1]])
    own = (starts[:, None] <= rows) & (rows < offs[:, None])
    if b.ndim == 3:
        parts = [torch.where(own[expert][:, None], a @ b[expert], 0.0) for expert in range(len(offs))]
        return sum(parts[1:], parts[0])
    return torch.stack([torch.where(own[expert], a, 0.0) @ b for expert in range(len(offs))])
