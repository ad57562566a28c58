"""Memory for kernels. Fresh pages cost more than the arithmetic on them: FP64 memory is used again and again, and large
outputs lie in huge pages."""

from __future__ import annotations

import threading
from math import prod

import numpy as np
import torch

_LOCAL = threading.local()


def scratch(name: str, *shape: int) -> torch.Tensor:
    """f64[shape], contiguous, uninitialised, on the CPU: this thread's buffer of that name, which the next call with
    the same name overwrites."""
    size = prod(shape)
    buffers: dict[str, torch.Tensor] = _LOCAL.__dict__.setdefault("buffers", {})
    buffer = buffers.get(name)
    if buffer is None or buffer.numel() < size:
        buffers.pop(name, None)
        buffer = buffers[name] = torch.empty(size, dtype=torch.float64)
    return buffer[:size].view(shape)


_LARGE = 1 << 25
"""Bytes from which malloc gives memory back to the system at once, so that its pages are new every time."""

_ALIGNED = 64
"""Bytes of a line of the cache, and of a vector: torch's memory begins at a multiple of it."""


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """torch.empty, on the CPU; what is large, by numpy, which asks the system for huge pages, 2 MiB each."""
    size = prod(shape) * dtype.itemsize
    if size < _LARGE:
        return torch.empty(shape, dtype=dtype)
    memory = np.empty(size + _ALIGNED, dtype=np.uint8)
    first = -memory.ctypes.data % _ALIGNED
    return torch.from_numpy(memory[first : first + size]).view(dtype).view(shape)
