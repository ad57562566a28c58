"""Lines of BF16 numbers, in BF16 or as FP32 ones: the sums of their magnitudes, in units of the last place that all of
their numbers are multiples of. What they say about products: `roundlog.operators.exact_lines`."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.number_words import of_word
from roundlog.kernels.threads import in_parts

Bool = npt.NDArray[np.bool_]
I64 = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint32] | npt.NDArray[np.uint16]
"""Flat memory of FP32 numbers, or of BF16's, whose words are the upper halves of FP32's."""
Lines = tuple[Bits, int, tuple[int, int, int]]
"""Memory, place of the first number in it, and strides over matrices, lines and terms."""

_ANY_ORDER = {"reassoc"}
"""Of magnitudes of a line whose sum counts, all partial sums are FP64 numbers."""
_TOGETHER = 64
"""Terms after which it is asked whether there is a number that is not of BF16."""
_NONE = np.uint32(0xFFFFFFFF)
EXACT = 2.0**53
"""A sum of products whose lines' units multiply to less is one that FP64 adds exactly."""


@njit(inline="always")
def _bits(words: Any, at: int) -> Any:
    """The word of a magnitude in FP32."""
    return (np.uint32(words[at]) << np.uint32(32 - 8 * words.itemsize)) & np.uint32(0x7FFFFFFF)


@njit(inline="always")
def _size(bits: Any) -> Any:
    """The magnitude with this word, in FP64; infinite ones and NaN are infinite."""
    if bits >= np.uint32(0x7F800000):
        return inf
    if bits < np.uint32(0x800000):
        return np.float64(bits) * 2.0**-149
    return of_word((np.int64(bits) << 29) + (896 << 52))


@njit(inline="always")
def _in_units(size: Any, least: Any, places: Any, others: Any) -> Any:
    """size: the sum of magnitudes. least: the least of their words less 1; that of a zero is the largest. places: all
    bits of their words; others: those that BF16 has not."""
    if others or least == _NONE:
        return inf if others else size
    fraction = np.int64(places & np.uint32(0x7FFFFF)) | 0x800000
    exponent = np.int64(least + np.uint32(1)) >> 23
    if exponent < 1:  # subnormal
        exponent = np.int64(1)
    # The last place is fraction & -fraction, times 2^(exponent - 150).
    return size / np.float64(fraction & -fraction) * of_word((1023 + 150 - exponent) << 52)


@njit(inline="always")
def _is_other(words: Any, at: int) -> Any:
    """Whether a number is none of BF16."""
    return words.itemsize == 4 and np.uint32(words[at]) & np.uint32(0xFFFF) != 0


@njit(inline="always")
def _of_line(words: Any, first: int, stride: int, terms: int) -> Any:
    if _is_other(words, first):
        return inf
    size, least, places, others = 0.0, _NONE, np.uint32(0), np.uint32(0)
    for begin in range(0, terms, _TOGETHER):
        for k in range(begin, min(begin + _TOGETHER, terms)):
            bits = _bits(words, first + k * stride)
            size += _size(bits)
            least = min(least, bits - np.uint32(1))
            places |= bits
        others = places & np.uint32(0xFFFF)
        if others:
            break
    return _in_units(size, least, places, others)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_ANY_ORDER)
def _exact(
    rows: Any, columns: Any, size: Any, terms: int, indices: Any, known: Any, exact: Any, start: int, stop: int
) -> None:
    (a, first_a, of_a), (b, first_b, of_b) = rows, columns
    former, units = -1, 0.0
    for i in range(start, stop):
        line, column = divmod(indices[i], size[1])
        batch, row = divmod(line, size[0])
        if line != former:
            former, units = line, _of_line(a, first_a + batch * of_a[0] + row * of_a[1], of_a[2], terms)
        place = batch * size[1] + column
        if known[place] < 0.0:
            known[place] = _of_line(b, first_b + batch * of_b[0] + column * of_b[1], of_b[2], terms)
        exact[i] = units * known[place] < EXACT


def exact_products(rows: Lines, columns: Lines, size: tuple[int, int], terms: int, indices: I64) -> Bool:
    """bool[n]: whether the elements with these flat indices, ascending and at least one, of products of rows and
    columns, each of this size, are sums that FP64 adds exactly."""
    exact, batches = np.empty(len(indices), np.bool_), int(indices[-1]) // (size[0] * size[1]) + 1
    # A column is measured once, where one of its elements is asked for first, on whichever thread.
    known = np.full(batches * size[1], -1.0)
    work = 2 * terms * len(indices)
    in_parts(lambda *ends: _exact(rows, columns, size, terms, indices, known, exact, *ends), len(indices), work)
    return exact
