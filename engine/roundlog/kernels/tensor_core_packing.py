"""Operands of products as tensor cores add them, packed for `roundlog.kernels.tensor_core_microkernel`.

A line is a row of the left operand or a column of the right one, a word a number of it as it lies in memory: the bits
of BF16, FP16 or TF32. The field of a word is that of its exponent, and 1 for zeros and subnormal numbers, whose
exponent is that of the least normal number. Numbers are scaled by a power of two for each line, so that the largest has
the field LEFT or RIGHT of FP32; the distance of a field from the line's largest is what codes are made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types

from roundlog.kernels.gemm_microkernel import loop_over
from roundlog.kernels.number_words import constant, everywhere, instructions, intrinsic_of, load_vector
from roundlog.kernels.short_packing import cross_words
from roundlog.kernels.tensor_core_microkernel import TOP, GroupCode
from roundlog.number_format import Format

TensorCoreWords = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

_LEFT = 184
_RIGHT = TOP + 127 - _LEFT
"""FP32's fields of a line's largest number."""
CHUNK = 64
"""Terms that are packed together, for all lines, before the next ones. A multiple of every group."""
_NOTHING = 255
"""Distance of a zero; those of numbers are at most 253."""

_BYTE, _WORD, _INDEX, _SINGLE = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FRACTION = 23


HAS_ZERO, HAS_SUBNORMAL, NOT_FINITE = 1, 2, 4
"""Kinds of numbers that a line may have."""


def _bits(x: Any) -> int:
    return int(x.dtype.bitwidth)


def _magnitudes(code: GroupCode, x: Any, address: Any) -> tuple[Any, Any]:
    """A vector's words without their signs, and with them, as an array such as x has them."""
    kind = ir.VectorType(ir.IntType(_bits(x)), code.width)
    words = load_vector(code.builder, address, kind, _bits(x) // 8)
    return code.builder.and_(words, code.all(kind, (1 << (_bits(x) - 1)) - 1)), words


@instructions(types.void)
def find_ends(builder: Any, lanes: Any, x: Any, source: Any, term: Any, terms: Any, ends: Any) -> None:
    """ends: uint32[3, vector], the largest magnitude of a vector's lines, as words, the least, and the least that is
    not zero, less one, or all bits. Words of an array such as x lie side by side, the next term's `term` bytes on;
    terms > 0."""
    code = GroupCode(builder, len(lanes))
    kind = ir.VectorType(ir.IntType(_bits(x)), code.width)
    one = code.all(kind, 1)

    def step(k: Any, found: list[Any]) -> list[Any]:
        words, _ = _magnitudes(code, x, builder.add(source, builder.mul(k, term)))
        following = [intrinsic_of(builder, "umax", found[0], words), intrinsic_of(builder, "umin", found[1], words)]
        return [*following, intrinsic_of(builder, "umin", found[2], builder.sub(words, one))]

    for number, found in enumerate(loop_over(builder, terms, [code.all(kind, 0), *[code.all(kind, -1)] * 2], step)):
        wide = found if _bits(x) == 32 else builder.zext(found, code.words)
        code.store(code.at(ends, 4 * number * code.width), wide, 4)


@instructions(types.void)
def pack_vector(
    builder: Any,
    lanes: Any,
    right: Any,
    x: Any,
    source: Any,
    term: Any,
    terms: Any,
    fraction_bits: Any,
    fields: Any,
    numbers: Any,
    codes: Any,
    width: Any,
) -> None:
    """Numbers and codes of a vector's lines, from words as in `find_ends`, whose fraction has `fraction_bits`.

    fields: int32[vector], the lines' largest; numbers: float32[terms, width], from the vector's place on; codes: uint8
    likewise; both are aligned to a vector. right: `(0,)` for the right operand, `()` for the left one."""
    code = GroupCode(builder, len(lanes))
    bits = _bits(x)
    fraction = everywhere(builder, builder.trunc(fraction_bits, _WORD), code.width)
    missing = builder.sub(code.all(code.words, _FRACTION), fraction)
    largest = code.load(fields, code.words, 4)
    # Two factors, since one may be too large for FP32.
    exponent = builder.sub(code.all(code.words, _RIGHT if len(right) else _LEFT), largest)
    half = builder.ashr(exponent, code.all(code.words, 1))
    factors = [
        builder.bitcast(
            builder.shl(builder.add(one, code.all(code.words, 127)), code.all(code.words, _FRACTION)), code.singles
        )
        for one in (half, builder.sub(exponent, half))
    ]

    def step(k: Any, _: list[Any]) -> list[Any]:
        magnitudes, words = _magnitudes(code, x, builder.add(source, builder.mul(k, term)))
        if bits < 32:
            magnitudes, words = (builder.zext(one, code.words) for one in (magnitudes, words))
            words = builder.shl(words, code.all(code.words, 32 - bits))
        sign = builder.and_(words, code.all(code.words, -1 << 31))
        number = builder.bitcast(builder.or_(builder.shl(magnitudes, missing), sign), code.singles)
        for factor in factors:
            number = builder.fmul(number, factor)
        place = builder.mul(k, width)
        code.store(builder.add(numbers, builder.mul(place, constant(4))), number, 4 * code.width)
        field = intrinsic_of(builder, "umax", builder.lshr(magnitudes, fraction), code.all(code.words, 1))
        zero = builder.icmp_unsigned("==", magnitudes, code.all(code.words, 0))
        distance = builder.select(zero, code.all(code.words, _NOTHING), builder.sub(largest, field))
        found = builder.trunc(distance, code.bytes)
        if not len(right):
            found = intrinsic_of(builder, "usub.sat", code.all(code.bytes, TOP), found)
        code.store(builder.add(codes, place), found, code.width)
        return []

    loop_over(builder, terms, [], step)


@njit(cache=True, nogil=True, error_model="numpy")
def _gather(lanes: Any, x: Any, at: int, line: int, term: int, lines: int, terms: int, words: Any) -> None:
    """words[k][n] = x[at + n * line + k * term], words: [terms, vector], 0 where there is no line n."""
    width = 2 * len(lanes)
    done = 0
    if term == 1 and lines == width:
        size = x.itemsize
        done = terms - terms % width
        for k in range(0, done, width):
            into = words.ctypes.data + k * width * size
            cross_words(lanes, x, x.ctypes.data + (at + k) * size, line * size, into, width * size)
    for k in range(done, terms):
        for n in range(lines):
            words[k * width + n] = x[at + n * line + k * term]
        for n in range(lines, width):
            words[k * width + n] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def pack_group_lines(
    lanes: Any,
    right: Any,
    x: Any,
    at: int,
    line: int,
    term: int,
    lines: int,
    terms: int,
    padded: int,
    vectors: int,
    form: Any,
    room: Any,
    fields: Any,
    numbers: Any,
    codes: Any,
) -> None:
    """Strips of so many vectors of lines, [chunk][strip][k][vectors * vector], of words x[at + l * line + k * term],
    `terms` > 0; from there to `padded`, and where there is no line, zeros. All chunks but the last have CHUNK terms.

    form: fraction bits and the largest field of the operands' format; room: x's words, [terms * vector]; fields: three
    int32[lines], with room for whole strips: the largest field, which is 1 for a line of zeros, the least of a number
    that is not zero, or the largest, and the kinds of numbers that there are; numbers: float32, codes: uint8."""
    fraction_bits, infinite = form
    largest, least, kind = fields
    vector = 2 * len(lanes)
    width, size = vectors * vector, x.itemsize
    nothing = np.uint8(255) if len(right) else np.uint8(0)
    ends = np.empty(3 * vector, dtype=np.uint32)
    least_normal = 1 << fraction_bits
    tall = -(-lines // width) * width
    for begin in range(0, tall, vector):
        some = max(0, min(vector, lines - begin))
        if some == vector and line == 1:
            source, step = x.ctypes.data + (at + begin) * size, term * size
        else:
            _gather(lanes, x, at + begin * line, line, term, some, terms, room)
            source, step = room.ctypes.data, vector * size
        find_ends(lanes, x, source, step, terms, ends.ctypes.data)
        for n in range(vector):
            most, lowest, other = np.int64(ends[n]), np.int64(ends[vector + n]), np.int64(ends[2 * vector + n]) + 1
            largest[begin + n] = max(most >> fraction_bits, 1)
            least[begin + n] = max(other >> fraction_bits, 1) if most > 0 else largest[begin + n]
            found = HAS_ZERO if lowest == 0 else 0
            if most > 0 and other < least_normal:
                found |= HAS_SUBNORMAL
            if most >> fraction_bits == infinite:
                found |= NOT_FINITE
            kind[begin + n] = found
        of_fields = largest.ctypes.data + begin * 4
        for first in range(0, padded, CHUNK):
            together, here = min(CHUNK, padded - first), max(0, min(CHUNK, terms - first))
            strip = first * tall + begin // width * width * together + begin % width
            into, of_codes = numbers.ctypes.data + strip * 4, codes.ctypes.data + strip
            if here:
                of_words = source + first * step
                pack_vector(lanes, right, x, of_words, step, here, fraction_bits, of_fields, into, of_codes, width)
            for k in range(here, together):
                numbers[strip + k * width : strip + k * width + vector] = np.float32(0.0)
                codes[strip + k * width : strip + k * width + vector] = nothing


def field_form(format: Format) -> tuple[int, int]:
    """Fraction bits of a format's words and the field of what is not finite, as `pack_group_lines` takes them. A number
    of more than 16 bits is stored as the FP32 number that it is."""
    return (format.fraction_bits if format.itemsize < 4 else _FRACTION), (1 << format.exponent_bits) - 1
