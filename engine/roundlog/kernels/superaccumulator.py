"""Exact sums in a fixed-point number of 640 bits that no sum of products of FP32 numbers can leave (Kulisch, *Computer
Arithmetic and Validity*, 2nd ed., chapter 8).

Bit 0 is 2^-298, the last place of any product of two FP32 numbers. A product is below 2^256 and a sum has at most 2^30
terms, so 585 bits and a sign are used. The number is kept as 20 limbs of 32 bits, least significant first, and is a
two's complement number whose sign the last limb has. What is not finite is noted beside it: IEEE 754 says what becomes
of the sum.

Whatever the data are, a term costs the same. Products are added up in `roundlog.kernels.exact_products`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.threads import in_parts
from roundlog.number_format import Format

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

LAST_PLACE = -298
"""Exponent of bit 0."""
LIMBS = 20
NOTE = LIMBS
"""Word that notes which infinities and NaN were among the terms: 1, 2 and 4 for +inf, -inf and NaN."""

MASK = 0xFFFFFFFF
"""Mask of a limb's bits."""

_POWERS = 2.0 ** np.arange(-149, 32 * LIMBS + LAST_PLACE)
"""Powers of two, from the last place of FP32 on."""


def new_sums(count: int) -> I64:
    """int64[count, LIMBS + 1]: so many sums, all zero."""
    return np.zeros((count, LIMBS + 1), np.int64)


@njit(inline="always")
def _special(bits: Any) -> Any:
    """An FP32 number that is not finite, from its bits."""
    if bits & 0x7FFFFF:
        return np.nan
    return -np.inf if bits & 0x80000000 else np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def note_of(value: float) -> int:
    """Note of a term that is not finite."""
    if value != value:
        return 4
    return 1 if value > 0 else 2


@njit(cache=True, nogil=True, error_model="numpy")
def of_note(note: int) -> Any:
    """Sum of terms with such a note."""
    return np.float32(np.nan if note > 2 else np.inf if note == 1 else -np.inf)


@njit(inline="always")
def _round_digits(digits: Any, top: int, bottom: int, negative: bool, rule: Any, spare: Any, words: Any) -> Any:
    """A magnitude rounded, with its sign. top, bottom: its highest and its lowest limb that is not zero. rule: that of
    a Format."""
    fraction_bits, least_place, limit = rule
    # The exponent of the limb as an FP64 number, which holds it exactly.
    spare[0] = digits[top]
    highest = 32 * top + (words[0] >> 52) - 1023
    # The result's last place: the fraction's, but never below that of subnormal numbers.
    place = max(highest + LAST_PLACE - fraction_bits, least_place)
    cut = place - LAST_PLACE
    limb, shift = cut >> 5, cut & 31
    # Limbs above the last one are zero.
    following = digits[min(limb + 1, LIMBS - 1)]
    quotient = (digits[limb] | (following & 0x7FFFFFFF) << 32) >> shift
    below = cut - 1
    limb, shift = below >> 5, below & 31
    digit = digits[limb]
    more = ((digit & ((np.int64(1) << shift) - 1)) != 0) | (bottom < limb)
    quotient += ((digit >> shift) & 1) & (np.int64(more) | quotient)
    # At most 2^24 times a power of two no smaller than 2^-149: exact.
    value = np.float64(quotient) * _POWERS[place + 149]
    if value >= limit:
        value = np.inf
    return np.float32(-value if negative and quotient else value)


@njit(cache=True, nogil=True, error_model="numpy")
def round_one(sums: Any, rule: Any, digits: Any, spare: Any, words: Any) -> Any:
    """`rounded` for one sum. rule: that of a Format. The rest is memory: int64[LIMBS], float64[1] and its bits as
    int64[1]."""
    note = sums[NOTE]
    if note:
        return of_note(note)
    negative = sums[LIMBS - 1] < 0
    carry = np.int64(1)
    top, bottom = -1, LIMBS
    for limb in range(LIMBS):
        v = sums[limb]
        if negative:
            v = (~v & MASK) + carry
            carry = v >> 32
            v &= MASK
        digits[limb] = v
        if v:
            top = limb
            bottom = min(bottom, limb)
    if top < 0:
        return np.float32(0.0)
    return _round_digits(digits, top, bottom, negative, rule, spare, words)


@njit(inline="always")
def _add_at(sums: Any, v: Any, place: int) -> None:
    """Add v * 2^place, v of 64 bits, in units of the last place. Limbs take 2^30 of these before they are carried."""
    limb, shift = place >> 5, place & 31
    low, high = (v & MASK) << shift, (v >> 32) << shift
    sums[limb] += low & MASK
    sums[limb + 1] += ((low >> 32) & MASK) + (high & MASK)
    sums[limb + 2] += high >> 32


