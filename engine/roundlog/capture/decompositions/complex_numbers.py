"""Complex operators, taken apart into operators of real pairs: programs hold real numbers only.

A complex tensor of shape [...] is the view of a real tensor [..., 2], as `torch.view_as_complex` makes it. Every
operator here takes its operands' real views, computes with them, and gives a complex view of the result; the rules of
`view_as_complex` and `view_as_real` then do nothing. Operands of real dtype are left to PyTorch's own decomposition.
Discrete Fourier transforms are products of real matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from roundlog.capture.errors import CaptureError


def pair_of(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part, of a number or a tensor, complex or not."""
    if isinstance(x, torch.Tensor) and x.is_complex():
        real = torch.view_as_real(x)
        return real.select(-1, 0), real.select(-1, 1)
    if isinstance(x, complex):
        return x.real, x.imag
    return x, None


def join(real: Any, imaginary: Any) -> torch.Tensor:
    """The complex tensor of two parts. One may be a number; no imaginary part is zero."""
    if not isinstance(imaginary, torch.Tensor):
        imaginary = torch.full_like(real, imaginary or 0.0)
    elif not isinstance(real, torch.Tensor):
        real = torch.full_like(imaginary, real)
    real, imaginary = torch.broadcast_tensors(real, imaginary)
    return torch.view_as_complex(torch.stack([real, imaginary], dim=-1))


def axis_of(dim: int, rank: int) -> int:
    """An axis given from either end."""
    return dim % rank if rank else 0


MAX_TRANSFORMED = 1 << 11
"""The longest axis of a discrete Fourier transform: it is a product with a matrix of its square."""


