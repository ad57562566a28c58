"""FP64 memory that is used again and again: fresh pages cost more than the arithmetic on them."""

from __future__ import annotations

import threading
from math import prod

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