@njit(cache=True, nogil=True, error_model="numpy")
def _carry(sums: Any) -> None:
    carry = np.int64(0)
    for limb in range(LIMBS - 1):
        v = sums[limb] + carry
        sums[limb] = v & MASK
        carry = v >> 32
    sums[LIMBS - 1] += carry


@njit(inline="always")
def _add_term(sums: Any, bits: Any) -> None:
    """The FP64 number with these bits, a multiple of 2^-298."""
    exponent = (bits >> 52) & 0x7FF
    if exponent == 0x7FF:
        if bits & 0xFFFFFFFFFFFFF:
            sums[NOTE] |= 4
        else:
            sums[NOTE] |= 2 if bits < 0 else 1
        return
    magnitude = bits & 0xFFFFFFFFFFFFF
    if exponent == 0:
        # Subnormal: a multiple of 2^-298 only if it is zero.
        return
    magnitude |= 0x10000000000000
    place = exponent - 1075 - LAST_PLACE
    if place < 0:
        # The bits shifted out are zeros.
        magnitude >>= min(-place, 63)
        place = 0
    _add_at(sums, -magnitude if bits < 0 else magnitude, place)


@njit(cache=True, nogil=True, error_model="numpy")
def _add_terms(terms: Any, sums: Any, start: int, stop: int) -> None:
    for r in range(start, stop):
        line, target = terms[r], sums[r]
        for t in range(len(line)):
            _add_term(target, line[t])
        _carry(target)


def add_sums(sums: I64, more: I64) -> None:
    """Adds sums to sums, of other terms: int64[n, LIMBS + 1] both. There are less than 2^30 terms in all."""
    sums[:, :LIMBS] += more[:, :LIMBS]
    for limb in range(LIMBS - 1):
        sums[:, limb + 1] += sums[:, limb] >> 32
        sums[:, limb] &= MASK
    sums[:, NOTE] |= more[:, NOTE]


def add_terms(sums: I64, terms: F64) -> None:
    """sums: int64[n, LIMBS + 1]; terms: float64[n, k], k <= 2^30, each a multiple of 2^-298 below 2^257 in magnitude
    (any product of two finite FP32 numbers is), or not finite. Adds a row to each sum."""
    bits = np.ascontiguousarray(terms).view(np.int64)
    in_parts(lambda start, stop: _add_terms(bits, sums, start, stop), len(sums), terms.size * 4)


@njit(cache=True, nogil=True, error_model="numpy")
def _add_placed(x: Any, index: Any, size: int, elements: Any, order: Any, sums: Any) -> None:
    """elements: ascending; order: the sum of each."""
    for outer in range(x.shape[0]):
        for t in range(x.shape[1]):
            for within in range(x.shape[2]):
                place = index[outer, t, within]
                if 0 <= place < size:
                    element = (outer * size + place) * x.shape[2] + within
                    at = np.searchsorted(elements, element)
                    if at < len(elements) and elements[at] == element:
                        _add_number(sums[order[at]], np.int64(x[outer, t, within]))
    for r in range(len(sums)):
        _carry(sums[r])


@njit(inline="always")
def _add_number(sums: Any, bits: Any) -> None:
    exponent = (bits >> 23) & 0xFF
    if exponent == 0xFF:
        sums[NOTE] |= note_of(_special(bits))
        return
    normal = 1 if exponent > 0 else 0
    magnitude = (bits & 0x7FFFFF) | (normal << 23)
    _add_at(sums, -magnitude if bits & 0x80000000 else magnitude, exponent - normal - 149 - LAST_PLACE)


def add_placed(sums: I64, x: F32, index: I64, size: int, elements: I64) -> None:
    """x: float32[A, K, B], index: int64[A, K, B]; elements: int64[n], flat indices of an output [A, size, B],
    each once. Adds to each sum, for the element [a, j, b], the x[a, k, b] with index[a, k, b] = j."""
    order = np.argsort(elements)
    _add_placed(np.ascontiguousarray(x).view(np.uint32), index, size, elements[order], order, sums)


@njit(cache=True, nogil=True, error_model="numpy")
def _round_sums(sums: Any, rule: Any, out: Any, start: int, stop: int) -> None:
    digits, spare = np.empty(LIMBS, np.int64), np.empty(1)
    words = spare.view(np.int64)
    for r in range(start, stop):
        out[r] = round_one(sums[r], rule, digits, spare, words)


def rounded(sums: I64, format: Format) -> F32:
    """sums: int64[n, LIMBS + 1] -> float32[n]: each rounded once to the format, to nearest, ties to even; overflow
    gives an infinity, a zero is +0. With NaN among the terms, or infinities of both signs, NaN; with infinities of one
    sign, that one."""
    out, rule = np.empty(len(sums), np.float32), format.rule
    in_parts(lambda start, stop: _round_sums(sums, rule, out, start, stop), len(sums), sums.size)
    return out
