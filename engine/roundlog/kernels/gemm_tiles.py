"""Sums of products of FP32 or BF16 numbers in FP64, tile by tile: widened while they are packed, summed in vector
registers in blocks of terms, rounded and marked before a tile leaves the cache. The loops follow Goto and van de Geijn,
Anatomy of High-Performance Matrix Multiplication (2008): a few strips of the right operand stay in the second level of
the cache while all strips of the left one pass by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.gemm_microkernel import (
    TILES,
    add_squares,
    add_squares_of_four,
    round_row,
    sum_products,
    tile_columns,
    tile_rows,
)
from roundlog.kernels.marking import NONE, AmbiguousPart
from roundlog.kernels.number_words import Words
from roundlog.kernels.scratch import scratch_numbers
from roundlog.kernels.tile_packing import Operand, pack

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Range = tuple[int, int]

_AT_ONCE = 256
"""Terms that are packed at once: so many of all of a part's rows, and of the columns that are packed together, fit the
second level of the cache, and of one strip of columns the first one."""
_TOGETHER = 8
"""Strips of the right operand that are packed together, to read whole lines of the cache where its columns lie side by
side."""
_APART = 1
"""Terms more that a strip has room for: a multiple of 4096 bytes apart, strips would take each other's place in the
cache."""
_GROWTH = 8
"""Factor by which the room for marked elements grows once there were too many."""


@njit(cache=True, nogil=True, error_model="numpy")
def mark_tile(
    lanes: Any,
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
    places: Any,
    dense: bool,
    near: Any,
    count: int,
) -> int:
    """Round and mark a tile, as `roundlog.kernels.marking` does it; elements that do not fit into `near` are only
    counted. Positions, because slices cost more than a small tile."""
    indices, values, bounds = near
    wide = tile_columns(lanes)
    source, of_columns = tiles.ctypes.data + tile * 8, norms.ctypes.data + column * 8
    for r in range(rows):
        first, scale = into + (row + r) * pitch, row_norms[row + r]
        target = out.ctypes.data + (first + places[column]) * out.itemsize if dense else rounded.ctypes.data
        found = round_row(lanes, source + r * wide * 8, of_columns, scale, factor, out, target)
        if not dense:
            for c in range(columns):
                out[first + places[column + c]] = rounded[c]
        c = 0
        while found:
            if found & 1 and c < columns:
                if count < len(indices):
                    indices[count], values[count] = first + places[column + c], tiles[tile + r * wide + c]
                    bounds[count] = scale * norms[column + c]
                count += 1
            found >>= 1
            c += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _add_squares(
    lanes: Any, strips: Any, lines: int, width: int, terms: int, chunk: int, sums: Any, first: int
) -> None:
    for n in range(0, -(-lines // width) * width, len(lanes)):
        strip, to = (
            strips.ctypes.data + (n // width * width * chunk + n % width) * 8,
            sums.ctypes.data + (first + n) * 8,
        )
        if terms >= 4:
            add_squares_of_four(lanes, strip, to, terms // 4, width)
        if terms % 4:
            add_squares(lanes, strip + terms // 4 * 4 * width * 8, to, terms % 4, width)


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply(
    lanes: Any,
    operands: Any,
    sizes: Any,
    room: Any,
    y: Any,
    gamma: float,
    factor: float,
    out: Any,
    into: int,
    pitch: int,
    places: Any,
    near: Any,
    count: int,
) -> int:
    """operands, sizes, room: see `_prepared`. If there is no place in `near`, the sums go to y, else they are rounded
    to `out`. Returns count, and one more for every element that is marked, but stops once there are too many."""
    a, b, of_a, of_b = operands
    row_norms, norms, left, panel, tiles = room
    first_row, rows, first_column, columns, terms, block, chunk, rows_given, columns_given = sizes
    room_for = chunk + _APART
    height, width = tile_rows(lanes), tile_columns(lanes)
    strips, size, marks = -(-rows // height), height * width, len(near[0]) > 0
    rounded, found = np.empty(width, out.dtype), np.empty(4 * max(height, width), dtype=np.int64)
    dense = np.empty(_TOGETHER, dtype=np.bool_)
    if not rows_given:
        row_norms[:] = 0.0
    if not columns_given:
        norms[:] = 0.0
    for begin in range(0, terms, chunk):
        some = min(chunk, terms - begin)
        last = begin + some == terms
        pack(lanes, a, of_a, first_row, rows, begin, some, height, room_for, left, found)
        if not rows_given:
            _add_squares(lanes, left, rows, height, some, room_for, row_norms, NONE)
            if last and marks:
                for r in range(len(row_norms)):
                    row_norms[r] = np.sqrt(row_norms[r]) * gamma
        for first in range(0, columns, _TOGETHER * width):
            lines = min(_TOGETHER * width, columns - first)
            pack(lanes, b, of_b, first_column + first, lines, begin, some, width, room_for, panel, found)
            if not columns_given:
                _add_squares(lanes, panel, lines, width, some, room_for, norms, first)
            if last and marks and not columns_given:
                for c in range(first, first + -(-lines // width) * width):
                    norms[c] = np.sqrt(norms[c])
            if marks and count > len(near[0]):
                return count
            if last and marks:
                for column in range(0, lines, width):
                    dense[column // width] = column + width <= lines
                    for c in range(first + column + 1, first + min(column + width, lines)):
                        dense[column // width] &= places[c] == places[c - 1] + 1
            for column in range(0, lines, width):
                for row in range(0, rows, height):
                    # Where there is a single chunk, all tiles are the same memory.
                    tile = ((first + column) // width * strips + row // height) * size if chunk < terms else 0
                    for start in range(0, some, block):
                        sum_products(
                            lanes,
                            left.ctypes.data + (row * room_for + start * height) * 8,
                            panel.ctypes.data + (column * room_for + start * width) * 8,
                            tiles.ctypes.data + tile * 8,
                            min(block, some - start),
                            begin + start > 0,
                        )
                    inside, across = min(height, rows - row), min(width, lines - column)
                    if last and marks:
                        count = mark_tile(
                            lanes,
                            tiles,
                            tile,
                            inside,
                            across,
                            row_norms,
                            row,
                            norms,
                            first + column,
                            rounded,
                            factor,
                            out,
                            into,
                            pitch,
                            places,
                            dense[column // width],
                            near,
                            count,
                        )
                    elif last:
                        for r in range(inside):
                            at = (row + r) * columns + first + column
                            for c in range(across):
                                y[at + c] = tiles[tile + r * width + c]
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply_batches(
    lanes: Any,
    operands: Any,
    sizes: Any,
    room: Any,
    given: Any,
    gamma: float,
    factor: float,
    out: Any,
    into: int,
    pitch: int,
    places: Any,
    near: Any,
    batches: int,
    step: int,
) -> int:
    """One product after the other, `step` apart in the output, until there are too many marked elements. given: what
    bounds are made of, as in `Product`, or nothing."""
    a, b, of_a, of_b = operands
    of_a, of_b, count, nowhere = of_a.copy(), of_b.copy(), NONE, np.empty(0)
    for batch in range(batches):
        for numbers, its, lines in ((room[0], given[0], sizes[1]), (room[1], given[1], sizes[3])):
            if len(its):
                numbers[:lines], numbers[lines:] = its[batch * lines : (batch + 1) * lines], 0.0
        at, both = into + batch * step, (a, b, of_a, of_b)
        count = _multiply(lanes, both, sizes, room, nowhere, gamma, factor, out, at, pitch, places, near, count)
        if count > len(near[0]):
            break
        of_a[1] += of_a[4]
        of_b[1] += of_b[4]
    return count


@dataclass(frozen=True, slots=True)
class Product:
    """A part of a product: some lines of the left operand times some of the right one."""

    left: Operand
    right: Operand
    rows: Range
    columns: Range
    terms: int
    """More than 0."""
    block: int
    """Terms that are added up one after the other; then the sums of such blocks."""
    gamma: float = 0.0
    """Bounds are this, times the norm of the left line, times that of the right one."""
    rows_of_bound: F64 | None = None
    """float64[batches * rows]: what bounds have in place of gamma times the norms of the left lines."""
    columns_of_bound: F64 | None = None
    """float64[batches * columns]: what bounds have in place of the norms of the right lines."""

    @property
    def size(self) -> tuple[int, int]:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]


def _prepared(lanes: int, part: Product) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[F64, ...]]:
    """Arguments of every product: the operands' memory, and how they lie in it; first row, rows, first column, columns,
    terms, those of a block and of a chunk, whether the bound's rows, and its columns, are given; and scratch memory of
    this thread."""
    tile, (rows, columns) = TILES[lanes], part.size
    chunk = min(part.terms, part.block * max(1, _AT_ONCE // part.block))
    high, wide = -(-rows // tile.rows) * tile.rows, -(-columns // tile.columns) * tile.columns
    room = (
        scratch_numbers("rows", high),
        scratch_numbers("columns", wide),
        scratch_numbers("left", high * (chunk + _APART)),
        scratch_numbers("panel", min(wide, _TOGETHER * tile.columns) * (chunk + _APART)),
        scratch_numbers("tiles", high * wide if chunk < part.terms else tile.rows * tile.columns),
    )
    sizes = (
        part.rows[0],
        rows,
        part.columns[0],
        columns,
        part.terms,
        part.block,
        chunk,
        int(part.rows_of_bound is not None),
        int(part.columns_of_bound is not None),
    )
    return (part.left.memory, part.right.memory, part.left.how, part.right.how), sizes, room


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Place of a product: element [i, r, c] goes to memory[first + i * batch + r * row + columns[c]]."""

    memory: Words
    """Flat."""
    first: int
    row: int
    columns: I64
    batch: int = 0


