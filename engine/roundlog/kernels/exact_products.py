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

from roundlog.kernels.superaccumulator import (
    FULL_BITS,
    LIMBS,
    MASK,
    NOTE,
    new_sums,
    note_of,
    of_note,
    round_lanes,
    round_one,
)
from roundlog.kernels.threads import in_parts, threads_for

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

_BUCKETS = 128
_TERMS = 512
"""Products that a bucket has room for: they are below 2^54."""
_LANES = 16
"""Sums whose buckets lie side by side, a multiple of 4: what they become is vector code."""
_TWO, _THREE, _FOUR = np.uint64(2), np.uint64(3), np.uint64(4)
_SLOTS = 512
"""Runs that are in memory at once: 2 MiB, which the second level of the cache holds."""
_TILE = 64
"""Runs of a that are combined with many of b."""
_PITCH = _TERMS + 8
"""Words from one run to the next: an odd number of lines, so that all sets of the cache are used."""
_SUMS = 1 << 11
"""Sums of more terms than buckets have room for that are taken at once: they stay in the cache, too."""

_PADDING, _INF, _MINUS_INF, _NAN = 64, 65, 66, 67
"""Words whose significand is 0: nothing that is read, and what is not finite."""


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

    @staticmethod
    def strided(memory: F32, first: I64, terms: int, step: int) -> Runs:
        """Runs of numbers that are `step` apart."""
        origins = np.zeros((len(first), 3), np.int64)
        origins[:, 0] = first
        return Runs(memory, origins, (1, 0, 1, 0, 1, 1, 0, terms, 1, 1, max(terms, 1), step))


def numbered(ids: I64, count: int) -> tuple[I64, I64]:
    """ids: int64[n], numbers below `count`. Returns those that occur, ascending, and for every one where it is among
    them."""
    if count > 4 * len(ids):
        found, place = np.unique(ids, return_inverse=True)
        return found, place
    occurs = np.zeros(count, np.bool_)
    occurs[ids] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[ids]


@njit(inline="always")
def _word(bits: Any) -> Any:
    """A finite FP32 number as a word: its significand, signed and shifted by 0 to 3 bits, above a byte that says by how
    many times 4 bits more."""
    exponent = (bits >> 23) & 0xFF
    normal = 1 if exponent > 0 else 0
    exponent -= normal
    magnitude = ((bits & 0x7FFFFF) | (normal << 23)) << (exponent & 3)
    signed = -magnitude if bits & 0x80000000 else magnitude
    return (signed << 8) | (exponent >> 2)


