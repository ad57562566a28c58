"""Products of BF16 matrices by FP32 vectors, to the bits, and with the marks, that `roundlog.kernels.gemm_tiles` gives.

Tiles are summed in FP32 (`roundlog.kernels.short_microkernel`, or `roundlog.kernels.pair_microkernel` where the
processor adds two products at once), with a bound. Most elements are decided by that. The others are summed one by one:
in FP32 two terms at a time and then in FP64, what that does not decide in FP64 in any order, and what even that does
not in the order of FP64 tiles: only this sum and its bound tell whether an element is marked. docs/numerics.md has the
proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.gemm_microkernel import TILES, tile_rows
from roundlog.kernels.marking import LARGEST, NONE, TWO_UNITS, ZERO, AmbiguousPart
from roundlog.kernels.number_words import Words, is_certain, number, round_number, short_word
from roundlog.kernels.pair_microkernel import PAIRS, ROWS, dot_pairs, products_at_once, sum_pair_tile
from roundlog.kernels.pair_microkernel import ROUNDINGS as ROUNDINGS_OF_PAIRS
from roundlog.kernels.scratch import scratch_numbers
from roundlog.kernels.short_microkernel import (
    BLOCK,
    BLOCKS,
    ROUNDINGS,
    TERMS,
    dot_short,
    left_width,
    lowest_bit,
    mark_short_row,
    short_columns,
    sum_short_block,
    width_of,
)
from roundlog.kernels.short_packing import ShortLines, pack_pairs, pack_short

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Range = tuple[int, int]

LEAST_TERMS, MOST_TERMS = 128, (4096, 8192)
"""Lengths of sums that are worth it: for shorter ones marking costs more than is saved, longer ones leave too much in
doubt. The second one is the longest where the processor adds two products at once."""
MOST_FACTOR = 2.0**12
"""Largest factor of bounds that the proof allows."""


def has_short_bounds(terms: int, factor: float) -> bool:
    """Whether bounds of products are taken from `ShortBounds`: on every processor the same, as marks and logs are."""
    return LEAST_TERMS <= terms <= max(MOST_TERMS) and factor <= MOST_FACTOR


def worth_it(terms: int, at_once: int) -> bool:
    """Whether such products are multiplied in FP32 first. at_once: products that the processor adds at once, 1 or 2."""
    return terms <= MOST_TERMS[at_once - 1]


def roundings_of(at_once: int) -> F64:
    """FP32 roundings of a term, by its place, where the processor adds so many products at once."""
    return ROUNDINGS_OF_PAIRS if at_once > 1 else ROUNDINGS


_CHUNK = 4 * TERMS
"""Terms of a strip of columns that are multiplied by a group of rows before the next ones: they stay close."""
_ROWS = 64
"""Rows whose elements in doubt are decided together, before their lines leave the cache: whole strips of rows."""
_VECTORS = 64
"""Vectors of lines that are multiplied for all elements in doubt before the next ones: they stay in the cache."""
_APART = 1
"""Terms more that a strip has room for, as in FP64 tiles."""
_SHARE = 8
"""If one of so many elements is in doubt after FP32 sums, FP64 tiles are faster."""
_FEW = 256
"""So many are never too many."""
_GROWTH = 8
"""Factor by which the room for marked elements grows once there were too many."""

UNIT = 2.0**-24
"""Unit roundoff of FP32."""
_ONE_ROUNDING = UNIT * (1.0 + 2.0**-20)
_LOST, _FLUSHED = 2.0**-119, 2.0**-110
"""Bounds for sums of pairs in FP32: by the norms, and for subnormal numbers taken as zeros, and made zeros."""
_LOOSE = 1.0 + 2.0**-8
"""Factor of FP32 bounds: for their own rounding, for second orders, and for what FP64 sums err by."""
_LEAST = 2.0**-126
_SUBNORMAL = 2.0**-95
"""Added to norms where the processor takes subnormal numbers as zeros: for what lines of 2^14 terms lose by it."""
_ABSOLUTE = (np.float32(2.0**-134), np.float32(2.0**-110))
"""Additions to bounds for products and sums that are too small for FP32, of at most 2^14 terms; the second one where
the processor makes zeros of subnormal results."""


@dataclass(frozen=True, slots=True)
class ShortBounds:
    """Factors of bounds, for lines of one operand of a batch of products, [B, lines]."""

    double: F64
    """Factors of bounds of FP64 sums."""
    single: F32
    """Factors of bounds of FP32 sums, normal numbers."""
    norms: F64

    @staticmethod
    def of(squares: F64, weighted: F64, gamma: float, unit: float, at_once: int) -> ShortBounds:
        """squares, weighted: float64[B, lines], the sums of squares, and those weighted by `roundings_of(at_once)`."""
        norms = np.sqrt(squares)
        # Infinite terms have bounds that are infinite or NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            more = _SUBNORMAL if at_once > 1 else 0.0
            single = ((np.sqrt(weighted) + more) * (unit * _LOOSE)).astype(np.float32)
            return ShortBounds(norms * gamma, np.maximum(single, np.float32(_LEAST)), norms)


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_tile(
    lanes: Any, left: int, right: int, singles: int, tile: int, begin: int, terms: int, of_left: int, of_right: int
) -> None:
    """Terms `begin` to `begin + terms` of a tile, addresses in bytes, of_left and of_right those of a term."""
    for start in range(0, terms, BLOCK):
        last = start + BLOCK >= terms
        sum_short_block(
            lanes,
            left + start * of_left,
            right + start * of_right,
            singles,
            tile,
            min(BLOCK, terms - start),
            start % TERMS > 0,
            last or start % TERMS == (BLOCKS - 1) * BLOCK,
            begin + start >= TERMS,
        )


@njit(cache=True, nogil=True, error_model="numpy")
def _steps_of(terms: int, at_once: int) -> int:
    """Places for a line's terms in a strip: for each term, or for each of whole groups of PAIRS pairs."""
    return terms if at_once == 1 else -(-terms // (2 * PAIRS)) * PAIRS


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_rows(
    lanes: Any, paired: Any, left: Any, row: int, end: int, room: int, panel: int, singles: int, tiles: int, steps: int
) -> None:
    """The sums of the products of rows `row` to `end` with a panel of columns, both of `steps` steps, strips of `room`:
    of terms, or of pairs."""
    height, wide, width = tile_rows(lanes), left_width(lanes), short_columns(lanes)
    pairs = products_at_once(paired) > 1
    if pairs:
        height = ROWS
    chunk = _CHUNK // products_at_once(paired)
    for begin in range(0, steps, chunk):
        some, of_right = min(chunk, steps - begin), panel + begin * width * 4
        for at in range(row, end, height):
            of_left = left.ctypes.data + (at // wide * wide * room + begin * wide + at % wide) * 4
            of_tile = tiles + (at - row) * width * 8
            if pairs:
                sum_pair_tile(lanes, paired, of_left, of_right, of_tile, some // PAIRS, begin > 0)
            else:
                _sum_tile(lanes, of_left, of_right, singles, of_tile, begin, some, wide * 4, width * 4)


@njit(cache=True, nogil=True, error_model="numpy")
def _pack(
    lanes: Any, paired: Any, x: Any, at: int, line: int, lines: int, terms: int, width: int, steps: int, strips: Any
) -> None:
    if products_at_once(paired) > 1:
        pack_pairs(lanes, x, at, line, lines, terms, width, steps, steps + _APART, strips.view(np.uint16))
    else:
        pack_short(lanes, x, at, line, lines, terms, width, steps + _APART, strips)


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_in_order(x: Any, y: Any, first: int, other: int, terms: int, block: int) -> float:
    """The sum of the products of two lines in the order of FP64 tiles."""
    total = 0.0
    for begin in range(0, terms, block):
        of_block = 0.0
        for t in range(begin, min(begin + block, terms)):
            of_block += np.float64(number(x[first + t])) * np.float64(number(y[other + t]))
        total += of_block
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _decide_by_pairs(
    lanes: Any,
    paired: Any,
    operands: Any,
    sizes: Any,
    bounds: Any,
    column: int,
    doubtful: Any,
    totals: Any,
    doubts: int,
    factor: float,
    out: Any,
    into: int,
    pitch: int,
) -> int:
    """Round the sums of the products of lines, doubtful: row and column, the first column being `column`, where FP32
    sums of two products tell how. Returns how many are left, and puts them first."""
    x, first_row, of_row, y, first_column, of_column = operands
    _, _, terms, _ = sizes
    doubles, _, norms, other_doubles, _, other_norms = bounds
    of_rows, of_columns = x.ctypes.data + 2 * first_row, y.ctypes.data + 2 * first_column
    step = 4 * len(lanes)
    vectors, done = terms // step, terms - terms % step
    # One loop after the other: what a processor guesses wrong in one does not hold up the other.
    totals[:doubts] = 0.0
    for begin in range(0, vectors, _VECTORS):
        some, on = min(_VECTORS, vectors - begin), begin * step * 2
        for i in range(doubts):
            row, c = doubtful[i] >> 32, column + (doubtful[i] & 0xFFFFFFFF)
            left, right = of_rows + row * of_row * 2 + on, of_columns + c * of_column * 2 + on
            totals[i] += dot_pairs(lanes, paired, left, right, some)
    rest = 0
    for i in range(doubts):
        row, c = doubtful[i] >> 32, column + (doubtful[i] & 0xFFFFFFFF)
        first, other, total = first_row + row * of_row, first_column + c * of_column, totals[i]
        for t in range(done, terms):
            total += np.float64(number(x[first + t]) * number(y[other + t]))
        norm, other_norm = norms[row], other_norms[c]
        reach = norm * other_norm * _ONE_ROUNDING + (norm + other_norm) * _LOST + _FLUSHED
        reach += doubles[row] * other_doubles[c] * (factor + 2.0) + abs(total) * (4.0 * TWO_UNITS)
        out[into + row * pitch + c] = short_word(round_number(total, out) + ZERO)
        doubtful[rest] = doubtful[i]
        rest += 1 - is_certain(total, reach)
    return rest


@njit(cache=True, nogil=True, error_model="numpy")
def _decide(
    lanes: Any,
    operands: Any,
    sizes: Any,
    bounds: Any,
    column: int,
    doubtful: Any,
    doubts: int,
    factor: float,
    out: Any,
    into: int,
    pitch: int,
    near: Any,
    count: int,
) -> int:
    """Round the sums of the products of lines, doubtful: row and column, the first column being `column`. Returns
    count, and one more for every sum that FP64 tiles would mark."""
    x, first_row, of_row, y, first_column, of_column = operands
    _, _, terms, block = sizes
    doubles, _, norms, other_doubles, _, other_norms = bounds
    indices, values, limits = near
    step = 4 * len(lanes)
    vectors = terms // step
    for i in range(doubts):
        row, c = doubtful[i] >> 32, column + (doubtful[i] & 0xFFFFFFFF)
        first, other, at = first_row + row * of_row, first_column + c * of_column, into + row * pitch + c
        total = 0.0
        if vectors:
            total = dot_short(lanes, x.ctypes.data + first * 2, y.ctypes.data + other * 2, vectors)
        for t in range(vectors * step, terms):
            total += np.float64(number(x[first + t]) * number(y[other + t]))
        d = doubles[row] * other_doubles[c]
        # Errors of that sum in any order, and of products that are too small for FP32.
        loose = norms[row] * other_norms[c] * (terms * 2.0**-52) + terms * 2.0**-149
        reach = d * (factor + 2.0) + loose + abs(total) * (4.0 * TWO_UNITS)
        low = round_number(total, out)
        if not is_certain(total, reach):
            total = _sum_in_order(x, y, first, other, terms, block)
            reach = d * factor + abs(total) * TWO_UNITS
            low, high = round_number(total - reach, out), round_number(total + reach, out)
            if low != high or not abs(low) <= LARGEST:
                if count < len(indices):
                    indices[count], values[count], limits[count] = at, total, d
                count += 1
        out[at] = short_word(low + ZERO)
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply(
    lanes: Any,
    paired: Any,
    operands: Any,
    sizes: Any,
    bounds: Any,
    room: Any,
    factor: float,
    out: Any,
    into: int,
    pitch: int,
    near: Any,
    count: int,
) -> int:
    """One product. Returns count, and one more for every element that is marked; what does not fit into `near` is only
    counted. Or -1 if too much is in doubt."""
    x, first_row, of_row, y, first_column, of_column = operands
    rows, columns, terms, _ = sizes
    _, singles, _, _, other_singles, _ = bounds
    left, panel, tile_singles, tiles, row_of_words, column_singles, doubtful = room
    wide, width, seen = left_width(lanes), short_columns(lanes), 0
    least = _ABSOLUTE[products_at_once(paired) - 1]
    steps = _steps_of(terms, products_at_once(paired))
    _pack(lanes, paired, x, first_row, of_row, rows, terms, wide, steps, left)
    for first in range(0, columns, width):
        across = min(width, columns - first)
        _pack(lanes, paired, y, first_column + first * of_column, of_column, across, terms, width, steps, panel)
        column_singles[:width] = np.float32(0.0)
        column_singles[:across] = other_singles[first : first + across]
        for group in range(0, rows, _ROWS):
            end = min(group + _ROWS, rows)
            of_panel, of_singles, of_tiles = panel.ctypes.data, tile_singles.ctypes.data, tiles.ctypes.data
            _sum_rows(lanes, paired, left, group, end, steps + _APART, of_panel, of_singles, of_tiles, steps)
            doubts = NONE
            for row in range(group, end):
                at = into + row * pitch + first
                target = out.ctypes.data + at * 2 if across == width else row_of_words.ctypes.data
                of_sums = tiles.ctypes.data + (row - group) * width * 8
                found = mark_short_row(lanes, of_sums, column_singles.ctypes.data, singles[row], least, out, target)
                if across < width:
                    for c in range(across):
                        out[at + c] = row_of_words[c]
                while found:
                    c = lowest_bit(found)
                    found &= found - 1
                    if c < across:
                        doubtful[doubts] = row << 32 | c
                        doubts += 1
            seen += doubts
            if seen > _FEW and seen * _SHARE > rows * first + end * across:
                return -1
            if terms >= 4 * len(lanes):
                doubts = _decide_by_pairs(
                    lanes, paired, operands, sizes, bounds, first, doubtful, tiles, doubts, factor, out, into, pitch
                )
            count = _decide(
                lanes, operands, sizes, bounds, first, doubtful, doubts, factor, out, into, pitch, near, count
            )
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply_batches(
    lanes: Any,
    paired: Any,
    operands: Any,
    sizes: Any,
    bounds: Any,
    room: Any,
    factor: float,
    out: Any,
    place: Any,
    near: Any,
    batches: Range,
) -> int:
    """One product after the other, until there are too many marked elements."""
    x, first_row, of_row, of_left, y, first_column, of_column, of_right = operands
    doubles, singles, norms, other_doubles, other_singles, other_norms = bounds
    into, pitch, step = place
    count = NONE
    for batch in range(batches[0], batches[1]):
        lines = x, first_row + batch * of_left, of_row, y, first_column + batch * of_right, of_column
        its = (
            doubles[batch],
            singles[batch],
            norms[batch],
            other_doubles[batch],
            other_singles[batch],
            other_norms[batch],
        )
        at = into + batch * step
        count = _multiply(lanes, paired, lines, sizes, its, room, factor, out, at, pitch, near, count)
        if count < 0 or count > len(near[0]):
            break
    return count


@dataclass(frozen=True, slots=True)
class ShortProduct:
    """A part of a batch of products: some rows of the left operand, and some columns of the right one."""

    left: ShortLines
    right: ShortLines
    batches: Range
    rows: Range
    columns: Range
    terms: int
    """1 to 2^14: as many as the bounds hold for."""
    block: int
    """Terms of a block of FP64 tiles."""
    of_rows: ShortBounds
    of_columns: ShortBounds


def certify_short(
    lanes: int, at_once: int, part: ShortProduct, factor: float, out: Words, rows: int, columns: int
) -> AmbiguousPart | None:
    """A part of products [B, rows, columns], rounded to out, flat; and what is marked, as
    `roundlog.kernels.gemm_tiles.certify_part` gives it. None, with nothing of use in `out`, if those are faster."""
    tile, (first_row, end_row), (first_column, end_column) = TILES[lanes], part.rows, part.columns
    high, many = end_row - first_row, end_column - first_column
    wide, width = max(tile.rows, width_of(lanes)), tile.vectors * width_of(lanes)
    tall = -(-high // wide) * wide
    steps = _steps_of(part.terms, at_once)
    room = (
        scratch_numbers("left", -(-tall * (steps + _APART) // 2)).view(np.float32),
        scratch_numbers("panel", -(-width * (steps + _APART) // 2)).view(np.float32),
        scratch_numbers("singles", tile.rows * width // 2).view(np.float32),
        scratch_numbers("tiles", _ROWS * width),
        np.empty(width, dtype=np.uint16),
        scratch_numbers("columns", width // 2).view(np.float32),
        scratch_numbers("doubtful", _ROWS * width).view(np.int64),
    )
    left, right = part.left, part.right
    operands = (
        *(left.words, left.first + first_row * left.line, left.line, left.batch),
        *(right.words, right.first + first_column * right.line, right.line, right.batch),
    )
    bounds = tuple(
        one[:, slice(*lines)]
        for of, lines in ((part.of_rows, part.rows), (part.of_columns, part.columns))
        for one in (of.double, of.single, of.norms)
    )
    sizes = high, many, part.terms, part.block
    place = first_row * columns + first_column, columns, rows * columns
    found = max(64, (part.batches[1] - part.batches[0]) * high * many // _GROWTH**2)
    while True:
        near = np.empty(found, dtype=np.int64), np.empty(found), np.empty(found)
        types = (0,) * lanes, (0,) * at_once
        count = _multiply_batches(*types, operands, sizes, bounds, room, factor, out, place, near, part.batches)
        if count < 0:
            return None
        if count <= found:
            indices, y, d = near
            return AmbiguousPart(indices[:count].copy(), y[:count].copy(), d[:count].copy())
        found = count if count > _GROWTH * found else _GROWTH * found
