"""Loops over whole tensors on CUDA, compiled by Triton, an optional extra. What a loop does is said, and tested, in
`roundlog.kernels`; without Triton, its reference in torch runs instead, to the same bits."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any
from warnings import warn

import numpy as np
import numpy.typing as npt
import torch

from roundlog.kernels.marking import mark_flat


@cache
def marking_works(device: torch.device) -> bool:
    """Whether `roundlog.kernels.cuda.marking` can be imported, compiled, and marks a few numbers on this device as the
    CPU does. Warns if it should and does not."""
    # AMD's devices call themselves cuda, too.
    if torch.version.cuda is None or find_spec("triton") is None:
        return False
    try:
        why = "it does not compute as IEEE 754 says" if not agrees(device) else ""
    except Exception as error:
        # No C compiler, no ptxas for this card, a driver that is too old: whatever it is, there is another way.
        why = f"{type(error).__name__}: {error}"
    if why:
        warn(f"Triton does not work on {device}, so that marking is slower, to the same bits: {why}", stacklevel=2)
    return not why


def agrees(device: torch.device) -> bool:
    """Whether the kernels for CUDA mark some numbers near rounding boundaries, of every size, as the CPU does."""
    from roundlog.kernels.cuda import marking

    rng = np.random.default_rng(0)
    y = rng.choice([1.0, -1.0], 5000) * 2.0 ** rng.integers(-160, 130, 5000)
    y *= 1 + rng.integers(0, 4, 5000) * 2.0**-24 + rng.integers(-3, 4, 5000) * 2.0**-50
    y[:6] = 0.0, -0.0, 5e-324, np.inf, -np.inf, np.nan
    d = np.abs(y) * rng.random(5000) * 2.0**-49
    out = np.empty(5000, dtype=np.float32)
    with np.errstate(all="ignore"):
        near = mark_flat(y, d, 1.75, out)
    rounded, found = marking.mark_flat(torch.from_numpy(y).to(device), torch.from_numpy(d).to(device), 1.75)
    here: list[npt.NDArray[Any]] = [out, near.indices, near.y, near.d]
    return all(map(_same_bits, here, (part.cpu().numpy() for part in (rounded, *found))))


def _same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Of NaN there are many; any is as good as another."""
    nan = a != a
    return a.shape == b.shape and bool((nan == (b != b)).all()) and a[~nan].tobytes() == b[~nan].tobytes()
