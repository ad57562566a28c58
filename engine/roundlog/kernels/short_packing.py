"""BF16 operands as `roundlog.kernels.short_products` takes them: lines whose terms lie side by side, for sums of single
elements, FP32 strips, for tiles, and the lines' norms, which bounds are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types

from roundlog.kernels.gemm_microkernel import at_step, crossed
from roundlog.kernels.number_words import VectorCode, Words, instructions, number, widen_pairs
from roundlog.kernels.short_microkernel import width_of
from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]

_WORD = ir.IntType(32)


@dataclass(frozen=True, slots=True)
class ShortLines:
    """Lines of a batch of BF16 matrices: term t of line l is word first + batch * `batch` + l * line + t."""

    words: Words
    """uint16, flat."""
    first: int
    line: int
    batch: int

    @staticmethod
    def of(
        lanes: int, words: Words, how: tuple[int, int, int, int], batches: int, lines: int, terms: int
    ) -> ShortLines:
        """how: first, line, term, batch, as `roundlog.kernels.tile_packing` has them. A copy, unless terms lie side by
        side."""
        first, line, term, batch = how
        assert words.dtype == np.uint16
        if term == 1:
            return ShortLines(words, first, line, batch)
        copy = np.empty(batches * lines * terms, dtype=np.uint16)
        strips = -(-lines // width_of(lanes))
        in_parts(
            lambda start, stop: _transpose((0,) * lanes, words, how, lines, terms, copy, start, stop),
            batches * strips,
            copy.size,
        )
        return ShortLines(copy, 0, terms, lines * terms)


@njit(cache=True, nogil=True, error_model="numpy")
def _transpose(lanes: Any, x: Any, how: Any, lines: int, terms: int, copy: Any, start: int, stop: int) -> None:
    first, line, term, batch = how
    side, strips = 2 * len(lanes), -(-lines // (2 * len(lanes)))
    source, target = x.ctypes.data, copy.ctypes.data
    for part in range(start, stop):
        of, begin = part // strips, part % strips * side
        some, at, into = min(side, lines - begin), first + of * batch + begin * line, (of * lines + begin) * terms
        whole = terms - terms % side if some == side and line == 1 else 0
        for t in range(0, whole, side):
            cross_words(lanes, x, source + (at + t * term) * 2, term * 2, target + (into + t) * 2, terms * 2)
        for t in range(whole, terms):
            for i in range(some):
                copy[into + i * terms + t] = x[at + i * line + t * term]


@instructions(types.void)
def cross_words(builder: Any, lanes: Any, x: Any, source: Any, line: Any, target: Any, term: Any) -> None:
    """Transpose a square of words of an array such as x: a row is as many as an FP32 vector has lanes, rows lie `line`
    bytes apart, and those of the result `term` bytes."""
    count, bits = width_of(len(lanes)), int(x.dtype.bitwidth)
    code, kind = VectorCode(builder), ir.VectorType(ir.IntType(bits), count)
    rows = [code.load(at_step(builder, source, line, n), kind, bits // 8) for n in range(count)]
    for n, row in enumerate(crossed(builder, rows)):
        code.store(at_step(builder, target, term, n), row, bits // 8)


@instructions(types.void)
def _cross_pairs(builder: Any, lanes: Any, wide: Any, source: Any, line: Any, target: Any, step: Any) -> None:
    """As many lines as an FP32 vector has lanes, `line` bytes apart, of as many pairs of BF16 words, as columns of
    FP32 numbers, one for every term, or, if `wide` is an empty tuple, of pairs; columns lie `step` bytes apart, and
    only these are aligned."""
    count = width_of(len(lanes))
    code, kind = VectorCode(builder), ir.VectorType(_WORD, count)
    rows = [code.load(at_step(builder, source, line, n), kind, 2) for n in range(count)]
    for n, pairs in enumerate(crossed(builder, rows)):
        columns = widen_pairs(builder, pairs) if len(wide) else (pairs,)
        for odd, numbers in enumerate(columns):
            code.store(at_step(builder, target, step, len(columns) * n + odd), numbers, 4 * count)


@njit(cache=True, nogil=True, error_model="numpy")
def pack_short(
    lanes: Any, x: Any, at: int, line: int, lines: int, terms: int, width: int, room: int, strips: Any
) -> None:
    """strips[l // width][k][l % width] = word at + l * line + k of x, as an FP32 number, and 0 where there is no line
    l; float32, a strip has room for `room` terms, and `width` is a multiple of the vector's numbers."""
    vector, size = 2 * len(lanes), room * width
    source, target = x.ctypes.data + at * 2, strips.ctypes.data
    if lines % width:
        strips[lines // width * size : lines // width * size + terms * width] = np.float32(0.0)
    whole, most = lines - lines % vector, terms - terms % (2 * vector)
    for n in range(0, lines, vector):
        into = n // width * size + n % width
        if n < whole:
            for k in range(0, most, 2 * vector):
                place = target + (into + k * width) * 4
                _cross_pairs(lanes, (0,), source + (n * line + k) * 2, line * 2, place, width * 4)
        for i in range(min(vector, lines - n)):
            for k in range(most if n < whole else 0, terms):
                strips[into + i + k * width] = number(x[at + (n + i) * line + k])


@njit(cache=True, nogil=True, error_model="numpy")
def pack_pairs(
    lanes: Any, x: Any, at: int, line: int, lines: int, terms: int, width: int, pairs: int, room: int, strips: Any
) -> None:
    """strips[l // width][k][l % width] = words at + l * line + 2 k and the next one of x, k < `pairs`; 0 where there is
    no term, as `terms` may be fewer, or no line l. strips: uint16, one has room for `room` pairs; `width` is a multiple
    of the FP32 vector's numbers."""
    vector, size = 2 * len(lanes), 2 * room * width
    source, target = x.ctypes.data + at * 2, strips.ctypes.data
    if lines % width:
        strips[lines // width * size : lines // width * size + 2 * pairs * width] = np.uint16(0)
    whole, most = lines - lines % vector, terms - terms % (2 * vector)
    for n in range(0, lines, vector):
        into = n // width * size + n % width * 2
        if n < whole:
            for k in range(0, most, 2 * vector):
                place = target + (into + k * width) * 2
                _cross_pairs(lanes, (), source + (n * line + k) * 2, line * 2, place, width * 4)
        begin = most if n < whole else 0
        for i in range(min(vector, lines - n)):
            for k in range(begin, terms):
                strips[into + 2 * i + k // 2 * (2 * width) + k % 2] = x[at + (n + i) * line + k]
            for k in range(terms, 2 * pairs):
                strips[into + 2 * i + k // 2 * (2 * width) + k % 2] = np.uint16(0)


@njit(cache=True, nogil=True, error_model="numpy")
def _square_lines(
    x: Any, first: int, batch: int, line: int, lines: int, terms: int, weights: Any, sums: Any, start: int, stop: int
) -> None:
    period = len(weights)
    # One sum for every place in a block, so that they are added up in vectors.
    by_place = np.empty(period)
    for at in range(start, stop):
        by_place[:] = 0.0
        source = first + at // lines * batch + at % lines * line
        for begin in range(0, terms - terms % period, period):
            some = x[source + begin : source + begin + period]
            for t in range(period):
                v = np.float64(number(some[t]))
                by_place[t] += v * v
        for t in range(terms - terms % period, terms):
            v = np.float64(number(x[source + t]))
            by_place[t % period] += v * v
        plain = weighted = 0.0
        for t in range(period):
            plain += by_place[t]
            weighted += weights[t] * by_place[t]
        sums[0, at], sums[1, at] = plain, weighted


def square_lines(x: ShortLines, batches: int, lines: int, terms: int, weights: F64) -> F64:
    """float64[2, batches * lines]: the sums of the squares of every line's terms, and the sums in which term t counts
    weights[t % len(weights)] times."""
    sums = np.empty((2, batches * lines))
    how = x.words, x.first, x.batch, x.line, lines, terms, weights, sums
    in_parts(lambda start, stop: _square_lines(*how, start, stop), batches * lines, batches * lines * terms)
    return sums
