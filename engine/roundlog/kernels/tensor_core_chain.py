"""Sums of products as tensor cores add them, one element after the other, in integers: what is near the ends of the
range, or of a wide range, where `roundlog.kernels.tensor_core_products` does not take vectors.

docs/arithmetic.md is the standard, and `roundlog.adjudication.tensor_core_groups` its reference. A group has no value
where a number is not finite; where an exponent is above LARGEST_EXPONENT; where no normal number has the largest
exponent, and bits would be lost; where a subnormal number counts that is of another format than those whose subnormal
numbers were seen; and where the result is below 2^LEAST_EXPONENT and not zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from roundlog.definitions.tensor_core import LARGEST_EXPONENT, LEAST_EXPONENT

NO_VALUE = -1
_FRACTION, _BIAS = 23, 127


@njit(inline="always")
def _kept(significand: int, shift: int) -> int:
    """A magnitude times 2^shift, without what is behind the point."""
    if shift >= 0:
        return significand << min(shift, 63)
    return significand >> min(-shift, 63)


@njit(cache=True, nogil=True, error_model="numpy")
def sum_of_groups(
    x: Any, first: int, step: int, y: Any, other: int, other_step: int, terms: int, form: Any, arithmetic: Any
) -> int:
    """The bits of an FP32 number, +0 for zero: what groups make, on top of zero, of the products of the words x[first +
    k * step] and y[other + k * other_step], k < `terms`. Or NO_VALUE.

    form: as in `roundlog.kernels.tensor_core_packing`; arithmetic: fraction bits that are kept, products of a group,
    whether subnormal operands may count, and the exponent of the least normal operand."""
    fraction_bits, infinite = form
    kept_bits, of_group, subnormals, least = arithmetic
    hidden = 1 << fraction_bits
    sign_bit = (infinite + 1) * hidden
    # c is significand * 2^(exponent - 23), a normal number or zero.
    negative, significand, exponent = False, 0, LEAST_EXPONENT
    for begin in range(0, terms, of_group):
        end = min(begin + of_group, terms)
        largest = max(exponent, 2 * least)
        certain = significand > 0 and exponent >= 2 * least
        for k in range(begin, end):
            a, b = np.int64(x[first + k * step]) & (sign_bit - 1), np.int64(y[other + k * other_step]) & (sign_bit - 1)
            field, other_field = a >> fraction_bits, b >> fraction_bits
            if field == infinite or other_field == infinite:
                return NO_VALUE
            together = max(field, 1) + max(other_field, 1) + 2 * (least - 1)
            if together >= largest:
                normal = field > 0 and other_field > 0
                certain = normal or (certain and together == largest)
                largest = together
        if largest > LARGEST_EXPONENT:
            return NO_VALUE
        place = largest - kept_bits
        shift = exponent - _FRACTION - place
        total = _kept(significand, shift)
        lost = significand > 0 and _kept(total, -shift) != significand
        total = -total if negative else total
        for k in range(begin, end):
            v, w = np.int64(x[first + k * step]), np.int64(y[other + k * other_step])
            a, b = v & (sign_bit - 1), w & (sign_bit - 1)
            field, other_field = a >> fraction_bits, b >> fraction_bits
            normal = field > 0 and other_field > 0
            a, b = (a & (hidden - 1)) | (hidden if field else 0), (b & (hidden - 1)) | (hidden if other_field else 0)
            product = a * b
            shift = max(field, 1) + max(other_field, 1) + 2 * (least - 1) - 2 * fraction_bits - place
            kept = _kept(product, shift)
            lost |= product > 0 and _kept(kept, -shift) != product
            if kept > 0 and not normal and not subnormals:
                return NO_VALUE
            total += -kept if (v ^ w) & sign_bit else kept
        if lost and not certain:
            return NO_VALUE
        negative, significand, exponent = total < 0, abs(total), place + _FRACTION
        if significand == 0:
            exponent = LEAST_EXPONENT
            continue
        while significand >= 2 << _FRACTION:
            significand >>= 1
            exponent += 1
        while significand < 1 << _FRACTION:
            significand <<= 1
            exponent -= 1
        if exponent < LEAST_EXPONENT:
            return NO_VALUE
    if significand == 0:
        return 0
    bits = ((exponent + _BIAS) << _FRACTION) | (significand - (1 << _FRACTION))
    return bits | (1 << 31) if negative else bits
