"""Factors of small matrices, and what is computed by them, as plain tensor arithmetic.

Each column takes a few operators."""

from __future__ import annotations

from typing import Any

import torch

from roundlog.capture.errors import unsupported

_aten = torch.ops.aten

MAX_SIZE = 64
"""Rows of a matrix, above which an operator is refused: there would be too many operators."""


def decompositions() -> dict[Any, Any]:
    """For `make_fx`: ATen operator -> function."""
    return {
        _aten.linalg_cholesky_ex.default: cholesky_ex,
        _aten.cholesky.default: lambda a, upper=False: cholesky_ex(a, upper=upper)[0],
        _aten.linalg_lu_factor_ex.default: lu_factor,
        _aten.linalg_lu_solve.default: lu_solve,
        _aten.lu_unpack.default: lu_unpack,
        _aten.linalg_lu.default: lambda a, *, pivot=True: lu_unpack(*lu_factor(a, pivot=pivot)[:2]),
        _aten.linalg_inv_ex.default: inverse,
        _aten._linalg_solve_ex.default: solve,
        _aten._linalg_det.default: determinant,
        _aten._linalg_slogdet.default: sign_and_log_determinant,
        _aten.cholesky_solve.default: cholesky_solve,
        _aten.cholesky_inverse.default: cholesky_inverse,
        _aten.triangular_solve.default: triangular_solve,
        _aten.addbmm.default: addbmm,
        _aten.dist.default: lambda a, b, p=2: torch.linalg.vector_norm(a - b, p),
    }


def _check(a: torch.Tensor) -> int:
    size = a.shape[-1]
    if size > MAX_SIZE:
        raise unsupported("linalg", f"factors a matrix of {size} columns, more than {MAX_SIZE}: use smaller ones")
    return size


def _no_info(a: torch.Tensor) -> torch.Tensor:
    return torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


