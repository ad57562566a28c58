"""QR decomposition by Householder's reflections in FP64, in one order: LAPACK's depends on the machine's products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit


def qr(a: torch.Tensor, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    """As `torch.linalg.qr`. a: [..., m, n], FP32 or FP64; signs are LAPACK's."""
    rows, columns = a.shape[-2:]
    inner = rows if mode == "complete" else min(rows, columns)
    batch = a.detach().double().reshape(math.prod(a.shape[:-2]), rows, columns).numpy()
    q: npt.NDArray[np.float64] = np.zeros((len(batch), rows, inner))
    r: npt.NDArray[np.float64] = np.zeros((len(batch), inner, columns))
    for number, matrix in enumerate(batch):
        work, scales = np.array(matrix, order="C"), np.zeros(min(rows, columns))
        _reflect(work, scales)
        r[number] = np.triu(work[:inner])
        if mode != "r":
            _product(work, scales, q[number])
    made = torch.from_numpy(q).reshape(*a.shape[:-2], rows, inner).to(a.dtype)
    return (
        a.new_empty(0) if mode == "r" else made,
        torch.from_numpy(r).reshape(*a.shape[:-2], inner, columns).to(a.dtype),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _reflect(a: Any, scales: Any) -> None:
    """a: float64[m, n] -> R on and above its diagonal, the reflections below it. scales: of these."""
    m = len(a)
    for j in range(len(scales)):
        rest = 0.0
        for i in range(j + 1, m):
            rest += a[i, j] * a[i, j]
        if rest == 0.0:
            continue
        head = a[j, j]
        end = np.sqrt(head * head + rest)
        end = -end if head >= 0.0 else end
        scales[j] = (end - head) / end
        for i in range(j + 1, m):
            a[i, j] = a[i, j] / (head - end)
        a[j, j] = end
        _apply(a, j, scales[j], a, j + 1)


@njit(cache=True, nogil=True, error_model="numpy")
def _product(a: Any, scales: Any, q: Any) -> None:
    """q: zeros, float64[m, k] -> the first columns of the reflections' product."""
    for j in range(q.shape[1]):
        q[j, j] = 1.0
    for j in range(len(scales) - 1, -1, -1):
        if scales[j] != 0.0:
            _apply(a, j, scales[j], q, j)


@njit(nogil=True, error_model="numpy")
def _apply(a: Any, j: int, scale: float, x: Any, first: int) -> None:
    """Reflection j of a, applied to the columns of x from `first` on. Row by row, so that a row of x is one run, and
    four rows at a time, added in order."""
    m = len(x)
    head = x[j, first:]
    sums = head.copy()
    n, i = len(sums), j + 1
    while i + 4 <= m:
        v, w, y, z = a[i, j], a[i + 1, j], a[i + 2, j], a[i + 3, j]
        one, two, three, four = x[i, first:], x[i + 1, first:], x[i + 2, first:], x[i + 3, first:]
        for c in range(n):
            sums[c] = (((sums[c] + v * one[c]) + w * two[c]) + y * three[c]) + z * four[c]
        i += 4
    while i < m:
        v, one = a[i, j], x[i, first:]
        for c in range(n):
            sums[c] += v * one[c]
        i += 1
    for c in range(n):
        sums[c] *= scale
        head[c] -= sums[c]
    for i in range(j + 1, m):
        v, one = a[i, j], x[i, first:]
        for c in range(n):
            one[c] -= v * sums[c]
