"""Exact sums of products of FP32 numbers, by superaccumulators (`roundlog.kernels.superaccumulator`).

Products are not added to limbs one by one: a product of two significands goes to one of 128 *buckets* by the sum of the
two exponents, and buckets go to the limbs every 512 terms. Numbers are taken apart once for all sums that share them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.buckets import BUCKETS, LANES, fold, scatter
from roundlog.kernels.superaccumulator import (
    LIMBS,
    MASK,
    NOTE,
    new_sums,
    note_of,
    round_one,
)
from roundlog.kernels.threads import in_parts, threads_for
from roundlog.number_format import FLOAT32, Format

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

_TERMS = 512
"""Products that a bucket has room for: they are below 2^54."""
_SLOTS = 512
"""Runs that are in memory at once: 2 MiB, which the second level of the cache holds."""
_TILE = 64
"""Runs of a that are combined with many of b."""
_LINE = 8
"""Numbers in a line of the cache."""
_SUMS = 1 << 11
"""Most sums of a block, whose limbs stay in the cache, too."""

_PADDING, _INF, _MINUS_INF, _NAN = 64 * LANES, 65 * LANES, 66 * LANES, 67 * LANES
"""Codes of padding, infinities and NaN, whose factor is 0."""
_ROOM = BUCKETS + 8
"""Buckets that there is memory for: the last ones take products with such factors, which are 0."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of FP32 numbers that lie in memory in the same manner. Number [t0, t1, t2] of a run, in row-major order, is
    at first + t0 * step + row * pitch + column * apart of `memory`, where row = (y + t1 * dy) / qy and column =
    (x + t2 * dx) / qx; where a quotient is no integer or not in [0, height) or [0, width), there is no number."""

    memory: F32
    origins: I64
    """int64[runs, 3]: (first, y, x) of every run."""
    layout: tuple[int, int, int, int, int, int, int, int, int, int, int, int]
    """(count of t0, step, count of t1, dy, qy, height, pitch, count of t2, dx, qx, width, apart)."""

    @property
    def terms(self) -> int:
        """Numbers of a run, those that do not exist included."""
        return self.layout[0] * self.layout[2] * self.layout[7]

    def places(self, chosen: I64) -> I64:
        """int64[n, terms]: where the numbers of the chosen runs lie in `memory`; -1 where there is no number."""
        size0, step, size1, dy, qy, height, pitch, size2, dx, qx, width, apart = self.layout
        first, y, x = (self.origins[chosen, i, None, None, None] for i in range(3))
        row, below = np.divmod(y + np.arange(size1)[:, None] * dy, qy)
        column, beside = np.divmod(x + np.arange(size2) * dx, qx)
        there = (below == 0) & (row >= 0) & (row < height) & (beside == 0) & (column >= 0) & (column < width)
        found = first + np.arange(size0)[:, None, None] * step + row * pitch + column * apart
        places: I64 = np.where(there, found, -1).reshape(len(chosen), self.terms)
        return places

    @staticmethod
    def strided(memory: F32, first: I64, terms: int, step: int) -> Runs:
        """Runs of numbers that are `step` apart."""
        origins = np.zeros((len(first), 3), np.int64)
        origins[:, 0] = first
        return Runs(memory, origins, (1, 0, 1, 0, 1, 1, 0, terms, 1, 1, max(terms, 1), step))


@njit(cache=True, nogil=True, error_model="numpy")
def _number(ids: Any, places: Any, found: Any, place: Any) -> int:
    """places: int64[count], zeros."""
    for i in range(len(ids)):
        places[ids[i]] = 1
    count = 0
    for number in range(len(places)):
        if places[number]:
            places[number] = count
            found[count] = number
            count += 1
    for i in range(len(ids)):
        place[i] = places[ids[i]]
    return count


def numbered(ids: I64, count: int) -> tuple[I64, I64]:
    """ids: int64[n], numbers below `count`. Returns those that occur, and for every one where it is among them. Where
    few do, an id may occur several times: to find that out would take longer."""
    if count > 4 * len(ids):
        return ids, np.arange(len(ids))
    found, place = np.empty(min(count, len(ids)), np.int64), np.empty(len(ids), np.int64)
    occurring = _number(np.ascontiguousarray(ids), np.zeros(count, np.int64), found, place)
    return found[:occurring], place


@njit(inline="always")
def _take_apart(bits: Any, words: Any, t: int) -> None:
    """A finite FP32 number as a factor, its significand with the sign, shifted by 0 to 3 bits, and a code, which says
    by how many times 4 bits more: a product's bucket is the sum of two codes, and no more than that has to be computed
    for it."""
    exponent = (bits >> 23) & 0xFF
    normal = 1 if exponent > 0 else 0
    exponent -= normal
    magnitude = ((bits & 0x7FFFFF) | (normal << 23)) << (exponent & 3)
    words[2 * t] = -magnitude if bits & 0x80000000 else magnitude
    words[2 * t + 1] = (exponent >> 2) * LANES


@njit(cache=True, nogil=True, error_model="numpy")
def _read(memory: Any, origin: Any, layout: Any, begin: int, end: int, words: Any) -> bool:
    """Numbers begin to end of a run as factors and codes. Whether they are all finite."""
    _, step, rows, dy, qy, height, pitch, columns, dx, qx, width, apart = layout
    largest = np.int64(0)
    t = begin
    while t < end:
        line, t2 = t // columns, t % columns
        t0, t1 = line // rows, line % rows
        stop = min(end, (line + 1) * columns)
        y = origin[1] + t1 * dy
        row = y // qy
        there = row * qy == y and 0 <= row < height
        first = origin[0] + t0 * step + row * pitch
        x = origin[2] + t2 * dx
        if there and qx == 1 and dx == 1 and x >= 0 and x + (stop - t) <= width:
            at = first + x * apart
            for i in range(stop - t):
                bits = np.int64(memory[at + i * apart])
                largest = max(largest, bits & 0x7FFFFFFF)
                _take_apart(bits, words, t - begin + i)
        else:
            for i in range(stop - t):
                column = (x + i * dx) // qx
                if there and column * qx == x + i * dx and 0 <= column < width:
                    bits = np.int64(memory[first + column * apart])
                    largest = max(largest, bits & 0x7FFFFFFF)
                    _take_apart(bits, words, t - begin + i)
                else:
                    words[2 * (t - begin + i)] = 0
                    words[2 * (t - begin + i) + 1] = _PADDING
        t = stop
    if largest < 0x7F800000:
        return True
    for t in range(begin, end):
        line, t2 = t // columns, t % columns
        row = (origin[1] + line % rows * dy) // qy
        column = (origin[2] + t2 * dx) // qx
        if words[2 * (t - begin) + 1] != _PADDING:
            bits = np.int64(memory[origin[0] + line // rows * step + row * pitch + column * apart])
            if bits & 0x7F800000 == 0x7F800000:
                words[2 * (t - begin)] = 0
                words[2 * (t - begin) + 1] = _special(bits)
    return False


@njit(inline="always")
def _special(bits: Any) -> Any:
    """The code of what is not finite."""
    if bits & 0x7FFFFF:
        return _NAN
    return _MINUS_INF if bits & 0x80000000 else _INF


@njit(cache=True, nogil=True, error_model="numpy")
def _add_lane(digits: Any, lane: int, sums: Any) -> None:
    """Add one of the sums that `fold` has made."""
    carry = np.int64(0)
    for limb in range(LIMBS):
        v = sums[limb] + digits[limb * LANES + lane] + carry
        sums[limb] = v if limb == LIMBS - 1 else v & MASK
        carry = v >> 32


@njit(cache=True, nogil=True, error_model="numpy")
def _value(factor: int, code: int) -> float:
    """Number that stands for a factor: its products have the same sign, and are infinite or NaN in the same cases."""
    if code == _NAN:
        return np.nan
    if code == _INF:
        return np.inf
    if code == _MINUS_INF:
        return -np.inf
    return np.float64(factor)


@njit(cache=True, nogil=True, error_model="numpy")
def _note_products(a: Any, b: Any, count: int) -> int:
    note = 0
    for k in range(count):
        of_a, of_b = a[2 * k + 1], b[2 * k + 1]
        if of_a != _PADDING and of_b != _PADDING and (of_a > _PADDING or of_b > _PADDING):
            note |= note_of(_value(a[2 * k], of_a) * _value(b[2 * k], of_b))
    return note


@njit(cache=True, nogil=True, error_model="numpy")
def _cut(of_a: Any, of_b: Any, most: int, slot_a: Any, slot_b: Any, cuts: Any) -> int:
    """Begins of blocks of sums: a block has at most so many sums, and at most _SLOTS runs of a and of b each."""
    count = taken_a = taken_b = 0
    for r in range(len(of_a)):
        a, b = of_a[r], of_b[r]
        known_a, known_b = slot_a[a] == count, slot_b[b] == count
        full = (not known_a and taken_a == _SLOTS) or (not known_b and taken_b == _SLOTS)
        if r == 0 or full or r - cuts[count - 1] == most:
            cuts[count] = r
            count += 1
            taken_a = taken_b = 0
            known_a = known_b = False
        if not known_a:
            slot_a[a] = count
            taken_a += 1
        if not known_b:
            slot_b[b] = count
            taken_b += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _add_blocks(
    memory_a: Any,
    origins_a: Any,
    layout_a: Any,
    memory_b: Any,
    origins_b: Any,
    layout_b: Any,
    terms: int,
    order: Any,
    of_a: Any,
    of_b: Any,
    cuts: Any,
    sums: Any,
    rule: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    """Adds to `sums` or, if there are none, rounds what becomes of zeros to `out`."""
    longest = 0
    for block in range(start, stop):
        longest = max(longest, cuts[block + 1] - cuts[block])
    own = np.zeros((0 if len(sums) else longest, LIMBS + 1), np.int64)
    digits, room, spare = np.empty(LIMBS * LANES, np.int64), np.empty((4, LANES), np.int64), np.empty(1)
    words = spare.view(np.int64)
    # From one run to the next there is an odd number of lines, so that all sets of the cache are used.
    pitch = (-(-min(terms, _TERMS) // _LINE) | 1) * _LINE * 2
    words_a = np.empty((min(len(origins_a), _SLOTS), pitch), np.int32)
    words_b = np.empty((min(len(origins_b), _SLOTS), pitch), np.int32)
    flat_a, flat_b = words_a.reshape(-1), words_b.reshape(-1)
    finite_a, finite_b = np.empty(_SLOTS, np.bool_), np.empty(_SLOTS, np.bool_)
    slot_a, slot_b = np.full(len(origins_a), -1, np.int64), np.full(len(origins_b), -1, np.int64)
    buckets = np.zeros(_ROOM * LANES, np.int64)
    # As many as whole groups have: what the last ones, of no sum, are from before is added up and forgotten.
    lane_a, lane_b = np.zeros(longest + LANES, np.int32), np.zeros(longest + LANES, np.int32)
    for block in range(start, stop):
        first, last = cuts[block], cuts[block + 1]
        own[:] = 0
        for begin in range(0, terms, _TERMS):
            end = min(begin + _TERMS, terms)
            count = end - begin
            taken_a = taken_b = 0
            finite = True
            for r in range(first, last):
                a, b = np.uint64(of_a[r]), np.uint64(of_b[r])
                if slot_a[a] < 0:
                    slot_a[a] = taken_a
                    finite_a[taken_a] = _read(memory_a, origins_a[a], layout_a, begin, end, words_a[taken_a])
                    finite &= finite_a[taken_a]
                    taken_a += 1
                if slot_b[b] < 0:
                    slot_b[b] = taken_b
                    finite_b[taken_b] = _read(memory_b, origins_b[b], layout_b, begin, end, words_b[taken_b])
                    finite &= finite_b[taken_b]
                    taken_b += 1
                lane_a[np.uint64(r - first)], lane_b[np.uint64(r - first)] = slot_a[a], slot_b[b]
            for r in range(first, last, LANES):
                some = min(LANES, last - r)
                scatter(flat_a, flat_b, lane_a, lane_b, r - first, some, pitch, buckets, count)
                fold(buckets, digits, room)
                for i in range(some):
                    note = 0
                    if not finite:
                        in_a, in_b = lane_a[r - first + i], lane_b[r - first + i]
                        if not (finite_a[in_a] and finite_b[in_b]):
                            note = _note_products(words_a[in_a], words_b[in_b], count)
                    target = own[r + i - first] if len(own) else sums[order[r + i]]
                    _add_lane(digits, i, target)
                    target[NOTE] |= note
            for r in range(first, last):
                slot_a[np.uint64(of_a[r])] = slot_b[np.uint64(of_b[r])] = -1
        if len(own):
            for r in range(first, last):
                out[order[r]] = round_one(own[r - first], rule, digits, spare, words)


def add_products(sums: I64, a: Runs, b: Runs, of_a: I64, of_b: I64) -> None:
    """sums: int64[n, LIMBS + 1]; of_a, of_b: int64[n], numbers of runs of a and of b, as long as each other. Adds to
    each sum the products of its two runs' numbers. Where one does not exist, there is no product. The caller answers
    for the indices, and for less than 2^30 terms in all."""
    _over_blocks(a, b, of_a, of_b, sums, FLOAT32.rule, np.empty(0, np.float32))


def round_products(a: Runs, b: Runs, of_a: I64, of_b: I64, format: Format) -> F32:
    """float32[n]: what `rounded` makes of sums of these products alone, without keeping the sums."""
    out = np.zeros(len(of_a), np.float32)
    _over_blocks(a, b, of_a, of_b, new_sums(0), format.rule, out)
    return out


def _over_blocks(a: Runs, b: Runs, of_a: I64, of_b: I64, sums: I64, rule: tuple[int, int, float], out: F32) -> None:
    if not a.terms or not len(of_a):
        return
    order = np.arange(len(of_a))
    if min(len(a.origins), len(b.origins)) > _SLOTS:
        # Tiles: every run is read once for many others.
        order = np.argsort(of_a // _TILE * len(b.origins) + of_b, kind="stable")
        of_a, of_b = of_a[order], of_b[order]
    threads = threads_for(len(order), len(order) * a.terms * 4)
    most = min(-(-len(order) // threads), _SUMS)
    if max(len(a.origins), len(b.origins)) <= _SLOTS:
        cuts = np.append(np.arange(0, len(order), most), len(order))
    else:
        cuts = np.empty(len(order) + 1, np.int64)
        count = _cut(of_a, of_b, most, np.zeros(len(a.origins), np.int64), np.zeros(len(b.origins), np.int64), cuts)
        cuts = np.append(cuts[:count], len(order))
    reads_a, reads_b = ((runs.memory.view(np.uint32), runs.origins, runs.layout) for runs in (a, b))
    in_parts(
        lambda start, stop: _add_blocks(
            *reads_a, *reads_b, a.terms, order, of_a, of_b, cuts, sums, rule, out, start, stop
        ),
        len(cuts) - 1,
        len(order) * a.terms * 4,
    )
