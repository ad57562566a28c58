"""Operators that need other means than a program's: FP64, one order of additions, or one order of equal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from roundlog.capture.portable.householder import qr
from roundlog.capture.portable.strict_functions import CODES, MOST_TURNED, of_all, powers

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
