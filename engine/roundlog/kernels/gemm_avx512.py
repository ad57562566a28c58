"""Matrix products of FP32 numbers in FP64, tile by tile: widened while they are packed, summed in vector registers in
blocks of terms, rounded and marked before a tile leaves the cache. The loops follow Goto and van de Geijn, Anatomy of
High-Performance Matrix Multiplication (2008): a few strips of the right operand stay in the second level of the cache
while all strips of the left one pass by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.gemm_microkernel import (
    COLUMNS,
    LANES,
    ROWS,
    add_squares_of_columns,
    add_squares_of_rows,
    round_row,
    sum_products,
    widen,
    widen_transposed,
)
from roundlog.kernels.marking import LARGEST, AmbiguousPart
from roundlog.kernels.scratch import scratch

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_AT_ONCE = 1024
"""Terms that are packed at once: so many of a tile's row and column fit the second level of the cache."""
_TOGETHER = 4
"""Strips of the right operand that are packed together, to read whole lines of the cache where its columns lie side by
side."""
_GROWTH = 8
"""Factor by which the room for marked elements grows once there were too many."""


@njit(cache=True, nogil=True, error_model="numpy")
def _pack(x: Any, at: int, line: int, term: int, lines: int, width: int, terms: int, chunk: int, strips: Any) -> None:
    """strips[l // width][k][l % width] = x[at + l * line + k * term], and 0 where there is no line l; a strip has room
    for `chunk` terms."""
    source, target, size = x.ctypes.data + at * 4, strips.ctypes.data, chunk * width
    if lines % width:
        strips[lines // width * size : lines // width * size + terms * width] = 0.0
    whole = 0 if line != 1 and term != 1 else lines - lines % LANES
    if line == 1:
        for k in range(terms):
            for n in range(0, whole, LANES):
                widen(source + (k * term + n) * 4, target + (n // width * size + k * width + n % width) * 8)
    elif term == 1:
        for n in range(0, whole, LANES):
            into = target + (n // width * size + n % width) * 8
            for k in range(0, terms - terms % LANES, LANES):
                widen_transposed(source + (n * line + k) * 4, line * 4, into + k * width * 8, width * 8)
        for n in range(whole):
            for k in range(terms - terms % LANES, terms):
                strips[n // width * size + k * width + n % width] = x[at + n * line + k]
    for n in range(whole, lines):
        for k in range(terms):
            strips[n // width * size + k * width + n % width] = x[at + n * line + k * term]


@njit(cache=True, nogil=True, error_model="numpy")
def _mark_tile(
    tiles: Any,
    tile: int,
    rows: int,
    columns: int,
    row_norms: Any,
    row: int,
    norms: Any,
    column: int,
    rounded: Any,
    factor: float,
    out: Any,
    into: int,
    pitch: int,
    near: Any,
    count: int,
) -> int:
    """Round and mark a tile, as `roundlog.kernels.marking` does it; elements that do not fit into `near` are only
    counted. Positions, because slices cost more than a small tile."""
    indices, values, bounds = near
    source, whole = tiles.ctypes.data + tile * 8, columns == COLUMNS
    for r in range(rows):
        first, scale = into + r * pitch, row_norms[row + r]
        target = out.ctypes.data + first * 4 if whole else rounded.ctypes.data
        of_columns = norms.ctypes.data + column * 8
        found = round_row(source + r * COLUMNS * 8, of_columns, scale, factor, LARGEST, target)
        if not whole:
            for c in range(columns):
                out[first + c] = rounded[c]
        c = 0
        while found:
            if found & 1 and c < columns:
                if count < len(indices):
                    indices[count], values[count] = first + c, tiles[tile + r * COLUMNS + c]
                    bounds[count] = scale * norms[column + c]
                count += 1
            found >>= 1
            c += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply(
    operands: Any,
    sizes: Any,
    room: Any,
    y: Any,
    gamma: float,
    factor: float,
    out: Any,
    into: int,
    pitch: int,
    near: Any,
    count: int,
) -> int:
    """operands, sizes, room: see `_prepared`. If there is no place in `near`, the sums go to y, else they are rounded
    to `out`. Returns count, and one more for every element that is marked, but stops once there are too many."""
    a, b, of_a, of_b = operands
    row_energy, column_energy, norms, left, panel, tiles = room
    rows, columns, terms, block, chunk = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    strips, size, marks = -(-rows // ROWS), ROWS * COLUMNS, len(near[0]) > 0
    rounded = np.empty(COLUMNS, dtype=np.float32)
    row_norms = np.empty(strips * ROWS)
    row_energy[:] = 0.0
    column_energy[:] = 0.0
    for begin in range(0, terms, chunk):
        some = min(chunk, terms - begin)
        last = begin + some == terms
        _pack(a, of_a[0] + begin * of_a[2], of_a[1], of_a[2], rows, ROWS, some, chunk, left)
        for i in range(strips):
            add_squares_of_rows(left.ctypes.data + i * chunk * ROWS * 8, row_energy.ctypes.data + i * ROWS * 8, some)
        if last:
            for r in range(len(row_norms)):
                row_norms[r] = np.sqrt(row_energy[r]) * gamma
        for first in range(0, columns, _TOGETHER * COLUMNS):
            lines = min(_TOGETHER * COLUMNS, columns - first)
            _pack(b, of_b[0] + first * of_b[1] + begin * of_b[2], of_b[1], of_b[2], lines, COLUMNS, some, chunk, panel)
            for j in range(-(-lines // COLUMNS)):
                at = column_energy.ctypes.data + (first + j * COLUMNS) * 8
                add_squares_of_columns(panel.ctypes.data + j * chunk * COLUMNS * 8, at, some)
            if marks and count > len(near[0]):
                return count
            if last:
                for c in range(-(-lines // COLUMNS) * COLUMNS):
                    norms[c] = np.sqrt(column_energy[first + c])
            for row in range(0, rows, ROWS):
                for column in range(0, lines, COLUMNS):
                    # Where there is a single chunk, all tiles are the same memory.
                    tile = ((first + column) // COLUMNS * strips + row // ROWS) * size if chunk < terms else 0
                    for start in range(0, some, block):
                        sum_products(
                            left.ctypes.data + (row * chunk + start * ROWS) * 8,
                            panel.ctypes.data + (column * chunk + start * COLUMNS) * 8,
                            tiles.ctypes.data + tile * 8,
                            min(block, some - start),
                            begin + start > 0,
                        )
                    height, width = min(ROWS, rows - row), min(COLUMNS, lines - column)
                    if last and marks:
                        count = _mark_tile(
                            tiles,
                            tile,
                            height,
                            width,
                            row_norms,
                            row,
                            norms,
                            column,
                            rounded,
                            factor,
                            out,
                            into + row * pitch + first + column,
                            pitch,
                            near,
                            count,
                        )
                    elif last:
                        for r in range(height):
                            at = (row + r) * columns + first + column
                            for c in range(width):
                                y[at + c] = tiles[tile + r * COLUMNS + c]
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply_batches(
    operands: Any,
    sizes: Any,
    room: Any,
    gamma: float,
    factor: float,
    out: Any,
    into: int,
    pitch: int,
    near: Any,
    batches: int,
    step: int,
) -> int:
    """One product after the other, `step` apart in the output, until there are too many marked elements."""
    a, b, of_a, of_b = operands
    of_a, of_b, count, nowhere = of_a.copy(), of_b.copy(), 0, np.empty(0)
    for batch in range(batches):
        at = into + batch * step
        count = _multiply((a, b, of_a, of_b), sizes, room, nowhere, gamma, factor, out, at, pitch, near, count)
        if count > len(near[0]):
            break
        of_a[0] += of_a[3]
        of_b[0] += of_b[3]
    return count


@dataclass(frozen=True, slots=True)
class Lines:
    """One operand: rows of the left one, or columns of the right one."""

    memory: F32
    """Flat."""
    first: int
    """Begin of its first line."""
    line: int
    """Distance from one line to the next."""
    term: int
    """Distance from one term of a line to the next."""
    count: int
    """Lines."""
    batch: int = 0
    """Distance from one batch to the next."""

    def steps(self) -> I64:
        return np.array([self.first, self.line, self.term, self.batch], dtype=np.int64)


def _numbers(name: str, size: int) -> F64:
    numbers: F64 = scratch(name, size).numpy()
    return numbers


def _prepared(a: Lines, b: Lines, terms: int, block: int) -> tuple[tuple[Any, ...], I64, tuple[F64, ...]]:
    """Arguments of every product: the operands' memory, and where their lines lie in it; rows, columns, terms, those of
    a block and of a chunk; and scratch memory of this thread."""
    chunk = min(terms, block * max(1, _AT_ONCE // block))
    rows, columns = -(-a.count // ROWS), -(-b.count // COLUMNS)
    room = (
        _numbers("rows", rows * ROWS),
        _numbers("columns", columns * COLUMNS),
        _numbers("norms", _TOGETHER * COLUMNS),
        _numbers("left", rows * ROWS * chunk),
        _numbers("panel", min(columns, _TOGETHER) * COLUMNS * chunk),
        _numbers("tiles", ROWS * COLUMNS * (rows * columns if chunk < terms else 1)),
    )
    sizes = np.array([a.count, b.count, terms, block, chunk], dtype=np.int64)
    return (a.memory, b.memory, a.steps(), b.steps()), sizes, room


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Place of a product: element [i, r, c] goes to memory[first + i * batch + r * row + c]."""

    memory: F32
    """Flat."""
    first: int
    row: int
    batch: int = 0


def certify_part(
    a: Lines, b: Lines, terms: int, block: int, gamma: float, factor: float, out: OutputPlace, batches: int = 1
) -> AmbiguousPart:
    """Sums over `terms` > 0, in blocks of `block`, of a's lines times b's. They are rounded and marked as
    `roundlog.kernels.marking.mark_product` does it, with the norms of a's lines times gamma and those of b's. The
    indices of what is marked are those in the output's memory, in no order."""
    operands, sizes, scratch_memory = _prepared(a, b, terms, block)
    room = max(64, batches * a.count * b.count // _GROWTH**2)
    while True:
        near = np.empty(room, dtype=np.int64), np.empty(room), np.empty(room)
        where = out.memory, out.first, out.row
        count = _multiply_batches(operands, sizes, scratch_memory, gamma, factor, *where, near, batches, out.batch)
        if count <= room:
            indices, y, d = near
            if count == room:
                return AmbiguousPart(indices, y, d)
            return AmbiguousPart(indices[:count].copy(), y[:count].copy(), d[:count].copy())
        # Only where much is marked, as hostile data can make it. It was soon found out.
        room = min(max(count, _GROWTH * room), batches * a.count * b.count)


def sum_part(a: Lines, b: Lines, terms: int, block: int) -> tuple[F64, F64, F64]:
    """float64[a.count, b.count]: the sums themselves, and the sums of squares of a's and of b's lines, in memory of
    their own."""
    operands, sizes, scratch_memory = _prepared(a, b, terms, block)
    y, nowhere = np.empty((a.count, b.count)), np.empty(0, dtype=np.float32)
    near = np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)
    _multiply(operands, sizes, scratch_memory, y.reshape(-1), 0.0, 0.0, nowhere, 0, 0, near, 0)
    row_energy, column_energy = scratch_memory[:2]
    return y, row_energy[: a.count].copy(), column_energy[: b.count].copy()
