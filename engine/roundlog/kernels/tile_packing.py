"""Operands of products tile by tile: numbers widened into strips, FP32 or BF16, from wherever they lie in memory.
Windows of images are read where the images are, so that nobody writes them out.

`how` is int64[...]: which of three kinds of operand it is, and where element [line, term] lies.

* LINES, first, line, term, batch: at first + line * `line` + term * `term`; what products of a batch add to first.
* POSITIONS, first, sample, channel, height, width, down, across, two strides, inner, then two numbers for every tap:
  the line is a position (n, p, q), down * across a sample; the term (tap, c), `inner` channels a tap. The element is
  that of sample n, channel c, row p * stride + the tap's first number, column q * stride + its second, and 0 outside
  of the image; `sample` and `channel` are the distances between these.
* TAPS, then the same: the line is (tap, c), and the term (n, p, q).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.gemm_microkernel import widen, widen_transposed
from roundlog.kernels.number_words import Words, number

I64 = npt.NDArray[np.int64]

LINES, POSITIONS, TAPS = range(3)
_TAPS_FROM = 11
_OUTSIDE = -(1 << 60)
"""Row of a position that there is not."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Lines of terms: rows of a left operand, columns of a right one."""

    memory: Words
    """Flat."""
    how: I64


def lines_of(memory: Words, first: int, line: int, term: int, batch: int = 0) -> Operand:
    """A matrix, or a batch of them, of any strides."""
    return Operand(memory, np.array([LINES, first, line, term, batch], dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Images:
    """Some channels of images, and the windows that are seen of them."""

    memory: Words
    """Flat."""
    first: int
    """Begin of the first of these channels."""
    sample: int
    channel: int
    """Distances between samples and between channels; rows and columns are dense."""
    size: tuple[int, int]
    out: tuple[int, int]
    """Positions."""
    stride: tuple[int, int]
    channels: int
    taps: I64
    """int64[taps, 2]: what each adds to the row and to the column that a position begins with."""

    def _operand(self, kind: int) -> Operand:
        numbers = self.first, self.sample, self.channel, *self.size, *self.out, *self.stride, self.channels
        return Operand(self.memory, np.concatenate([np.array([kind, *numbers], dtype=np.int64), self.taps.reshape(-1)]))

    def positions(self) -> Operand:
        """One line for every position; a term for every tap and channel."""
        return self._operand(POSITIONS)

    def at_taps(self) -> Operand:
        """One line for every tap and channel; a term for every position."""
        return self._operand(TAPS)


@njit(cache=True, nogil=True, error_model="numpy")
def pack(
    lanes: Any,
    x: Any,
    how: Any,
    line: int,
    lines: int,
    term: int,
    terms: int,
    width: int,
    chunk: int,
    strips: Any,
    places: Any,
) -> None:
    """strips[l // width][k][l % width] = the element [line + l, term + k] of an operand, and 0 where there is no line
    l; a strip has room for `chunk` terms. places: int64[4 * width], scratch memory."""
    if how[0] == LINES:
        at = how[1] + line * how[2] + term * how[3]
        _pack_lines(lanes, x, at, how[2], how[3], lines, terms, width, chunk, strips)
    elif how[0] == POSITIONS:
        _pack_positions(lanes, x, how, line, lines, term, terms, width, chunk, strips, places)
    else:
        _pack_taps(lanes, x, how, line, lines, term, terms, width, chunk, strips)


@njit(cache=True, nogil=True, error_model="numpy")
def _pack_lines(
    lanes: Any, x: Any, at: int, line: int, term: int, lines: int, terms: int, width: int, chunk: int, strips: Any
) -> None:
    item, vector = x.itemsize, len(lanes)
    source, target, size = x.ctypes.data + at * item, strips.ctypes.data, chunk * width
    if lines % width:
        strips[lines // width * size : lines // width * size + terms * width] = 0.0
    whole = 0 if line != 1 and term != 1 else lines - lines % vector
    if line == 1:
        # Without divisions, which would take longer than all the rest.
        for k in range(terms):
            of, to = source + k * term * item, target + k * width * 8
            for n in range(0, width, vector):
                for begin in range(0, whole - n, width):
                    widen(lanes, x, of + (begin + n) * item, to + (begin * chunk + n) * 8)
    elif term == 1:
        for n in range(0, whole, vector):
            into = target + (n // width * size + n % width) * 8
            for k in range(0, terms - terms % vector, vector):
                widen_transposed(lanes, x, source + (n * line + k) * item, line * item, into + k * width * 8, width * 8)
        for n in range(whole):
            for k in range(terms - terms % vector, terms):
                strips[n // width * size + k * width + n % width] = number(x[at + n * line + k])
    for n in range(whole, lines):
        for k in range(terms):
            strips[n // width * size + k * width + n % width] = number(x[at + n * line + k * term])


@njit(cache=True, nogil=True, error_model="numpy")
def _pack_positions(
    lanes: Any,
    x: Any,
    how: Any,
    line: int,
    lines: int,
    term: int,
    terms: int,
    width: int,
    chunk: int,
    strips: Any,
    places: Any,
) -> None:
    first, sample, channel, height, across_image, down, across, row_stride, column_stride, inner = how[1:_TAPS_FROM]
    source, target, vector, item = x.ctypes.data, strips.ctypes.data, len(lanes), x.itemsize
    samples, rows, columns, at = (
        places[:width],
        places[width : 2 * width],
        places[2 * width : 3 * width],
        places[3 * width :],
    )
    for begin in range(0, lines, width):
        n, p, q = (line + begin) // (down * across), (line + begin) // across % down, (line + begin) % across
        for i in range(width):
            samples[i] = first + n * sample
            rows[i] = p * row_stride if begin + i < lines else _OUTSIDE
            columns[i] = q * column_stride
            q += 1
            if q == across:
                p, q = p + 1, 0
                if p == down:
                    n, p = n + 1, 0
        k = 0
        while k < terms:
            tap, c = (term + k) // inner, (term + k) % inner
            some = min(inner - c, terms - k)
            tap_row, tap_column = how[_TAPS_FROM + 2 * tap], how[_TAPS_FROM + 2 * tap + 1]
            for i in range(width):
                y, v = rows[i] + tap_row, columns[i] + tap_column
                inside = y >= 0 and y < height and v >= 0 and v < across_image
                at[i] = samples[i] + c * channel + y * across_image + v if inside else -1
            for group in range(0, width, vector):
                a, into = at[group], begin * chunk + k * width + group
                dense = a >= 0
                for i in range(1, vector):
                    dense = dense and at[group + i] == a + i
                if dense:
                    for j in range(some):
                        widen(lanes, x, source + (a + j * channel) * item, target + (into + j * width) * 8)
                    continue
                for i in range(vector):
                    a = at[group + i]
                    for j in range(some):
                        strips[into + i + j * width] = number(x[a + j * channel]) if a >= 0 else 0.0
            k += some


@njit(cache=True, nogil=True, error_model="numpy")
def _pack_taps(
    lanes: Any, x: Any, how: Any, line: int, lines: int, term: int, terms: int, width: int, chunk: int, strips: Any
) -> None:
    first, sample, channel, height, across_image, down, across, row_stride, column_stride, inner = how[1:_TAPS_FROM]
    source, target, vector, item = x.ctypes.data, strips.ctypes.data, len(lanes), x.itemsize
    begin = 0
    while begin < -(-lines // width) * width:
        into = begin // width * width * chunk + begin % width
        if begin >= lines:
            for k in range(terms):
                strips[into + k * width] = 0.0
            begin += 1
            continue
        tap, c = (line + begin) // inner, (line + begin) % inner
        tap_row, tap_column = how[_TAPS_FROM + 2 * tap], how[_TAPS_FROM + 2 * tap + 1]
        # Lines of one tap, as many as a vector holds, or a single one.
        together = vector if begin % vector == 0 and begin + vector <= lines and c + vector <= inner else 1
        # Columns q of the positions that read the image.
        least, end = -(tap_column // column_stride), (across_image - 1 - tap_column) // column_stride + 1
        n, p, q = term // (down * across), term // across % down, term % across
        k = 0
        while k < terms:
            length, y = min(across - q, terms - k), p * row_stride + tap_row
            low = high = 0
            if y >= 0 and y < height:
                low = min(max(0, least - q), length)
                high = max(low, min(length, end - q))
            at = first + n * sample + c * channel + y * across_image + (q + low) * column_stride + tap_column
            t = low
            if together > 1 and column_stride == 1:
                while t + vector <= high:
                    to = target + (into + (k + t) * width) * 8
                    widen_transposed(lanes, x, source + (at + t - low) * item, channel * item, to, width * 8)
                    t += vector
            for i in range(together):
                for j in range(low):
                    strips[into + i + (k + j) * width] = 0.0
                for j in range(t, high):
                    strips[into + i + (k + j) * width] = number(x[at + (j - low) * column_stride + i * channel])
                for j in range(high, length):
                    strips[into + i + (k + j) * width] = 0.0
            k, q, p = k + length, 0, p + 1
            if p == down:
                n, p = n + 1, 0
        begin += together
