"""Sums of FP32 numbers in FP64, together with the sum of their magnitudes or squares, in one read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.marking import NONE, AmbiguousPart, mark_block, nothing_marked
from roundlog.kernels.number_words import of_word
from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

_ANY_ORDER = {"reassoc", "contract"}
"""Along a row, numbers may be added in any order, squares with FMA or without: bounds allow for it, and one running sum
would be no vector instruction. Nothing else is computed in these loops."""

_BLOCK = 256
"""`roundlog.operators.summation.BLOCK_TERMS`."""

_COLUMNS = 512
"""Columns whose running sums stay in the cache."""

_PART = 128
"""Columns that threads are given at least."""

_SHARE = 4
"""Four elements take as long as one of what threads are worth handing out for."""


NO_TERM = 0xFFFFFFFF
"""The least magnitude of no terms but zeros."""


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_ANY_ORDER)
def _add_block(x: Any, words: Any, sums: Any, signs: Any) -> None:
    """Some terms of a block: to sums their sum and that of their magnitudes, to signs what `Sums` has of their bits."""
    s, m = 0.0, 0.0
    for i in range(len(x)):
        v = np.float64(x[i])
        s += v
        m += abs(v)
    sums[0] += s
    sums[1] += m
    least, places = signs[0], signs[1]
    for i in range(len(words)):
        # A zero comes last.
        least = min(least, np.uint32((words[i] & np.uint32(0x7FFFFFFF)) - np.uint32(1)))
        places |= words[i]
    signs[0], signs[1] = least, places


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_runs(
    x: Any, words: Any, runs: int, lines: int, length: int, total: Any, magnitude: Any, bits: Any, start: int, stop: int
) -> None:
    """x, words: [runs * lines * length]. A block of terms ends where it is full, wherever runs end."""
    sums, signs = np.empty(2), np.empty(2, np.uint32)
    gathered = np.empty(_BLOCK, np.float32)
    gathered_words = gathered.view(np.uint32)
    terms = runs * length
    # A loop over a few terms would take longer than copying them.
    short = runs > 1 and length < _BLOCK
    for line in range(start, stop):
        signs[0], signs[1] = NO_TERM, 0
        s, m = 0.0, 0.0
        run, at = line * length, 0
        for large in range(0, terms, _BLOCK * _BLOCK):
            of_blocks, of_magnitudes = 0.0, 0.0
            for first in range(large, min(large + _BLOCK * _BLOCK, terms), _BLOCK):
                sums[0] = sums[1] = 0.0
                size, done = min(_BLOCK, terms - first), 0
                while done < size:
                    some = min(size - done, length - at)
                    piece = x[run + at : run + at + some]
                    if short:
                        into = gathered[done : done + some]
                        for i in range(some):
                            into[i] = piece[i]
                    else:
                        _add_block(piece, words[run + at : run + at + some], sums, signs)
                    done, at = done + some, at + some
                    if at == length:
                        run, at = run + lines * length, 0
                if short:
                    _add_block(gathered[:size], gathered_words[:size], sums, signs)
                of_blocks += sums[0]
                of_magnitudes += sums[1]
            s += of_blocks
            m += of_magnitudes
        total[line], magnitude[line] = s, m
        bits[0, line], bits[1, line] = signs[0], signs[1]


@njit(cache=True, nogil=True, error_model="numpy")
def _add_rows(
    x: Any, words: Any, outer: int, begin: int, end: int, first: int, last: int, sums: Any, bits: Any
) -> None:
    """Rows begin to end of columns first to last: sums, of magnitudes too, and bits."""
    s, m, least, places = sums[0], sums[1], bits[0], bits[1]
    width = last - first
    s[:width] = 0.0
    m[:width] = 0.0
    whole = end - (end - begin) % 4
    # Four rows at a time: reading and writing the running sums would take longer than all else.
    for r in range(begin, whole, 4):
        a, b = x[outer, r, first:last], x[outer, r + 1, first:last]
        c, d = x[outer, r + 2, first:last], x[outer, r + 3, first:last]
        for i in range(width):
            p, q, v, w = np.float64(a[i]), np.float64(b[i]), np.float64(c[i]), np.float64(d[i])
            s[i] += (p + q) + (v + w)
            m[i] += (abs(p) + abs(q)) + (abs(v) + abs(w))
    for r in range(whole, end):
        a = x[outer, r, first:last]
        for i in range(width):
            p = np.float64(a[i])
            s[i] += p
            m[i] += abs(p)
    for r in range(begin, end):
        e = words[outer, r, first:last]
        for i in range(width):
            least[i] = min(least[i], np.uint32((e[i] & np.uint32(0x7FFFFFFF)) - np.uint32(1)))
            places[i] |= e[i]


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_columns(
    x: Any, words: Any, total: Any, magnitude: Any, bits: Any, left: int, right: int, start: int, stop: int
) -> None:
    rows = x.shape[1]
    block, blocks = np.empty((2, _COLUMNS)), np.empty((2, _COLUMNS))
    found = np.empty((2, _COLUMNS), np.uint32)
    for outer in range(start, stop):
        for first in range(left, right, _COLUMNS):
            last = min(first + _COLUMNS, right)
            width = last - first
            found[0], found[1] = NO_TERM, 0
            for large in range(0, rows, _BLOCK * _BLOCK):
                blocks[:] = 0.0
                for begin in range(large, min(large + _BLOCK * _BLOCK, rows), _BLOCK):
                    _add_rows(x, words, outer, begin, min(begin + _BLOCK, rows), first, last, block, found)
                    blocks += block
                total[outer, first:last] += blocks[0, :width]
                magnitude[outer, first:last] += blocks[1, :width]
            bits[0, outer, first:last] = found[0, :width]
            bits[1, outer, first:last] = found[1, :width]


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of FP32 numbers, many of them, and what their bounds need. Terms are added up in blocks of 256 in any order,
    blocks likewise, and what becomes of 256 blocks one after the other (`roundlog.operators.summation.sum_depth`)."""

    total: F64
    magnitude: F64
    """The sums of magnitudes."""
    bits: U32
    """[2, ...]: the least magnitude of terms that are not zero, as bits, less one, NO_TERM if there is none; and all
    terms' bits, or-ed."""


