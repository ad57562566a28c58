"""FP32 matrices as FP64 ones, together with the squared norms that bounds are made of, in one read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit

from roundlog.kernels.number_words import Words, words_of
from roundlog.kernels.scratch import scratch
from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]

_BLOCK = 64
"""Rows that one part of the work covers, where sums run down the columns."""

_ANY_ORDER = {"reassoc", "contract"}
"""Energies may be summed in any order, with FMA or without: bounds allow for it. Nothing else is computed here."""


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_ANY_ORDER)
def _widen_rows(
    x: Any, offset: int, strides: Any, rows: int, columns: int, out: Any, energy: Any, start: int, stop: int
) -> None:
    for r in range(start, stop):
        first = offset + (r // rows) * strides[0] + (r % rows) * strides[1]
        source = x[first : first + columns]
        target = out[r * columns : (r + 1) * columns]
        total = 0.0
        for c in range(columns):
            v = np.float64(source[c])
            target[c] = v
            total += v * v
        energy[r] += total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_ANY_ORDER)
def _widen_columns(
    x: Any, offset: int, strides: Any, rows: int, columns: int, out: Any, energy: Any, start: int, stop: int
) -> None:
    blocks = -(-rows // _BLOCK)
    for part in range(start, stop):
        batch, block = part // blocks, part % blocks
        sums = energy[part]
        for row in range(block * _BLOCK, min((block + 1) * _BLOCK, rows)):
            first = offset + batch * strides[0] + row * strides[1]
            source = x[first : first + columns]
            target = out[(batch * rows + row) * columns : (batch * rows + row + 1) * columns]
            for c in range(columns):
                v = np.float64(source[c])
                target[c] = v
                sums[c] += v * v


def storage_of(x: torch.Tensor) -> npt.NDArray[np.float32]:
    """The memory that an FP32 CPU tensor lies in, flat: x[0] is at x.storage_offset(), x[1] at x.stride(0) from it."""
    flat: npt.NDArray[np.float32] = _whole(x).numpy()
    return flat


def words_around(x: torch.Tensor) -> Words:
    """`storage_of` for a tensor of FP32 or BF16, as `roundlog.kernels.number_words` has it."""
    return words_of(_whole(x))


def _whole(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(x.detach(), (x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)


def dense(x: torch.Tensor) -> torch.Tensor:
    """x, copied unless one of its last two axes lies densely in memory."""
    return x if x.stride(-1) == 1 or x.stride(-2) == 1 else x.contiguous()


def widen(name: str, x: torch.Tensor, energy: F64, axis: int) -> torch.Tensor:
    """x: f32[B, P, Q], `dense`, on the CPU -> f64[B, P, Q] in the scratch buffer `name`, in x's own order of the last
    two axes. Adds the sums of squares over `axis` (-1 or -2) to energy: float64[B * P] or float64[B * Q]."""
    if x.stride(-1) != 1 and x.shape[-1] != 1:
        return widen(name, x.mT, energy, -3 - axis).mT
    batches, rows, columns = x.shape
    out = scratch(name, batches, rows, columns)
    if not out.numel():
        return out
    flat, source = out.view(-1).numpy(), storage_of(x)
    offset, strides = int(x.storage_offset()), np.array(x.stride()[:2], dtype=np.int64)
    if axis == -1:
        in_parts(
            lambda start, stop: _widen_rows(source, offset, strides, rows, columns, flat, energy, start, stop),
            batches * rows,
            out.numel(),
        )
    else:
        blocks = -(-rows // _BLOCK)
        parts = np.zeros((batches * blocks, columns))
        in_parts(
            lambda start, stop: _widen_columns(source, offset, strides, rows, columns, flat, parts, start, stop),
            batches * blocks,
            out.numel(),
        )
        energy += parts.reshape(batches, blocks, columns).sum(axis=1).reshape(-1)
    return out
