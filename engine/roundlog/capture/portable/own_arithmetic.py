"""QR decomposition by Householder's reflections in FP64, in one order: LAPACK's depends on the machine's products."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit

from roundlog.capture.portable.strict_functions import CODES, MOST_TURNED, of_all, powers


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


Arguments = dict[str, Any]

_WIDE = (torch.float32, torch.float64)


def _function(name: str, given: Arguments) -> Any:
    """A function of FP64; of FP32, too, if programs have no operator for it."""
    x = given["self"]
    if x.dtype not in (_WIDE if name == "erfinv" else (torch.float64,)):
        return NotImplemented
    if name in ("sin", "cos") and bool((x.abs() > MOST_TURNED).any()):
        return NotImplemented
    flat = x.detach().reshape(-1).numpy()
    out = np.empty_like(flat)
    of_all(CODES[name], flat, out)
    return torch.from_numpy(out).reshape(x.shape)


def _power(given: Arguments) -> Any:
    x, y = given["self"], given["exponent"]
    dtype = torch.result_type(x, y)
    if dtype not in _WIDE:
        return NotImplemented
    one, two = torch.broadcast_tensors(*(torch.as_tensor(item, dtype=torch.float64) for item in (x, y)))
    out = np.empty(one.numel(), np.float32 if dtype == torch.float32 else np.float64)
    powers(one.detach().reshape(-1).numpy(), two.detach().reshape(-1).numpy(), out)
    return torch.from_numpy(out).reshape(one.shape)


def _arange(given: Arguments) -> Any:
    start, end, step = given.get("start") or 0, given["end"], 1 if given.get("step") is None else given["step"]
    is_whole = all(isinstance(item, int) for item in (start, end, step))
    dtype = given.get("dtype") or (torch.int64 if is_whole else torch.get_default_dtype())
    if not dtype.is_floating_point or not step:
        return NotImplemented
    count = (end - start) / step
    if not 0 <= count < math.inf:
        return NotImplemented  # PyTorch says what is wrong
    return torch.from_numpy(float(start) + np.arange(math.ceil(count)) * float(step)).to(dtype)


def _linspace(given: Arguments) -> Any:
    start, end, steps = given["start"], given["end"], int(given["steps"])
    dtype = given.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point or steps < 0 or any(isinstance(x, torch.Tensor | complex) for x in (start, end)):
        return NotImplemented
    return torch.from_numpy(_spaced(float(start), float(end), steps)).to(dtype)


def _logspace(given: Arguments) -> Any:
    start, end, steps = given["start"], given["end"], int(given["steps"])
    dtype = given.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point or steps < 0 or any(isinstance(x, torch.Tensor | complex) for x in (start, end)):
        return NotImplemented
    exponents, out = _spaced(float(start), float(end), steps), np.empty(steps)
    powers(np.full(steps, float(given["base"])), exponents, out)
    return torch.from_numpy(out).to(dtype)


def _spaced(start: float, end: float, steps: int) -> Any:
    """float64[steps] from both ends to the middle, as PyTorch's."""
    if steps < 2:
        return np.full(steps, start)
    step, i = (end - start) / (steps - 1), np.arange(steps)
    return np.where(i < steps // 2, start + i * step, end - (steps - 1 - i) * step)


def _scaled(name: str, given: Arguments) -> Any:
    """a + alpha b, rounded twice everywhere."""
    a, b, alpha = given["self"], given["other"], given["alpha"]
    if alpha == 1 or not torch.result_type(a, b).is_floating_point:
        return NotImplemented
    scaled = (a if name == "rsub" else b) * alpha
    return b - scaled if name == "rsub" else a + scaled if name == "add" else a - scaled


def _sort(given: Arguments) -> Any:
    """Equal numbers stay in their order: some machines sort by vector instructions otherwise."""
    if given.get("stable"):
        return NotImplemented
    return torch.ops.aten.sort.stable(given["self"], stable=True, dim=given["dim"], descending=given["descending"])


def _qr(given: Arguments) -> Any:
    return qr(given["A"], given["mode"]) if given["A"].dtype in _WIDE else NotImplemented


OWN: dict[str, Callable[[Arguments], Any]] = {
    **{name: partial(_function, name) for name in CODES},
    "special_erfinv": partial(_function, "erfinv"),
    **{name: partial(_scaled, name) for name in ("add", "sub", "rsub")},
    "arange": _arange,
    "linalg_qr": _qr,
    "linspace": _linspace,
    "logspace": _logspace,
    "pow": _power,
    "sort": _sort,
}
"""Name without overload and underscore -> what a call gives, by its arguments' names; NotImplemented where PyTorch's
own, or a program's, is as good."""