def sum_runs(x: F32) -> Sums:
    """x: float32[A, R, B], contiguous -> [R] sums over A and B."""
    runs, lines, length = x.shape
    total, magnitude = np.zeros(lines), np.zeros(lines)
    bits = np.empty((2, lines), np.uint32)
    flat = x.reshape(-1)
    words = flat.view(np.uint32)
    in_parts(
        lambda start, stop: _sum_runs(flat, words, runs, lines, length, total, magnitude, bits, start, stop),
        lines,
        x.size // _SHARE,
    )
    return Sums(total, magnitude, bits)


def sum_columns(x: F32) -> Sums:
    """x: float32[A, K, B] -> [A, B] sums over K."""
    total, magnitude = np.zeros((len(x), x.shape[2])), np.zeros((len(x), x.shape[2]))
    bits = np.empty((2, len(x), x.shape[2]), np.uint32)
    words = x.view(np.uint32)

    def over(left: int, right: int, start: int, stop: int) -> None:
        _sum_columns(x, words, total, magnitude, bits, left, right, start, stop)

    # Loops are given whole arrays: columns cut out of one would be taken for numbers that lie anywhere.
    columns, work = x.shape[2], x.size // _SHARE
    if len(x) == 1:
        in_parts(lambda a, b: over(a * _PART, min(b * _PART, columns), 0, 1), -(-columns // _PART), work)
    else:
        in_parts(lambda a, b: over(0, columns, a, b), len(x), work)
    return Sums(total, magnitude, bits)


@njit(inline="always")
def _bound(magnitude: float, least: Any, finest: Any, gamma: float) -> Any:
    """`bound_sums` of one."""
    exponent = max((least + 1) >> 23, 1)
    # 2^53 times the last place that any term has: exponent - 150 is that of a significand of 24 bits.
    exact = magnitude < of_word((exponent - 150 + 53 + 1023) << 52) * np.float64(finest)
    return 0.0 if exact | (least == NO_TERM) else magnitude * gamma


@njit(cache=True, nogil=True, error_model="numpy")
def _bound_sums(magnitude: Any, least: Any, finest: Any, gamma: float, d: Any) -> None:
    for i in range(len(d)):
        d[i] = _bound(magnitude[i], least[i], finest[i], gamma)


def bound_sums(magnitude: F64, least: I64, finest: I64, gamma: float) -> F64:
    """float64[n], all flat: 0 where every partial sum is exact, else magnitude * gamma. least: as `Sums` has it;
    finest: the last place that a significand uses, 1 to 2^23, of any term.

    All terms are multiples of u = finest * 2^(e - 150), e the least exponent. If the sum of magnitudes is below 2^53 u,
    so is every partial sum in any order, and a multiple of u, and therefore an FP64 number. That the FP64 sum of
    magnitudes is below says the same of the exact one: rounded sums of numbers that are not negative never fall."""
    d = np.empty(len(magnitude))
    _bound_sums(magnitude, least, finest, gamma, d)
    return d


@njit(cache=True, nogil=True, error_model="numpy")
def _mark_sums(
    total: Any, magnitude: Any, bits: Any, gamma: float, factor: float, out: Any, start: int, stop: int
) -> Any:
    """Indices, values and bounds of the marked sums."""
    least, places = bits[0], bits[1]
    d, near, n = np.empty(_COLUMNS), nothing_marked(), NONE
    for first in range(start, stop, _COLUMNS):
        size = min(_COLUMNS, stop - first)
        for i in range(size):
            # The last place that a significand with this fraction uses, 1 to 2^23.
            fraction = np.int32((places[first + i] & 0x7FFFFF) | 0x800000)
            d[i] = _bound(magnitude[first + i], np.int64(least[first + i]), fraction & -fraction, gamma)
        near, n = mark_block(total[first : first + size], d, size, factor, out, first, near, n)
    return near[0][:n], near[1][:n], near[2][:n]


def mark_sums(sums: Sums, gamma: float, factor: float, out: F32) -> list[AmbiguousPart]:
    """Bounds sums as `bound_sums` does, rounds them to out (float32[n], n of them, in order), and marks them as
    `roundlog.kernels.marking` does. Part by part, in any order."""
    total, magnitude, bits = sums.total.reshape(-1), sums.magnitude.reshape(-1), sums.bits.reshape(2, -1)
    found: list[AmbiguousPart] = []
    in_parts(
        lambda start, stop: found.append(
            AmbiguousPart(*_mark_sums(total, magnitude, bits, gamma, factor, out, start, stop))
        ),
        len(total),
        4 * len(total),
    )
    return found


_CHECKED = 1 << 14


@njit(cache=True, nogil=True, error_model="numpy")
def _largest(words: Any, largest: Any, start: int, stop: int) -> None:
    for block in range(start, stop):
        found = np.int32(0)
        for i in range(block * _CHECKED, min((block + 1) * _CHECKED, len(words))):
            found = max(found, words[i] & np.int32(0x7FFFFFFF))
        largest[block] = found


def all_finite(x: F32) -> bool:
    """x: float32[n], contiguous. Whether no element is NaN or infinite: as integers, magnitudes compare like the
    numbers, and infinities and NaN come last."""
    words = x.view(np.int32)
    largest = np.zeros(-(-len(x) // _CHECKED), dtype=np.int32)
    in_parts(lambda start, stop: _largest(words, largest, start, stop), len(largest), len(x))
    return not len(largest) or bool(largest.max() < 0x7F800000)
