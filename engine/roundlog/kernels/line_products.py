"""Products of a few rows with a matrix that is read once, where it lies: nothing of it is packed. Where a model reads
one token, or one for each of a few texts, the memory of its weights binds, and FP64 arithmetic hides behind it.

Sums, bounds and marks are those of `roundlog.kernels.gemm_tiles`, but for the order of additions within a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.np.numpy_support import carray

from roundlog.kernels.gemm_microkernel import TILES, tile_columns
from roundlog.kernels.gemm_tiles import mark_tile
from roundlog.kernels.line_microkernel import (
    TERMS,
    TOGETHER,
    add_line,
    add_row,
    add_rows,
    terms_at_once,
    vectors_at_once,
)
from roundlog.kernels.marking import NONE, AmbiguousPart
from roundlog.kernels.number_words import Words, instructions, number
from roundlog.kernels.scratch import scratch_numbers
from roundlog.kernels.threads import in_parts

FEW = 8
"""Most rows of the left operand. With more of them, packing pays."""

_TILES = 8
"""Tiles of columns whose sums are kept together."""

_PLACES = 64
"""Places for marked elements, at first."""

_GROUPS = {rows: (0,) * rows for rows in (1, TOGETHER)}
_SHORT, _SINGLE = np.empty(0, dtype=np.uint16), np.empty(0, dtype=np.float32)


@instructions(types.voidptr)
def _pointer_to(builder: Any, address: Any) -> Any:
    """An integer as a pointer: loops are compiled once for an array's type, wherever its memory begins."""
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_terms(
    group: Any,
    b: Any,
    at: int,
    term: int,
    begin: int,
    end: int,
    left: Any,
    of_left: int,
    pitch: int,
    sums: Any,
    wide: int,
    c: int,
) -> None:
    """Adds the sums of terms `begin` to `end` of column c, which begins at `at`, one after the other."""
    for k in range(begin, end):
        w = np.float64(number(b[at + k * term]))
        for r in range(len(group)):
            sums[r * wide + c] += left[of_left + r * pitch + k] * w
        sums[len(group) * wide + c] += w * w


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_lines(
    lanes: Any,
    group: Any,
    b: Any,
    first: int,
    line: int,
    columns: int,
    block: Any,
    left: Any,
    of_left: int,
    pitch: int,
    sums: Any,
    wide: int,
) -> None:
    """Adds the sums of a block of terms, begin and end of it, of columns whose terms lie side by side."""
    begin, end = block
    at_once = terms_at_once(lanes, group)
    steps = (end - begin) // at_once
    rest = begin + steps * at_once
    for c in range(columns):
        at = first + c * line
        if steps:
            address = b.ctypes.data + (at + begin) * b.itemsize
            source = left.ctypes.data + (of_left + begin) * 8
            add_line(lanes, group, b, source, pitch * 8, address, steps, sums.ctypes.data + c * 8, wide * 8)
        _sum_terms(group, b, at, NONE + 1, rest, end, left, of_left, pitch, sums, wide, c)


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_rows(
    lanes: Any,
    group: Any,
    b: Any,
    first: int,
    term: int,
    columns: int,
    block: Any,
    left: Any,
    of_left: int,
    pitch: int,
    sums: Any,
    wide: int,
) -> None:
    """Adds the sums of a block of terms, begin and end of it, of columns that lie side by side."""
    begin, end = block
    vectors = columns // len(lanes)
    whole = vectors * len(lanes)
    for k in range(begin, end if vectors else begin, TERMS):
        some = min(TERMS, end - k)
        for i in range(0, some, TERMS if some == TERMS else 1):
            address = b.ctypes.data + (first + (k + i) * term) * b.itemsize
            source = left.ctypes.data + (of_left + k + i) * 8
            how = source, pitch * 8, address, term * b.itemsize, vectors, sums.ctypes.data, wide * 8
            if some == TERMS:
                add_rows(lanes, group, b, *how)
            else:
                add_row(lanes, group, b, *how)
    for c in range(whole, columns):
        _sum_terms(group, b, first + c, term, begin, end, left, of_left, pitch, sums, wide, c)


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply(
    lanes: Any,
    group: Any,
    kind: Any,
    of_a: Any,
    of_b: Any,
    sizes: Any,
    gamma: float,
    factor: float,
    out: Any,
    indices: Any,
    values: Any,
    bounds: Any,
    room: Any,
    start: int,
    stop: int,
) -> int:
    """Parts `start` to `stop`: of every product, so many columns at a time. kind: an array with the type of the
    operands' memory; of_a, of_b: its address, and the distances between lines, terms and products. Returns how many
    elements are marked; stops once there are too many."""
    address_a, row_a, term_a, batch_a = of_a
    address_b, line_b, term_b, batch_b = of_b
    rows, columns, terms, span, wide, batches = sizes
    lines_a = (batches - 1) * batch_a + (rows - 1) * row_a
    lines_b = (batches - 1) * batch_b + (columns - 1) * line_b
    a = carray(_pointer_to(address_a), lines_a + (terms - 1) * term_a + 1, kind.dtype)
    b = carray(_pointer_to(address_b), lines_b + (terms - 1) * term_b + 1, kind.dtype)
    high, tile, parts = -(-rows // len(group)) * len(group), tile_columns(lanes), -(-columns // wide)
    size = (len(group) + 1) * wide
    # Whole tiles, so that each begins where a vector may.
    totals, sums = room[:size], room[size : 2 * size]
    norms, row_norms = room[2 * size : 2 * size + wide], room[2 * size + wide : 2 * size + wide + FEW]
    left = room[2 * size + wide + FEW :]
    rounded, places = np.empty(tile, out.dtype), np.arange(wide)
    count, of_batch, near = NONE, -1, (indices, values, bounds)
    for part in range(start, stop):
        batch, column = part // parts, part % parts * wide
        width = min(wide, columns - column)
        if batch != of_batch:
            of_batch = batch
            left[rows * terms : high * terms] = 0.0
            for r in range(rows):
                squares, at = 0.0, batch * batch_a + r * row_a
                for k in range(terms):
                    v = np.float64(number(a[at + k * term_a]))
                    left[r * terms + k] = v
                    squares += v * v
                row_norms[r] = np.sqrt(squares) * gamma
        first = batch * batch_b + column * line_b
        for row in range(0, rows, len(group)):
            totals[:] = 0.0
            for begin in range(0, terms, span):
                some = begin, min(begin + span, terms)
                sums[:] = 0.0
                if term_b == 1:
                    _sum_lines(lanes, group, b, first, line_b, width, some, left, row * terms, terms, sums, wide)
                else:
                    _sum_rows(lanes, group, b, first, term_b, width, some, left, row * terms, terms, sums, wide)
                for i in range(size):
                    totals[i] += sums[i]
            if row == 0:
                for c in range(wide):
                    norms[c] = np.sqrt(totals[len(group) * wide + c])
            into = batch * rows * columns + column
            for r in range(min(len(group), rows - row)):
                for c in range(0, width, tile):
                    inside = min(tile, width - c)
                    count = mark_tile(
                        lanes,
                        totals,
                        r * wide + c,
                        NONE + 1,
                        inside,
                        row_norms,
                        row + r,
                        norms,
                        c,
                        rounded,
                        factor,
                        out,
                        into,
                        columns,
                        places,
                        inside == tile,
                        near,
                        count,
                    )
        if count > len(indices):
            break
    return count


def takes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a product of f32 or bf16[B, M, K] and [B, K, N] is for `certify_lines`."""
    return a.shape[1] <= FEW and (b.stride(1) == 1 or b.stride(2) == 1)


def span_of(block: int, lanes: int, rows: int) -> int:
    """Terms of a line that are added up at once, if their places in a step have sums of their own: a term goes through
    an addition for every step, one for every halving of the places, and those of the rest of less than a step."""
    return max(block, block // 2 * lanes * vectors_at_once(rows))


def certify_lines(
    lanes: int, a: torch.Tensor, b: torch.Tensor, block: int, gamma: float, factor: float, out: Words
) -> list[AmbiguousPart]:
    """Writes the products of f32 or bf16[B, M, K] and [B, K, N], of which it `takes`, K > 0, to out, row-major, rounded
    and marked as `roundlog.kernels.marking.mark_flat` does it. lanes: of a tile. block: no term goes through more
    additions than if so many were added up one after the other, and then the sums of such blocks. gamma: bounds are
    this, times the norm of the row, times that of the column."""
    (batches, rows, terms), columns = a.shape, b.shape[2]
    tile = TILES[lanes].columns
    wide = min(_TILES * tile, -(-columns // tile) * tile)
    group = _GROUPS[1 if rows <= 2 else TOGETHER]
    high = -(-rows // len(group)) * len(group)
    batch_a, row_a, term_a = a.stride()
    batch_b, term_b, line_b = b.stride()
    of_a, of_b = (a.data_ptr(), row_a, term_a, batch_a), (b.data_ptr(), line_b, term_b, batch_b)
    span = span_of(block, lanes, len(group)) if term_b == 1 else block
    sizes, found = (rows, columns, terms, span, wide, batches), list[AmbiguousPart]()
    outputs = batches * rows * columns
    kind = _SHORT if a.dtype == torch.bfloat16 else _SINGLE

    def some(start: int, stop: int) -> None:
        room = scratch_numbers("lines", (2 * len(group) + 3) * wide + FEW + high * terms)
        places = _PLACES
        while True:
            indices, y, d = near = np.empty(places, dtype=np.int64), np.empty(places), np.empty(places)
            count = _multiply(
                (0,) * lanes, group, kind, of_a, of_b, sizes, gamma, factor, out, *near, room, start, stop
            )
            if count <= places:
                if count:
                    found.append(AmbiguousPart(indices[:count], y[:count], d[:count]))
                return
            # Only where much is marked, as hostile data can make it.
            places = min(8 * count, outputs)

    in_parts(some, batches * -(-columns // wide), outputs * terms // 16)
    return found
