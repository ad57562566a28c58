"""Operators on BF16 and FP16 that are taken apart: in FP32, as PyTorch computes them inside of one kernel, so that
nothing is rounded on the way but what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from roundlog.arithmetic import is_short
from roundlog.capture.short_numbers import by_name, common_dtype, refuse_rounding_between, with_rounded_numbers

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


_aten = torch.ops.aten


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