def cholesky_ex(
    a: torch.Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Column by column (Golub and Van Loan, algorithm 4.2.1): each reads what the ones before have left. A matrix that
    is not positive definite gives the square root of a number below zero."""
    size = _check(a)
    left = a.mH if upper else a
    columns = []
    for k in range(size):
        pivot = torch.sqrt(left[..., k : k + 1, k : k + 1])
        column = torch.cat([pivot, left[..., k + 1 :, k : k + 1] / pivot], -2)
        columns.append(torch.nn.functional.pad(column, (0, 0, k, 0)))
        below = columns[-1]
        left = left - below @ below.mH
    factor = torch.cat(columns, -1) if columns else a.clone()
    return (factor.mH.contiguous() if upper else factor), _no_info(a)


def lu_factor(
    a: torch.Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gaussian elimination with the largest pivot of a column, of equal ones the first. A singular matrix divides by
    zero."""
    rows, columns = a.shape[-2:]
    _check(a)
    count = min(rows, columns)
    place = torch.arange(rows, device=a.device)
    matrix, pivots = a, []
    for k in range(count):
        if pivot:
            best = matrix[..., k:, k].abs().argmax(-1, keepdim=True) + k
            order = torch.where(place == k, best, torch.where(place == best, k, place))
            matrix = matrix.gather(-2, order[..., None].expand(matrix.shape))
        else:
            best = torch.full((*a.shape[:-2], 1), k, device=a.device)
        pivots.append(best + 1)
        if k + 1 == rows:
            continue
        lower = matrix[..., k + 1 :, k : k + 1] / matrix[..., k : k + 1, k : k + 1]
        rest = matrix[..., k + 1 :, k + 1 :] - lower * matrix[..., k : k + 1, k + 1 :]
        under = torch.cat([matrix[..., k + 1 :, :k], lower, rest], -1)
        matrix = torch.cat([matrix[..., : k + 1, :], under], -2)
    chosen = torch.cat(pivots, -1) if pivots else a.new_zeros((*a.shape[:-2], 0), dtype=torch.int64)
    return matrix.clone(), chosen.to(torch.int32), _no_info(a)


def _order(pivots: torch.Tensor, rows: int, *, back: bool = False) -> torch.Tensor:
    """Order of the rows after the exchanges, or before them."""
    place = torch.arange(rows, device=pivots.device)
    order = place.expand(*pivots.shape[:-1], rows)
    for k in range(pivots.shape[-1]):
        other = pivots[..., k : k + 1].long() - 1
        swap = torch.where(place == k, other, torch.where(place == other, k, place))
        order = order.gather(-1, swap)
    # The inverse: where each place is found.
    return torch.where(order[..., None, :] == place[:, None], place, 0).sum(-1) if back else order


def _taken(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(x.shape[:-2], order.shape[:-1])
    x = x.expand(*shape, *x.shape[-2:])
    return x.gather(-2, order.expand(*shape, order.shape[-1])[..., None].expand(x.shape))


def lu_solve(
    factors: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, *, left: bool = True, adjoint: bool = False
) -> torch.Tensor:
    """Two triangular systems, and the exchanges of rows before or after them."""
    if not left:
        return lu_solve(factors, pivots, b.mH, left=True, adjoint=not adjoint).mH
    solved = torch.linalg.solve_triangular
    rows = factors.shape[-1]
    if adjoint:
        y = solved(factors.mH, b, upper=False)
        y = solved(factors.mH, y, upper=True, unitriangular=True)
        return _taken(y, _order(pivots, rows, back=True))
    y = solved(factors, _taken(b, _order(pivots, rows)), upper=False, unitriangular=True)
    found: torch.Tensor = solved(factors, y, upper=True)
    return found


def lu_unpack(
    factors: torch.Tensor, pivots: torch.Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The permutation as a matrix, and both triangles."""
    rows, columns = factors.shape[-2:]
    count = min(rows, columns)
    none = factors.new_empty((0,))
    permutation = none
    if unpack_pivots:
        place = torch.arange(rows, device=factors.device)
        permutation = (_order(pivots, rows)[..., None, :] == place[:, None]).to(factors.dtype)
    if not unpack_data:
        return permutation, none, none
    identity = torch.eye(rows, count, dtype=factors.dtype, device=factors.device)
    return permutation, factors[..., :count].tril(-1) + identity, factors[..., :count, :].triu()


def solve(
    a: torch.Tensor, b: torch.Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Solution of a linear system, by lu_factor and two triangular systems."""
    factors, pivots, info = lu_factor(a)
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    wide = b.unsqueeze(-1) if vector else b
    x = lu_solve(factors, pivots, wide, left=left or vector)
    return (x.squeeze(-1) if vector else x), factors, pivots, info


def inverse(a: torch.Tensor, *, check_errors: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The solution of a system with the identity."""
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    x, _, _, info = solve(a, identity)
    return x, info


def _turned(a: torch.Tensor) -> torch.Tensor:
    return a.mH if a.is_contiguous() else a


def _sign(pivots: torch.Tensor) -> torch.Tensor:
    """1 for an even number of exchanges, else -1."""
    moved = pivots.long() - 1 != torch.arange(pivots.shape[-1], device=pivots.device)
    return torch.where(moved, -1.0, 1.0).prod(-1)


def determinant(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The product of the pivots. As PyTorch has it, of the transpose if that is not laid out row by row: its gradient
    is taken by these factors."""
    factors, pivots, _ = lu_factor(_turned(a))
    return _sign(pivots) * factors.diagonal(dim1=-2, dim2=-1).prod(-1), factors, pivots


def sign_and_log_determinant(
    a: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum of the pivots' logarithms, of the matrix that `determinant` factors."""
    factors, pivots, _ = lu_factor(_turned(a))
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    return _sign(pivots) * diagonal.sign().prod(-1), diagonal.abs().log().sum(-1), factors, pivots


def cholesky_solve(b: torch.Tensor, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """Two triangular systems."""
    lower = factor.mH if upper else factor
    y = torch.linalg.solve_triangular(lower, b, upper=False)
    found: torch.Tensor = torch.linalg.solve_triangular(lower.mH, y, upper=True)
    return found


def cholesky_inverse(factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    """Two triangular systems with the identity."""
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand(factor.shape)
    return cholesky_solve(identity, factor, upper)


def triangular_solve(
    b: torch.Tensor, a: torch.Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solution of a triangular system, as of linalg_solve_triangular, and a copy of `a`."""
    outer = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*outer, *a.shape[-2:]), b.expand(*outer, *b.shape[-2:])
    matrix = a.mH if transpose else a
    return torch.linalg.solve_triangular(matrix, b, upper=upper != transpose, unitriangular=unitriangular), a.clone()


def addbmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """One product over both the batch and the inner axis."""
    rows, columns = a.shape[1], b.shape[2]
    product = a.transpose(0, 1).reshape(rows, -1) @ b.reshape(-1, columns)
    return beta * x + alpha * product
