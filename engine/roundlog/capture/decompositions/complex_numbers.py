"""Complex numbers of rotary embeddings, taken apart into real pairs: programs hold real numbers only.

A complex tensor of shape [...] is the view of a real tensor [..., 2], as `torch.view_as_complex` makes it. Every
operator here computes with such views of its operands, and gives one of its result; the rules of `view_as_complex` and
`view_as_real` then do nothing. Any other operator on complex numbers is left whole, and refused by its rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

_aten = torch.ops.aten

Table = dict[Any, Callable[..., Any]]


def with_pairs(table: Table) -> Table:
    """A table for `make_fx` in which these operators on complex tensors are taken apart, too."""
    return {**table, **{op: _choosing(function, table.get(op)) for op, function in _OPERATORS.items()}, **_GIVING}


def _choosing(on_pairs: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def choose(x: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, torch.Tensor) and one.is_complex() for one in (x, *args)):
            return on_pairs(x, *args, **kwargs)
        return NotImplemented if otherwise is None else otherwise(x, *args, **kwargs)

    return choose


def _pair_of(x: Any) -> tuple[Any, Any]:
    """(real part, imaginary part) of a number or a tensor; no imaginary part of a real one."""
    if isinstance(x, torch.Tensor) and x.is_complex():
        real = torch.view_as_real(x)
        return real.select(-1, 0), real.select(-1, 1)
    return (x.real, x.imag) if isinstance(x, complex) else (x, None)


def _join(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    """The complex tensor of two parts."""
    return torch.view_as_complex(torch.stack(torch.broadcast_tensors(real, imaginary), dim=-1))


def _mul(a: Any, b: Any) -> torch.Tensor:
    (p, q), (r, s) = _pair_of(a), _pair_of(b)
    if q is None or s is None:
        return _join(p * r, q * r if q is not None else p * s)
    return _join(p * r - q * s, p * s + q * r)


def _conj(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = _pair_of(x)
    return _join(real, -imaginary)


def _polar(size: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    return _join(size * angle.cos(), size * angle.sin())


def _to_copy(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Numbers of FP64 as those of FP32."""
    if dtype not in (None, torch.complex64):
        return NotImplemented
    return torch.view_as_complex(torch.view_as_real(x).to(torch.float32, copy=True))


def _on_view(change: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """change(real view, rank of the complex tensor, ...): a view of the real tensor, which keeps the last axis."""

    def apply(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.view_as_complex(change(torch.view_as_real(x), x.ndim, *args, **kwargs))

    return apply


def _view(x: torch.Tensor, rank: int, shape: Sequence[int]) -> torch.Tensor:
    total, known = x.numel() // 2, math.prod(size for size in shape if size != -1)
    return x.reshape([*(total // known if size == -1 else size for size in shape), 2])


def _squeeze(x: torch.Tensor, rank: int, dims: Sequence[int] | int) -> torch.Tensor:
    axes = {dim % rank for dim in ([dims] if isinstance(dims, int) else dims)}
    return x.reshape([size for dim, size in enumerate(x.shape) if size != 1 or dim not in axes])


def _slice(x: torch.Tensor, rank: int, dim: int = 0, *places: int | None) -> torch.Tensor:
    part: torch.Tensor = _aten.slice.Tensor(x, dim % rank, *places)
    return part


_OPERATORS: Table = {
    _aten.mul.Tensor: _mul,
    _aten._conj.default: _conj,
    _aten._to_copy.default: _to_copy,
    _aten.view.default: _on_view(_view),
    _aten.expand.default: _on_view(lambda x, rank, shape, **_: x.expand([*shape, 2])),
    _aten.transpose.int: _on_view(lambda x, rank, a, b: x.transpose(a % rank, b % rank)),
    _aten.slice.Tensor: _on_view(_slice),
    _aten.select.int: _on_view(lambda x, rank, dim, index: x.select(dim % rank, index)),
    _aten.unsqueeze.default: _on_view(lambda x, rank, dim: x.unsqueeze(dim % (rank + 1))),
    _aten.squeeze.dim: _on_view(_squeeze),
    _aten.squeeze.dims: _on_view(_squeeze),
    _aten.index.Tensor: _on_view(lambda x, rank, indices: x[tuple(slice(None) if i is None else i for i in indices)]),
    _aten.alias.default: _on_view(lambda x, rank: x),
    _aten.detach.default: _on_view(lambda x, rank: x),
    _aten.clone.default: _on_view(lambda x, rank, **_: x.clone(memory_format=torch.contiguous_format)),
}
"""ATen operator -> what it is where an operand is complex."""

_GIVING: Table = {_aten.complex.default: _join, _aten.polar.default: _polar}
"""ATen operator of real operands -> the complex numbers that it gives."""