def _given(numbers: F64 | None) -> F64:
    return np.empty(0) if numbers is None else numbers


def certify_part(lanes: int, part: Product, factor: float, out: OutputPlace, batches: int = 1) -> AmbiguousPart:
    """Sums of products, rounded and marked as `roundlog.kernels.marking.mark_flat` does it. The indices of what is
    marked are those in the output's memory, in no order. lanes: of a tile."""
    operands, sizes, scratch_memory = _prepared(lanes, part)
    (rows, columns), types = part.size, (0,) * lanes
    room, given = (
        max(64, batches * rows * columns // _GROWTH**2),
        tuple(map(_given, (part.rows_of_bound, part.columns_of_bound))),
    )
    while True:
        near = np.empty(room, dtype=np.int64), np.empty(room), np.empty(room)
        where = out.memory, out.first, out.row, out.columns, near, batches, out.batch
        count = _multiply_batches(types, operands, sizes, scratch_memory, given, part.gamma, factor, *where)
        if count <= room:
            indices, y, d = near
            if count == room:
                return AmbiguousPart(indices, y, d)
            return AmbiguousPart(indices[:count].copy(), y[:count].copy(), d[:count].copy())
        # Only where much is marked, as hostile data can make it. It was soon found out.
        room = min(max(count, _GROWTH * room), batches * rows * columns)


def sum_part(lanes: int, part: Product) -> tuple[F64, F64, F64]:
    """float64[rows, columns]: the sums themselves, and the sums of squares of both operands' lines, in memory of their
    own."""
    operands, sizes, scratch_memory = _prepared(lanes, part)
    (rows, columns), nowhere, nothing = part.size, np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)
    y, near = np.empty((rows, columns)), (nothing, np.empty(0), np.empty(0))
    where = nowhere, 0, 0, nothing, near, 0
    _multiply((0,) * lanes, operands, sizes, scratch_memory, y.reshape(-1), 0.0, 0.0, *where)
    row_energy, column_energy = scratch_memory[:2]
    return y, row_energy[:rows].copy(), column_energy[:columns].copy()