@njit(cache=True, nogil=True, error_model="numpy")
def _read(memory: Any, origin: Any, layout: Any, begin: int, end: int, words: Any) -> bool:
    """Numbers begin to end of a run as words. Whether they are all finite."""
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
                words[t - begin + i] = _word(bits)
        else:
            for i in range(stop - t):
                column = (x + i * dx) // qx
                if there and column * qx == x + i * dx and 0 <= column < width:
                    bits = np.int64(memory[first + column * apart])
                    largest = max(largest, bits & 0x7FFFFFFF)
                    words[t - begin + i] = _word(bits)
                else:
                    words[t - begin + i] = _PADDING
        t = stop
    if largest < 0x7F800000:
        return True
    for t in range(begin, end):
        line, t2 = t // columns, t % columns
        row = (origin[1] + line % rows * dy) // qy
        column = (origin[2] + t2 * dx) // qx
        if words[t - begin] != _PADDING:
            bits = np.int64(memory[origin[0] + line // rows * step + row * pitch + column * apart])
            if bits & 0x7F800000 == 0x7F800000:
                words[t - begin] = _special(bits)
    return False


@njit(inline="always")
def _special(bits: Any) -> Any:
    """The word of what is not finite."""
    if bits & 0x7FFFFF:
        return _NAN
    return _MINUS_INF if bits & 0x80000000 else _INF


@njit(inline="always")
def _multiply(a: Any, b: Any, buckets: Any, lane: int) -> None:
    buckets[np.uint64(((a + b) & 127) * _LANES + lane)] += (a >> 8) * (b >> 8)


@njit(cache=True, nogil=True, error_model="numpy")
def _scatter_four(a: Any, b: Any, of_a: Any, of_b: Any, lane: int, buckets: Any, count: int) -> None:
    """Four sums at a time: terms of one often go to the same bucket, and would wait for each other."""
    a0, a1, a2, a3 = a[of_a[lane]], a[of_a[lane + 1]], a[of_a[lane + 2]], a[of_a[lane + 3]]
    b0, b1, b2, b3 = b[of_b[lane]], b[of_b[lane + 1]], b[of_b[lane + 2]], b[of_b[lane + 3]]
    four = buckets[lane:]
    for k in range(count):
        _multiply(a0[k], b0[k], four, 0)
        _multiply(a1[k], b1[k], four, 1)
        _multiply(a2[k], b2[k], four, 2)
        _multiply(a3[k], b3[k], four, 3)


@njit(cache=True, nogil=True, error_model="numpy")
def _scatter_row(a: Any, b: Any, of_b: Any, lane: int, buckets: Any, count: int) -> None:
    """`_scatter_four` where all have the same run of a."""
    b0, b1, b2, b3 = b[of_b[lane]], b[of_b[lane + 1]], b[of_b[lane + 2]], b[of_b[lane + 3]]
    four = buckets[lane:]
    for k in range(count):
        word = a[k]
        _multiply(word, b0[k], four, 0)
        _multiply(word, b1[k], four, 1)
        _multiply(word, b2[k], four, 2)
        _multiply(word, b3[k], four, 3)


@njit(cache=True, nogil=True, error_model="numpy")
def _fold(buckets: Any, lanes: int, scratch: Any, digits: Any) -> None:
    """Empty the buckets, which are 4 bits apart, into limbs: a number in two's complement whose limb i, of sum r, is
    digits[i * lanes + r]. scratch: int64[4, lanes]. lanes: _LANES. Unsigned indices, and slices of nothing, make
    the loops vector code."""
    highs, carries = scratch[0], scratch[1]
    width = np.uint64(lanes)
    for lane in range(lanes):
        highs[lane] = carries[lane] = 0
    for limb in range(_BUCKETS // 8):
        to, at = np.uint64(limb) * width, np.uint64(8 * limb) * width
        at1, at2, at3, at4 = at + width, at + _TWO * width, at + _THREE * width, at + _FOUR * width
        at5, at6, at7 = at4 + width, at4 + _TWO * width, at4 + _THREE * width
        for lane in range(lanes):
            r = np.uint64(lane)
            v0, v1, v2, v3 = buckets[at + r], buckets[at1 + r], buckets[at2 + r], buckets[at3 + r]
            v4, v5, v6, v7 = buckets[at4 + r], buckets[at5 + r], buckets[at6 + r], buckets[at7 + r]
            # The sum's last 64 bits, and what is above its last 32, but for what the cut bits carry: at most 7.
            low = v0 + (v1 << 4) + (v2 << 8) + (v3 << 12) + (v4 << 16) + (v5 << 20) + (v6 << 24) + (v7 << 28)
            high = (v0 >> 32) + (v1 >> 28) + (v2 >> 24) + (v3 >> 20)
            high += (v4 >> 16) + (v5 >> 12) + (v6 >> 8) + (v7 >> 4)
            high += ((low >> 32) - high) & MASK
            v = (low & MASK) + highs[r] + carries[r]
            highs[r] = high
            digits[to + r] = v & MASK
            carries[r] = v >> 32
    buckets[:] = 0
    for limb in range(_BUCKETS // 8, LIMBS):
        to = np.uint64(limb) * width
        for lane in range(lanes):
            r = np.uint64(lane)
            v = highs[r] + carries[r]
            highs[r] = 0
            digits[to + r] = v if limb == LIMBS - 1 else v & MASK
            carries[r] = v >> 32


@njit(cache=True, nogil=True, error_model="numpy")
def _add_lane(digits: Any, lane: int, lanes: int, sums: Any) -> None:
    """Add one of the sums that `_fold` has made."""
    carry = np.int64(0)
    for limb in range(LIMBS):
        v = sums[limb] + digits[limb * lanes + lane] + carry
        sums[limb] = v if limb == LIMBS - 1 else v & MASK
        carry = v >> 32


@njit(cache=True, nogil=True, error_model="numpy")
def _value(word: Any) -> float:
    """Of a word, what its products' sign and infinity depend on."""
    code = word & 0xFF
    if code == _NAN:
        return np.nan
    if code == _INF:
        return np.inf
    if code == _MINUS_INF:
        return -np.inf
    return np.float64(word >> 8)


@njit(cache=True, nogil=True, error_model="numpy")
def _note_products(a: Any, b: Any, count: int) -> int:
    note = 0
    for k in range(count):
        of_a, of_b = a[k] & 0xFF, b[k] & 0xFF
        if of_a != _PADDING and of_b != _PADDING and (of_a > _PADDING or of_b > _PADDING):
            note |= note_of(_value(a[k]) * _value(b[k]))
    return note


@njit(cache=True, nogil=True, error_model="numpy")
def _cut(of_a: Any, of_b: Any, most: int, slot_a: Any, slot_b: Any, cuts: Any) -> int:
    """Where blocks of sums begin: a block has at most so many sums, and at most _SLOTS runs of a and of b each."""
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
    bits: int,
    out: Any,
    lanes: int,
    start: int,
    stop: int,
) -> None:
    """Adds to `sums` or, if there are none, rounds what becomes of zeros to `out`."""
    at_once = terms <= _TERMS and not len(sums)
    own = np.zeros((0 if len(sums) or at_once else _SUMS, LIMBS + 1), np.int64)
    digits, spare, scratch = np.empty(LIMBS * lanes, np.int64), np.empty(1), np.empty((4, lanes), np.int64)
    results = np.empty(lanes, np.float32)
    words = spare.view(np.int64)
    words_a, words_b = np.empty((_SLOTS, _PITCH), np.int64), np.empty((_SLOTS, _PITCH), np.int64)
    finite_a, finite_b = np.empty(_SLOTS, np.bool_), np.empty(_SLOTS, np.bool_)
    slot_a, slot_b = np.full(len(origins_a), -1, np.int64), np.full(len(origins_b), -1, np.int64)
    buckets = np.zeros(_BUCKETS * lanes, np.int64)
    lane_a, lane_b = np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    for block in range(start, stop):
        first, last = cuts[block], cuts[block + 1]
        own[:] = 0
        for begin in range(0, terms, _TERMS):
            end = min(begin + _TERMS, terms)
            count = end - begin
            taken_a = taken_b = 0
            for r in range(first, last):
                a, b = of_a[r], of_b[r]
                if slot_a[a] < 0:
                    slot_a[a] = taken_a
                    finite_a[taken_a] = _read(memory_a, origins_a[a], layout_a, begin, end, words_a[taken_a])
                    taken_a += 1
                if slot_b[b] < 0:
                    slot_b[b] = taken_b
                    finite_b[taken_b] = _read(memory_b, origins_b[b], layout_b, begin, end, words_b[taken_b])
                    taken_b += 1
            for r in range(first, last, _LANES):
                some = min(_LANES, last - r)
                for i in range(_LANES):
                    at = r + min(i, some - 1)
                    lane_a[i], lane_b[i] = slot_a[of_a[at]], slot_b[of_b[at]]
                for i in range(0, some, 4):
                    if lane_a[i] == lane_a[i + 1] == lane_a[i + 2] == lane_a[i + 3]:
                        _scatter_row(words_a[lane_a[i]], words_b, lane_b, i, buckets, count)
                    elif lane_b[i] == lane_b[i + 1] == lane_b[i + 2] == lane_b[i + 3]:
                        _scatter_row(words_b[lane_b[i]], words_a, lane_a, i, buckets, count)
                    else:
                        _scatter_four(words_a, words_b, lane_a, lane_b, i, buckets, count)
                _fold(buckets, lanes, scratch, digits)
                if at_once:
                    round_lanes(digits, scratch, lanes, bits, spare, words, results)
                for i in range(some):
                    note = 0
                    if not (finite_a[lane_a[i]] and finite_b[lane_b[i]]):
                        note = _note_products(words_a[lane_a[i]], words_b[lane_b[i]], count)
                    if at_once:
                        out[order[r + i]] = of_note(note) if note else results[i]
                    else:
                        target = own[r + i - first] if len(own) else sums[order[r + i]]
                        _add_lane(digits, i, lanes, target)
                        target[NOTE] |= note
            for r in range(first, last):
                slot_a[of_a[r]] = slot_b[of_b[r]] = -1
        if len(own):
            for r in range(first, last):
                out[order[r]] = round_one(own[r - first], bits, digits, spare, words)


_NO_SUMS = new_sums(0)


def add_products(sums: I64, a: Runs, b: Runs, of_a: I64, of_b: I64) -> None:
    """sums: int64[n, LIMBS + 1]; of_a, of_b: int64[n], numbers of runs of a and of b, as long as each other. Adds to
    each sum the products of its two runs' numbers. Where one does not exist, there is no product. The caller answers
    for the indices, and for less than 2^30 terms in all."""
    _over_blocks(a, b, of_a, of_b, sums, FULL_BITS, np.empty(0, np.float32))


def round_products(a: Runs, b: Runs, of_a: I64, of_b: I64, bits: int) -> F32:
    """float32[n]: what `rounded` makes of sums of these products alone, without keeping the sums."""
    out = np.zeros(len(of_a), np.float32)
    _over_blocks(a, b, of_a, of_b, _NO_SUMS, bits, out)
    return out


def _over_blocks(a: Runs, b: Runs, of_a: I64, of_b: I64, sums: I64, bits: int, out: F32) -> None:
    if not a.terms or not len(of_a):
        return
    order = np.arange(len(of_a))
    if min(len(a.origins), len(b.origins)) > _SLOTS:
        # Tiles: every run is read once for many others.
        order = np.argsort(of_a // _TILE * len(b.origins) + of_b, kind="stable")
        of_a, of_b = of_a[order], of_b[order]
    cuts = np.empty(len(order) + 1, np.int64)
    threads = threads_for(len(order), len(order) * a.terms * 4)
    most = _SUMS if a.terms > _TERMS else -(-len(order) // threads)
    count = _cut(of_a, of_b, most, np.zeros(len(a.origins), np.int64), np.zeros(len(b.origins), np.int64), cuts)
    cuts[count] = len(order)
    reads_a, reads_b = ((runs.memory.view(np.uint32), runs.origins, runs.layout) for runs in (a, b))
    in_parts(
        lambda start, stop: _add_blocks(
            *reads_a, *reads_b, a.terms, order, of_a, of_b, cuts, sums, bits, out, _LANES, start, stop
        ),
        count,
        len(order) * a.terms * 4,
    )
