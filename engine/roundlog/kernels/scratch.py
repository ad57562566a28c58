"""Memory for kernels. Fresh pages cost more than the arithmetic on them: FP64 memory is used again and again."""

from __future__ import annotations

import ctypes
import threading
from math import prod

import numpy as np
import numpy.typing as npt
import torch

_LOCAL = threading.local()


def scratch(name: str, *shape: int) -> torch.Tensor:
    """f64[shape], contiguous, uninitialised, on the CPU: this thread's buffer of that name, which the next call with
    the same name overwrites."""
    return torch.from_numpy(scratch_numbers(name, prod(shape))).view(shape)


def scratch_numbers(name: str, size: int) -> npt.NDArray[np.float64]:
    """`scratch`, float64[size]: the same memory."""
    buffers: dict[str, npt.NDArray[np.float64]] = _LOCAL.__dict__.setdefault("buffers", {})
    buffer = buffers.get(name)
    if buffer is None or len(buffer) < size:
        buffers.pop(name, None)
        buffer = buffers[name] = torch.empty(size, dtype=torch.float64).numpy()
    return buffer[:size]


_SMALL = 1 << 16
"""Bytes below which torch's own memory is good enough."""

_ALIGNED = 64
"""Bytes of a line of the cache, and of a vector: torch's memory begins at a multiple of it."""


def give_back() -> None:
    """Give the system all memory back that nobody has any more, with this thread's buffers: after work that took more
    than what follows."""
    _LOCAL.__dict__.clear()
    # Only of glibc, which keeps what lies below anything that is still in use.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """torch.empty, on the CPU.

    torch asks for aligned memory. glibc before 2.38 does not find it again once it is free, but takes a longer piece
    and cuts it: a third of a step's memory was pieces that nothing fitted into. So a longer piece is taken here."""
    size = prod(shape) * dtype.itemsize
    if size < _SMALL:
        return torch.empty(shape, dtype=dtype)
    longer = torch.from_numpy(np.empty(size + _ALIGNED, dtype=np.uint8))
    # torch tells the address sooner than numpy does.
    first = -longer.data_ptr() % _ALIGNED
    return longer[first : first + size].view(dtype).view(shape)
