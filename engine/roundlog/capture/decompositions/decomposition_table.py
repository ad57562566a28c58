"""Operators on lists of tensors (`torch._foreach_lerp_`, ...), one tensor after another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from roundlog.capture.constants import with_known_values
from roundlog.capture.decompositions import (
    fused_layers,
    linear_algebra,
    losses,
    random_choices,
    scattering,
    special_functions,
)
from roundlog.capture.decompositions.complex_numbers import with_pairs
from roundlog.capture.decompositions.mask_counts import with_one_count

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


_aten = torch.ops.aten

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
    table = with_pairs({**table, **_of_lists(), **own_decompositions()})
    return with_known_values(with_one_count(table))


def own_decompositions() -> dict[Any, Any]:
    """Functions of our own that take operators apart, whose docstrings are in the documentation."""
    return {
        **special_functions.decompositions(),
        **scattering.decompositions(),
        **linear_algebra.decompositions(),
        **random_choices.decompositions(),
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
