"""Memory of an interpreted device: tensors as global memory, and shared memory in which every access has to be ordered
with the others by barriers. Sections are those of the PTX ISA."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from tests.devices.ptx_program import UNSIGNED

I64 = npt.NDArray[np.int64]
Words = npt.NDArray[np.unsignedinteger]

WARP = 32
SEVERAL = -1


class MemoryFaultError(RuntimeError):
    """An access that is not aligned, or of memory that nobody has given the kernel."""


class RaceError(RuntimeError):
    """Two accesses of shared memory, one of them a write, that nothing orders."""


def aligned(addresses: I64, width: int) -> I64:
    """Return addresses (Addresses as Operands). Raises MemoryFaultError if one is no multiple of the width."""
    if (addresses % width).any():
        raise MemoryFaultError(f"{int(addresses[addresses % width != 0][0]):#x} is no multiple of {width}")
    return addresses


class GlobalMemory:
    """The storages of a kernel's tensors, where they are (Global State Space)."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        storages = {one.data_ptr(): one.nbytes() for one in (tensor.untyped_storage() for tensor in tensors)}
        self._bases = np.array(sorted(storages), dtype=np.int64)
        self._sizes = np.array([storages[base] for base in self._bases.tolist()], dtype=np.int64)
        self._bytes = [
            np.ctypeslib.as_array((ctypes.c_uint8 * storages[base]).from_address(base)) for base in self._bases.tolist()
        ]

    def _parts(self, addresses: I64, width: int) -> Iterator[tuple[npt.NDArray[np.bool_], Words, I64]]:
        """(Which addresses, the words of a storage, their places there), of all storages that are met."""
        storage = np.searchsorted(self._bases, aligned(addresses, width), side="right") - 1
        offsets = addresses - self._bases[storage]
        wrong = (storage < 0) | (offsets + width > self._sizes[storage])
        if wrong.any():
            raise MemoryFaultError(f"{int(addresses[wrong][0]):#x} is in no tensor of the kernel")
        for one in np.unique(storage):
            whole = self._bytes[one][: self._sizes[one] // width * width]
            yield storage == one, whole.view(UNSIGNED[width]), offsets[storage == one] // width

    def load(self, threads: I64, addresses: I64, width: int) -> Words:
        """Return the words that n threads read, uint[n] of 1, 2, 4 or 8 bytes."""
        out = np.empty(len(addresses), UNSIGNED[width])
        for which, words, places in self._parts(addresses, width):
            out[which] = words[places]
        return out

    def store(self, threads: I64, addresses: I64, width: int, values: Words) -> None:
        """Write n threads' words, uint[n]. Of several for one place the last one stays."""
        for which, words, places in self._parts(addresses, width):
            words[places] = values[which]


class _Accesses:
    """The last accesses of cells, of one sort: by which thread, of which warp (SEVERAL if there were several), after
    how many barriers of its block, and how many of its warp."""

    def __init__(self, cells: int) -> None:
        self.thread, self.warp, self.barriers, self.synced = np.full((4, cells), -2, dtype=np.int64)


class SharedMemory:
    """Shared memory of some blocks (Shared State Space), and the order of its accesses (Memory Consistency Model).

    An access is ordered before one of another thread if a barrier of the block lies between them or, within a warp, one
    of the warp. Copies and products that are not waited for yet are ordered with nothing. Before a product reads, a
    fence has to make the words visible to the async proxy (Async Proxy)."""

    def __init__(self, blocks: int, size: int, threads: int, granule: int) -> None:
        """threads: of a block. granule: bytes of a cell, the least of an access."""
        self._size, self._threads, self._granule = -(-size // 16) * 16, threads, granule
        # A pattern that no result is: nobody has written it.
        self._bytes = np.full(blocks * self._size, 0xA5, dtype=np.uint8)
        cells, warps = len(self._bytes) // granule, blocks * threads // WARP
        self._written, self._read = _Accesses(cells), _Accesses(cells)
        self._written_at, self._copied, self._multiplied = np.zeros((3, cells), dtype=np.int64)
        self.barriers, self.synced, self.fenced = (np.zeros(many, dtype=np.int64) for many in (blocks, warps, warps))
        self.clock = 0

    def _places(self, threads: I64, addresses: I64, width: int) -> I64:
        """Return addresses in the memory of all blocks."""
        if ((addresses < 0) | (addresses + width > self._size)).any():
            raise MemoryFaultError(f"shared memory has {self._size} bytes, and no {int(addresses.max())}")
        return aligned(addresses, width) + threads // self._threads * self._size

    def _cells(self, places: I64, width: int) -> I64:
        return places[:, None] // self._granule + np.arange(max(width // self._granule, 1))

    def _check(self, accesses: _Accesses, threads: I64, cells: I64, what: str) -> None:
        who, warp = threads[:, None], threads[:, None] // WARP
        close = accesses.barriers[cells] == self.barriers[threads // self._threads][:, None]
        others = (accesses.warp[cells] != warp) | (accesses.synced[cells] == self.synced[warp])
        wrong = close & (accesses.thread[cells] != who) & others
        if wrong.any():
            row, cell = (int(one[0]) for one in wrong.nonzero())
            place = int(cells[row, cell]) * self._granule % self._size
            raise RaceError(f"thread {int(threads[row])} {what} byte {place} of shared memory, without a barrier")

    def _idle(self, counts: I64, cells: I64, what: str) -> None:
        if counts[cells].any():
            raise RaceError(f"byte {int(cells[counts[cells] > 0][0]) * self._granule % self._size} is {what}")

    def _note(self, accesses: _Accesses, threads: I64, cells: I64) -> None:
        who, warp = (np.broadcast_to(one[:, None], cells.shape) for one in (threads, threads // WARP))
        now, synced = np.broadcast_to(self.barriers[threads // self._threads][:, None], cells.shape), self.synced[warp]
        close = accesses.barriers[cells] == now
        of_warp = accesses.warp[cells] == warp
        alone = ~close | (of_warp & ((accesses.thread[cells] == who) | (accesses.synced[cells] != synced)))
        one, its = np.where(alone, who, SEVERAL), np.where(~close | of_warp, warp, SEVERAL)
        accesses.thread[cells], accesses.warp[cells] = one, its
        accesses.barriers[cells], accesses.synced[cells] = now, synced
        # Threads of one instruction that meet in a cell.
        accesses.thread[cells[accesses.thread[cells] != one]] = SEVERAL
        accesses.warp[cells[accesses.warp[cells] != its]] = SEVERAL

    def load(self, threads: I64, addresses: I64, width: int) -> Words:
        """Return the words that n threads read, uint[n] of 1, 2, 4 or 8 bytes. Raises RaceError."""
        places = self._places(threads, addresses, width)
        cells = self._cells(places, width)
        self._idle(self._copied, cells, "read before its copy is waited for")
        self._check(self._written, threads, cells, "reads what another one wrote to")
        self._note(self._read, threads, cells)
        return self._bytes.view(UNSIGNED[width])[places // width]

    def _before_write(self, threads: I64, cells: I64) -> None:
        self._idle(self._copied, cells, "written before a copy to it is waited for")
        self._idle(self._multiplied, cells, "written before the product that reads it is waited for")
        self._check(self._read, threads, cells, "writes what another one read from")

    def _write(self, threads: I64, places: I64, data: npt.NDArray[np.uint8]) -> None:
        """data: uint8[n, width]. Threads may write the same, in any order."""
        cells, at = self._cells(places, data.shape[1]), places[:, None] + np.arange(data.shape[1])
        changed = (self._bytes[at] != data).any(axis=1)
        self._check(self._written, threads[changed], cells[changed], "writes what another one wrote to")
        self._note(self._written, threads, cells)
        self._written_at[cells] = self.clock
        self._bytes[at] = data
        if (self._bytes[at] != data).any():
            raise RaceError("threads write to one byte of shared memory at once, and not the same")

    def store(self, threads: I64, addresses: I64, width: int, values: Words) -> None:
        """Store n threads' words. Raises RaceError."""
        places = self._places(threads, addresses, width)
        self._before_write(threads, self._cells(places, width))
        self._write(threads, places, np.ascontiguousarray(values).view(np.uint8).reshape(-1, width))

    def begin_copy(self, threads: I64, addresses: I64, width: int) -> I64:
        """Announce that bytes are written at some time from now on, and return their places, int64[n, width]."""
        places = self._places(threads, addresses, width)
        cells = self._cells(places, width)
        self._before_write(threads, cells)
        self._check(self._written, threads, cells, "copies to what another one wrote to")
        self._copied[cells] += 1
        return places

    def end_copy(self, threads: I64, places: I64, data: npt.NDArray[np.uint8]) -> None:
        """Write what was announced. data: uint8[n, width]."""
        self._copied[self._cells(places, data.shape[1])] -= 1
        self._write(threads, places, data)

    def begin_product(self, threads: I64, addresses: I64) -> tuple[npt.NDArray[np.uint16], I64]:
        """Return the words of 16 bits, of any shape, that a warpgroup's product reads from now on, and their cells.
        threads: int64[128]. Raises RaceError for words that no barrier, or no fence, has made visible to it."""
        flat = addresses.reshape(-1)
        places = self._places(np.broadcast_to(threads[:1], flat.shape), flat, 2)
        cells = np.unique(self._cells(places, 2))
        self._idle(self._copied, cells, "read before its copy is waited for")
        close = self._written.barriers[cells] == self.barriers[threads[0] // self._threads]
        if close.any():
            raise RaceError("a product reads shared memory that was written since the last barrier")
        fenced = self.fenced[np.maximum(self._written.warp[cells], 0)] > self._written_at[cells]
        if not (fenced | (self.fenced[threads // WARP].min() > self._written_at[cells])).all():
            raise RaceError("a product reads shared memory that was written since the last fence.proxy.async")
        self._multiplied[cells] += 1
        return self._bytes.view(np.uint16)[places // 2].reshape(addresses.shape), cells

    def end_product(self, threads: I64, cells: I64) -> None:
        """Announce that a product has read its words."""
        self._multiplied[cells] -= 1
        # Each warp waits for itself: to the others, all of the group may have read until now.
        self._read.thread[cells] = self._read.warp[cells] = SEVERAL
        self._read.barriers[cells] = self.barriers[threads[0] // self._threads]


class TensorMemory:
    """Tensor memory of some blocks (Tensor Memory), the products that are added to it, and the mbarrier objects that
    tell of their ends. A product takes place when it is waited for, which is as late as can be."""

    def __init__(self, blocks: int) -> None:
        # 128 lanes by 512 columns. A pattern that no result is.
        self.words = np.full((blocks, 128, 512), 0xA5A5A5A5, dtype=np.uint32)
        self._allocated = np.zeros(blocks, dtype=np.int64)
        self.products: list[list[Callable[[], None]]] = [[] for _ in range(blocks)]
        """Of each block, those that no barrier has been told to wait for."""
        self._committed: list[list[tuple[int, list[Callable[[], None]]]]] = [[] for _ in range(blocks)]
        self.phases: dict[tuple[int, int], int] = {}
        """How many have ended of the barrier of a block at an address."""

    def allocate(self, blocks: I64, columns: int) -> Words:
        """Return addresses of some columns, uint32[n]. Raises MemoryFaultError."""
        found = self._allocated[blocks].astype(np.uint32)
        self._allocated[blocks] += columns
        if (self._allocated > self.words.shape[2]).any():
            raise MemoryFaultError("tensor memory has 512 columns")
        return found

    def places(self, blocks: I64, addresses: I64) -> tuple[I64, I64, I64]:
        """Return where the words at some addresses are, once no product changes them. Raises RaceError."""
        if ((addresses & 0xFFFF) >= self._allocated[blocks]).any() or (addresses >> 16 >= 128).any():
            raise MemoryFaultError("nobody has allocated this tensor memory")
        if any(self.products[block] or self._committed[block] for block in np.unique(blocks)):
            raise RaceError("tensor memory is accessed before a product is waited for")
        return blocks, addresses >> 16, addresses & 0xFFFF

    def commit(self, block: int, barrier: int) -> None:
        """Have the current phase of a barrier end with the block's products until now."""
        self._committed[block].append((barrier, self.products[block]))
        self.products[block] = []

    def has_ended(self, block: int, barrier: int, parity: int) -> bool:
        """Add products until a barrier's phase of this parity has ended, or there are no more."""
        while self.phases[block, barrier] & 1 == parity and self._committed[block]:
            ended, products = self._committed[block].pop(0)
            for product in products:
                product()
            self.phases[block, ended] += 1
        return self.phases[block, barrier] & 1 != parity
