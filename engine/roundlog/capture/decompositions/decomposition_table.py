"""Table of the ATen operators that PyTorch takes apart before they are lowered, and of those that are kept whole for a
rule of ours.

Rows that a mask chooses are traced with a size that PyTorch does not know: it has a symbol for the number of elements
that a mask chooses, and keeps it with the mask. Scripts often compute the same mask twice
(`F.cross_entropy(logits[labels >= 0], labels[labels >= 0])`): here equal masks get one symbol.

Operators on BF16 and FP16 are taken apart in FP32, as PyTorch computes them inside of one kernel, so that nothing is
rounded on the way but what comes out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from roundlog.arithmetic import is_short
from roundlog.capture.constants import node_of, with_known_values
from roundlog.capture.decompositions import (
    fused_layers,
    linear_algebra,
    losses,
    special_functions,
)
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


_seen: WeakKeyDictionary[fx.Graph, list[tuple[fx.Node, FakeTensor]]] = WeakKeyDictionary()
"""Graph -> the masks that have chosen in it."""


def with_one_count(table: Table) -> Table:
    """A table for `make_fx` in which equal masks choose the same number of elements."""

    def index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
        for one in indices:
            if one is not None and one.dtype == torch.bool:
                _share(one)
        known = table.get(_aten.index.Tensor)
        return NotImplemented if known is None else known(x, indices)

    def nonzero(x: torch.Tensor) -> Any:
        _share(x)
        known = table.get(_aten.nonzero.default)
        return NotImplemented if known is None else known(x)

    return {
        **table,
        _aten.index.Tensor: index,
        _aten.nonzero.default: nonzero,
        _aten.masked_select.default: _masked_select,
    }


def _masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Elements by an index, which has their number from its mask."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    if x.shape != shape:
        x = x.expand(shape)
    return x[mask if mask.shape == shape else mask.expand(shape)]


def _share(mask: torch.Tensor) -> None:
    """Gives a mask the symbol of an equal one that has chosen before."""
    node = node_of(mask)
    if node is None or not isinstance(mask, FakeTensor):
        return
    before = _seen.setdefault(node.graph, [])
    for other, tensor in before:
        if _equal(node, other, {}):
            if mask.nonzero_memo is None and tensor.nonzero_memo is not None:
                mask.nonzero_memo = tensor.nonzero_memo
            return
    before.append((node, mask))


def _equal(one: Any, two: Any, compared: dict[tuple[fx.Node, fx.Node], bool]) -> bool:
    """Whether two arguments are the same, or nodes that compute the same of what nothing writes to."""
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(_equal(a, b, compared) for a, b in zip(one, two, strict=True))
    if not isinstance(one, fx.Node) or not isinstance(two, fx.Node):
        return type(one) is type(two) and bool(one == two)
    if (one, two) not in compared:
        same = one.op == two.op == "call_function" and one.target == two.target and _is_pure(one)
        compared[one, two] = (one is two and not _is_written(one)) or (
            one is not two
            and same
            and not _is_written(one)
            and not _is_written(two)
            and one.kwargs == two.kwargs
            and _equal(one.args, two.args, compared)
        )
    return compared[one, two]


def _is_pure(node: fx.Node) -> bool:
    """Whether a node computes the same whenever it does."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags  # type: ignore[union-attr]


def _is_written(node: fx.Node) -> bool:
    """Whether an operator has been given a node, or a view of it, to write into."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is None:
            continue
        if schema.is_mutable:
            return True
        if any(returned.alias_info is not None for returned in schema.returns) and _is_written(user):
            return True
    return False


_PREFIX = "_foreach_"
_NAMES = (
    *("abs", "add", "addcdiv", "addcmul", "clamp_max", "clamp_min", "copy", "div", "exp", "lerp", "log", "mul", "neg"),
    *("reciprocal", "rsqrt", "sign", "sqrt", "sub", "zero"),
)


def _of_lists() -> dict[Any, Callable[..., Any]]:
    """Operators on lists of tensors (`torch._foreach_lerp_`, ...), one tensor after another."""
    found = {}
    for name in (*_NAMES, *(f"{name}_" for name in _NAMES)):
        single = getattr(torch.Tensor, name, None)
        if single is None:
            continue
        packet = getattr(torch.ops.aten, _PREFIX + name)
        for overload in packet.overloads():
            if not overload.endswith("out"):
                found[getattr(packet, overload)] = _one_by_one(single)
    return found


def _one_by_one(single: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor] | None]:
    """A method of single tensors, called for every tensor of a list."""
    name = single.__name__

    def apply(tensors: Sequence[torch.Tensor], *others: Any, **kwargs: Any) -> list[torch.Tensor] | None:
        args = list(others)
        if name.startswith("addc") and len(args) == 3:
            kwargs = {"value": args.pop()}
        results = [
            single(tensor, *(_item(argument, number) for argument in args), **_items(kwargs, number))
            for number, tensor in enumerate(tensors)
        ]
        return None if name.endswith("_") else results

    return apply


def _items(arguments: dict[str, Any], number: int) -> dict[str, Any]:
    return {name: _item(argument, number) for name, argument in arguments.items()}


def _item(argument: Any, number: int) -> Any:
    return argument[number] if isinstance(argument, (list, tuple)) else argument


_BEYOND_CORE = (
    _aten.addmv,
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
would stop there. So it would where a row of `_safe_softmax` is all -inf."""

_KEPT_WHOLE = frozenset((*_BETTER_IN_ONE, *_MOVEMENT, *_MATRICES, *_OVERFLOWING, "_safe_softmax"))


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
    table = with_pairs({**table, **_of_lists()})
    return with_known_values(with_one_count(table))


def own_decompositions() -> dict[Any, Any]:
    """Functions of our own that take operators apart, whose docstrings are in the documentation."""
    return {
        **special_functions.decompositions(),
        **linear_algebra.decompositions(),
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