def _factors(length: int, like: torch.Tensor, *, forward: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrices of cosines and sines, f32[length, length], each number rounded once from FP64."""
    if length > MAX_TRANSFORMED:
        raise CaptureError(
            f"takes the Fourier transform of an axis of {length}, which is a matrix here: use at most {MAX_TRANSFORMED}"
        )
    turn = (-1 if forward else 1) * 2 * math.pi / length
    # Angles are reduced while they are integers, so that they are exact.
    places = torch.arange(length, dtype=torch.int64, device=like.device)
    angles = (torch.outer(places, places) % length).double() * turn
    return angles.cos().float(), angles.sin().float()


def _along(x: torch.Tensor, matrix: torch.Tensor, dim: int) -> torch.Tensor:
    return (x.movedim(dim, -1) @ matrix).movedim(-1, dim)


def _transformed(
    pair: tuple[torch.Tensor, torch.Tensor | None], dim: int, *, forward: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    real, imaginary = pair
    cos, sin = _factors(real.shape[dim], real, forward=forward)
    if imaginary is None:
        return _along(real, cos, dim), _along(real, sin, dim)
    return (
        _along(real, cos, dim) - _along(imaginary, sin, dim),
        _along(real, sin, dim) + _along(imaginary, cos, dim),
    )


def _scale(sizes: Sequence[int], normalization: int) -> float:
    """PyTorch's three ways: 0 as it is, 1 by the root of the size, 2 by the size."""
    total = math.prod(sizes)
    return 1.0 if normalization == 0 else 1 / math.sqrt(total) if normalization == 1 else 1 / total


def _scaled(pair: tuple[torch.Tensor, torch.Tensor], factor: float) -> torch.Tensor:
    return join(*pair) if factor == 1 else join(pair[0] * factor, pair[1] * factor)


def c2c(x: torch.Tensor, dims: Sequence[int], normalization: int, forward: bool) -> torch.Tensor:
    pair = pair_of(x)
    for dim in dims:
        pair = _transformed(pair, axis_of(dim, x.ndim), forward=forward)
    return _scaled(pair, _scale([x.shape[d] for d in dims], normalization))


def r2c(x: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> torch.Tensor:
    last = axis_of(dims[-1], x.ndim)
    pair: tuple[torch.Tensor, torch.Tensor | None] = (x, None)
    for dim in reversed(dims):
        pair = _transformed(pair, axis_of(dim, x.ndim), forward=True)
        if onesided and dim == dims[-1]:
            pair = tuple(part.narrow(last, 0, x.shape[last] // 2 + 1) for part in pair if part is not None)  # type: ignore[assignment]
    assert pair[1] is not None
    return _scaled((pair[0], pair[1]), _scale([x.shape[d] for d in dims], normalization))


def c2r(x: torch.Tensor, dims: Sequence[int], normalization: int, last_dim_size: int) -> torch.Tensor:
    """The second half of the last axis is the first one, conjugate and reversed."""
    last = axis_of(dims[-1], x.ndim)
    pair = pair_of(x)
    for dim in dims[:-1]:
        pair = _transformed(pair, axis_of(dim, x.ndim), forward=False)
    real, imaginary = pair
    half, n = last_dim_size // 2 + 1, last_dim_size
    real, imaginary = real.narrow(last, 0, half), imaginary.narrow(last, 0, half)
    cos, sin = _factors(n, real, forward=False)
    # A frequency counts twice unless it is its own mirror image, whose imaginary part counts nothing.
    twice = torch.tensor([1.0 if k in (0, n - k) else 2.0 for k in range(half)], device=real.device)
    found = _along(real, twice[:, None] * cos[:half], last) - _along(imaginary, twice[:, None] * sin[:half], last)
    sizes = [x.shape[d] for d in dims[:-1]] + [n]
    factor = _scale(sizes, normalization)
    return found if factor == 1 else found * factor


_aten = torch.ops.aten

Table = dict[Any, Callable[..., Any]]


def with_pairs(table: Table) -> Table:
    """A table for `make_fx` in which operators on complex tensors are taken apart, too."""
    return {**table, **{op: _choosing(function, table.get(op)) for op, function in _OPERATORS.items()}, **_GIVING}


def _choosing(on_pairs: Callable[..., Any], otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    def choose(*args: Any, **kwargs: Any) -> Any:
        if any(_is_complex(arg) for arg in (*args, *kwargs.values())):
            return on_pairs(*args, **kwargs)
        return NotImplemented if otherwise is None else otherwise(*args, **kwargs)

    return choose


def _is_complex(arg: Any) -> bool:
    if isinstance(arg, (list, tuple)):
        return any(_is_complex(item) for item in arg)
    if isinstance(arg, torch.dtype):
        return arg.is_complex
    return isinstance(arg, complex) or (isinstance(arg, torch.Tensor) and arg.is_complex())


def _mul(a: Any, b: Any) -> torch.Tensor:
    (p, q), (r, s) = pair_of(a), pair_of(b)
    if q is None or s is None:
        return join(p * r, q * r if q is not None else p * s)
    return join(p * r - q * s, p * s + q * r)


def _div(a: Any, b: Any) -> torch.Tensor:
    r, s = pair_of(b)
    if s is None:
        p, q = pair_of(a)
        return join(p / r, q / r)
    size = r * r + s * s
    p, q = pair_of(_mul(a, _conj(b)))
    return join(p / size, q / size)


def _added(sign: int) -> Callable[..., torch.Tensor]:
    def add(a: Any, b: Any, alpha: Any = 1) -> torch.Tensor:
        (p, q), (r, s) = pair_of(a), pair_of(b)
        factor = sign * alpha
        if isinstance(factor, complex):
            r, s = pair_of(_mul(b, factor))
            factor = 1
        r, s = (x if x is None or factor == 1 else x * factor for x in (r, s))
        imaginary = s if q is None else q if s is None else q + s
        return join(p + r, imaginary)

    return add


def _equal(a: Any, b: Any) -> torch.Tensor:
    (p, q), (r, s) = pair_of(a), pair_of(b)
    equal: torch.Tensor = (p == r) & ((0 if q is None else q) == (0 if s is None else s))
    return equal


def _neg(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(-torch.view_as_real(x))


def _conj(x: torch.Tensor | complex) -> torch.Tensor:
    if isinstance(x, complex):
        return _full((), x.conjugate())
    real, imaginary = pair_of(x)
    return join(real, -imaginary)


def _abs(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = pair_of(x)
    return torch.sqrt(real * real + imaginary * imaginary)


def _angle(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = pair_of(x)
    return torch.atan2(imaginary, real)


def _sgn(x: torch.Tensor) -> torch.Tensor:
    """x / |x|, zero where x is: the gradient of the absolute value."""
    size = _abs(x)
    nothing = size == 0
    real, imaginary = pair_of(x)
    divisor = torch.where(nothing, torch.ones_like(size), size)
    return join(real / divisor, imaginary / divisor)


def _polar(size: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    return join(size * angle.cos(), size * angle.sin())


def _exp(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = pair_of(x)
    return _polar(real.exp(), imaginary)


def _to_copy(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    wanted = dtype or x.dtype
    if wanted not in (torch.complex64, torch.float32):
        raise CaptureError(f"computes in {wanted}: programs are FP32, use complex64")
    real, imaginary = pair_of(x)
    if wanted == torch.float32:
        copied: torch.Tensor = real.to(torch.float32, copy=True)
        return copied
    return join(real.to(torch.float32), None if imaginary is None else imaginary.to(torch.float32))


def _fill(x: torch.Tensor, value: Any) -> torch.Tensor:
    real, imaginary = pair_of(value)
    like = pair_of(x)[0]
    return join(torch.full_like(like, float(real)), torch.full_like(like, float(imaginary or 0)))


def _full(size: Sequence[int], value: Any = 0, **options: Any) -> torch.Tensor:
    real, imaginary = pair_of(value)
    options = {**options, "dtype": torch.float32}
    return join(torch.full(size, float(real), **options), torch.full(size, float(imaginary or 0), **options))


def _new(x: torch.Tensor, size: Sequence[int], value: Any = 0, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    if dtype is not None and not dtype.is_complex:
        return torch.full(size, float(value), dtype=dtype, device=x.device)
    return _full(size, value, device=x.device)


def _where(condition: torch.Tensor, a: Any, b: Any) -> torch.Tensor:
    parts = [[0.0 if part is None else part for part in pair_of(x)] for x in (a, b)]
    return join(*(torch.where(condition, x, y) for x, y in zip(*parts, strict=True)))


def _power(x: torch.Tensor, exponent: Any) -> torch.Tensor:
    """Power with a small natural exponent, as a product."""
    if exponent not in range(1, 9):
        raise CaptureError(f"raises complex numbers to the power of {exponent}: only 1 to 8 are supported")
    result = x
    for _ in range(int(exponent) - 1):
        result = _mul(result, x)
    return result


def _on_parts(op: Any, *, dims: bool = False) -> Callable[..., torch.Tensor]:
    """An operator that does the same to both parts. dims: its second argument names axes, perhaps from the end."""

    def apply(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        real, imaginary = pair_of(x)
        return join(op(real, *args, **kwargs), op(imaginary, *args, **kwargs))

    return apply


def _on_view(change: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A view of the real tensor, which keeps the last axis, so that a write into it is one into the whole."""

    def apply(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.view_as_complex(change(torch.view_as_real(x), x.ndim, *args, **kwargs))

    return apply


def _view(x: torch.Tensor, rank: int, shape: Sequence[int]) -> torch.Tensor:
    total, known = x.numel() // 2, math.prod(size for size in shape if size != -1)
    return x.reshape([*(total // known if size == -1 else size for size in shape), 2])


def _squeeze(x: torch.Tensor, rank: int, dims: Sequence[int] | int | None = None) -> torch.Tensor:
    axes = range(rank) if dims is None else [axis_of(d, rank) for d in ([dims] if isinstance(dims, int) else dims)]
    return x.reshape([size for d, size in enumerate(x.shape) if d == rank or d not in axes or size != 1])


def _expand(x: torch.Tensor, rank: int, shape: Sequence[int], implicit: bool = False) -> torch.Tensor:
    return x.expand([*shape, 2])


def _transpose(x: torch.Tensor, rank: int, a: int, b: int) -> torch.Tensor:
    return x.transpose(axis_of(a, rank), axis_of(b, rank))


def _permute(x: torch.Tensor, rank: int, dims: Sequence[int]) -> torch.Tensor:
    return x.permute([*(axis_of(d, rank) for d in dims), rank])


def _slice(
    x: torch.Tensor, rank: int, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> torch.Tensor:
    part: torch.Tensor = _aten.slice.Tensor(x, axis_of(dim, rank), start, end, step)
    return part


def _select(x: torch.Tensor, rank: int, dim: int, index: int) -> torch.Tensor:
    return x.select(axis_of(dim, rank), index)


def _unsqueeze(x: torch.Tensor, rank: int, dim: int) -> torch.Tensor:
    return x.unsqueeze(axis_of(dim, rank + 1))


def _clone(x: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.view_as_complex(torch.view_as_real(x).clone(memory_format=torch.contiguous_format))


def _cat(xs: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    pairs = [pair_of(x) for x in xs]
    parts = [torch.cat([real for real, _ in pairs], dim)]
    parts.append(torch.cat([torch.zeros_like(p) if q is None else q for p, q in pairs], dim))
    return join(*parts)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (p, q), (r, s) = pair_of(a), pair_of(b)
    if q is None or s is None:
        return join(p @ r, q @ r if q is not None else p @ s)
    return join(p @ r - q @ s, p @ s + q @ r)


def _write(op: Any) -> Callable[..., torch.Tensor]:
    """An in-place operator by a real number."""

    def apply(x: torch.Tensor, other: Any) -> torch.Tensor:
        if _is_complex(other) and op is not _aten.copy_.default:
            raise CaptureError("changes complex numbers in place: use the operator that gives a new tensor")
        if isinstance(other, torch.Tensor):
            other = torch.view_as_real(other) if other.is_complex() else other.unsqueeze(-1)
        op(torch.view_as_real(x), other)
        return x

    return apply


_OPERATORS: Table = {
    _aten.mul.Tensor: _mul,
    _aten.mul.Scalar: _mul,
    _aten.div.Tensor: _div,
    _aten.div.Scalar: _div,
    _aten.add.Tensor: _added(1),
    _aten.add.Scalar: _added(1),
    _aten.sub.Tensor: _added(-1),
    _aten.sub.Scalar: _added(-1),
    _aten.eq.Tensor: _equal,
    _aten.eq.Scalar: _equal,
    _aten.neg.default: _neg,
    _aten._conj.default: _conj,
    _aten._conj_physical.default: _conj,
    _aten.conj_physical.default: _conj,
    _aten.abs.default: _abs,
    _aten.angle.default: _angle,
    _aten.sgn.default: _sgn,
    _aten.exp.default: _exp,
    _aten._to_copy.default: _to_copy,
    _aten.fill.Scalar: _fill,
    _aten.full.default: _full,
    _aten.zeros.default: _full,
    _aten.empty.memory_format: _full,
    _aten.ones.default: lambda size, **options: _full(size, 1, **options),
    _aten.new_zeros.default: _new,
    _aten.new_full.default: _new,
    _aten.new_empty.default: _new,
    _aten.full_like.default: lambda x, value, **_: _fill(x, value),
    _aten.empty_like.default: lambda x, **_: _fill(x, 0),
    _aten.where.self: _where,
    _aten.pow.Tensor_Scalar: _power,
    _aten.index.Tensor: _on_parts(_aten.index.Tensor),
    _aten.index_put.default: lambda x, at, values, accumulate=False: join(
        *(
            _aten.index_put.default(part, at, value, accumulate)
            for part, value in zip(pair_of(x), pair_of(values), strict=True)
        )
    ),
    _aten.zeros_like.default: lambda x, **_: _fill(x, 0),
    _aten.ones_like.default: lambda x, **_: _fill(x, 1),
    _aten.sum.dim_IntList: _on_parts(torch.sum),
    _aten.sum.default: _on_parts(torch.sum),
    _aten.mean.dim: _on_parts(torch.mean),
    _aten.mean.default: _on_parts(torch.mean),
    _aten.flip.default: _on_parts(torch.flip),
    _aten.roll.default: _on_parts(torch.roll),
    _aten.constant_pad_nd.default: _on_parts(torch.constant_pad_nd),
    _aten.index_select.default: _on_parts(torch.index_select),
    _aten.slice_backward.default: _on_parts(_aten.slice_backward.default),
    _aten.select_backward.default: _on_parts(_aten.select_backward.default),
    _aten.view.default: _on_view(_view),
    _aten._unsafe_view.default: _on_view(_view),
    _aten.reshape.default: _on_view(_view),
    _aten.squeeze.default: _on_view(_squeeze),
    _aten.squeeze.dim: _on_view(_squeeze),
    _aten.squeeze.dims: _on_view(_squeeze),
    _aten.expand.default: _on_view(_expand),
    _aten.transpose.int: _on_view(_transpose),
    _aten.t.default: _on_view(lambda x, rank: x.transpose(0, rank - 1)),
    _aten.permute.default: _on_view(_permute),
    _aten.slice.Tensor: _on_view(_slice),
    _aten.select.int: _on_view(_select),
    _aten.unsqueeze.default: _on_view(_unsqueeze),
    _aten.alias.default: _on_view(lambda x, rank: x),
    _aten.detach.default: _on_view(lambda x, rank: x),
    _aten.clone.default: _clone,
    _aten.cat.default: _cat,
    _aten.mm.default: _product,
    _aten.bmm.default: _product,
    _aten.mul_.Tensor: _write(_aten.mul_.Tensor),
    _aten.mul_.Scalar: _write(_aten.mul_.Scalar),
    _aten.div_.Tensor: _write(_aten.div_.Tensor),
    _aten.copy_.default: _write(_aten.copy_.default),
    _aten._fft_c2c.default: c2c,
    _aten._fft_c2r.default: c2r,
}
"""ATen operator -> what it is where an operand, or the dtype that is asked for, is complex. Those that take real
operands, and give complex numbers, are in `_GIVING`."""

_GIVING: Table = {
    _aten.complex.default: join,
    _aten.polar.default: _polar,
    _aten._fft_r2c.default: r2c,
}
"""ATen operator of real operands -> the complex numbers that it gives."""
