"""Memory for kernels. Fresh pages cost more than the arithmetic on them: FP64 memory is used again and again, and so is
that of large outputs, which lie in huge pages."""

from __future__ import annotations

import ctypes
import os
import threading
from math import prod

import numpy as np
import numpy.typing as npt
import torch

Block = npt.NDArray[np.uint8]

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

_LARGE = 1 << 25
"""Bytes from which malloc gives memory back to the system at once, so that its pages are new every time."""

_ALIGNED = 64
"""Bytes of a line of the cache, and of a vector: torch's memory begins at a multiple of it."""


class MemoryPool:
    """Large blocks of memory, lent to tensors and lent again when these are gone. Never holds more than were lent at
    once at some time."""

    def __init__(self) -> None:
        # A tensor may go while its own thread is in here: what is done meanwhile has to allow for another idle block.
        self._lock = threading.RLock()
        self._idle: list[Block] = []
        self._lent = self._most = 0

    @property
    def size(self) -> int:
        """Bytes, lent or idle."""
        return self._lent + sum(map(len, self._idle))

    def lend(self, size: int) -> Block:
        """uint8[at least so many and less than twice that], uninitialised."""
        with self._lock:
            # Out of reach of `release`, which the collection of garbage may call here.
            idle, self._idle = self._idle, []
            fitting = [position for position, block in enumerate(idle) if size <= len(block) < 2 * size]
            found = idle.pop(min(fitting, key=lambda position: len(idle[position]))) if fitting else None
            while found is None and idle and self._lent + sum(map(len, idle)) + size > self._most:
                del idle[0]
            self._idle += idle
            # By numpy, which asks the system for huge pages, 2 MiB each.
            block = np.empty(size, dtype=np.uint8) if found is None else found
            self._lent += len(block)
            self._most = max(self._most, self._lent)
            return block

    def take_back(self, block: Block) -> None:
        with self._lock:
            self._lent -= len(block)
            self._idle.append(block)

    def release(self) -> None:
        """Give the system back what is idle."""
        with self._lock:
            self._idle.clear()

    def unlock(self) -> None:
        """Unlock the pool in a process that was forked, whichever thread was in here."""
        self._lock = threading.RLock()


POOL = MemoryPool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOL.unlock)


class _Lent:
    """Owner of an array's memory."""

    def __init__(self, pool: MemoryPool, size: int) -> None:
        self._pool, self._block = pool, pool.lend(size + _ALIGNED)
        self.__array_interface__ = _aligned(self._block, size).__array_interface__

    def __del__(self) -> None:
        if hasattr(self, "_block"):  # else there was no memory for it
            self._pool.take_back(self._block)


def _aligned(block: Block, size: int) -> Block:
    """So many bytes of a block, from a multiple of `_ALIGNED` on."""
    first = -block.ctypes.data % _ALIGNED
    return block[first : first + size]


def give_back() -> None:
    """Give the system all memory back that nobody has any more, with this thread's buffers: after work that took more
    than what follows."""
    _LOCAL.__dict__.clear()
    POOL.release()
    # Only of glibc, which keeps what lies below anything that is still in use.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """torch.empty, on the CPU; what is large, from the pool.

    torch asks for aligned memory. glibc before 2.38 does not find it again once it is free, but takes a longer piece
    and cuts it: a third of a step's memory was pieces that nothing fitted into. So a longer piece is taken here."""
    size = prod(shape) * dtype.itemsize
    if size < _SMALL:
        return torch.empty(shape, dtype=dtype)
    if size >= _LARGE:
        return torch.from_numpy(np.asarray(_Lent(POOL, size))).view(dtype).view(shape)
    longer = torch.from_numpy(np.empty(size + _ALIGNED, dtype=np.uint8))
    # torch tells the address sooner than numpy does.
    first = -longer.data_ptr() % _ALIGNED
    return longer[first : first + size].view(dtype).view(shape)
