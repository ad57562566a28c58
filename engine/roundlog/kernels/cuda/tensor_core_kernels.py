"""Products of matrices of BF16 or FP16 numbers as tensor cores add them, on CUDA, in Triton: by tensor cores, and in
integers where no tensor core of the arithmetic is, or where it is not known what one would give. docs/arithmetic.md
is the standard, `roundlog.kernels.tensor_core_products` the same on the CPU. Imports triton.

Native: a program multiplies a tile of one segment, `tl.dot` by `tl.dot` in the order of k, each on top of the one
before, from zero on. Nothing divides a segment: neither the grid, nor a choice of configurations: there is
one. A tile's last terms are completed with products of two zeros, which change nothing.

Measuring: a row of the left operand, or a column of the right one, has within a segment, of its exponents as encoded,

    H  the largest,
    l  the least of a number that is not zero,
    g  the least, of all groups with a number that is not zero, of the group's largest of such numbers,

and it has, or has not, zeros, subnormal numbers, and numbers that are not finite. With these of a row (r) and a column
(c), let F be the arithmetic's, m the least exponent of a normal operand, and

    B = the largest of  lr + lc;  gr + lc, if the column has no zeros;  lr + gc, if the row has no zeros.
    Z = m + Hc, if the row has zeros or subnormal numbers; m + Hr, if the column has; the larger one, if both have.

An element is left to tensor cores if all its numbers are finite, Hr + Hc + 12 <= 121, B >= F - 126 and, if there is a
Z, B > Z; B > Z + F if a subnormal number is there, and those of the format do not count. Then steps 1 to 8 give every
group a value:

* A term that is not normal, but c, has an exponent of at most Z. If a group has a product that is not zero, it has a
  normal one whose exponent is B or more. For lr + lc: the product's own exponent is no less, and above Z. For gr + lc:
  take the group's largest number of the row; the column's is not zero there; and both are normal, as the sum of their
  exponents is above Z. So E >= B, a normal term has the exponent E (step 4; c = 0 has -126, and completing zeros 2 m),
  and the result is a multiple of 2^(B - F). By B - F >= -126 it is zero or a normal number (step 8).
* If it has none, its result is c: a zero, or a multiple of 2^(B - F) and of 2^(2 m - F), as results of earlier groups
  are. E is c's exponent, which is normal, or at most Z < B, or 2 m; then c is a multiple of 2^(E - F) (step 4).
* A product with a subnormal operand is below 2^(Z + 1). Where those do not count, this is at most 2^(B - F), and B <= E
  in a group with such a product: it is truncated to nothing (step 6).
* Sums of 2,048 products are below 2^(Hr + Hc + 13), so that no exponent is above 121 (step 3).

Emulating: a program computes a square of elements, in all groups of a segment, if a row and a column of it are not
left to tensor cores: a number's significand is below 2^11, a product's below 2^22, what is kept of it below 2^(F + 2),
so that all of these are int32; and sums are int64. The conversion to FP32 is exact, once the bits that it loses are
zero where they decide: a magnitude x with its first bit in place 24 + j, j >= 0, is rounded down by x & ~(x >> 24),
whose bit j, half of the last that is kept, is zero. Its exponent is then moved, as an integer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from roundlog.definitions.tensor_core import LARGEST_EXPONENT, LEAST_EXPONENT
from roundlog.kernels.tensor_core_products import GroupArithmetic
from roundlog.number_format import BFLOAT16, FLOAT16, Format

ROWS, COLUMNS, TERMS = 128, 128, 64
"""Tile of a program for tensor cores, and the terms of one of its dots: whole groups of every arithmetic."""
WARPS, STAGES = 8, 3
SQUARE = 16
"""Rows, and columns, of a program that emulates."""
_LINES, _GROUPS = 16, 8
"""Lines of a program that measures, and groups that it reads at once."""

_FORMATS = {torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}
_GROWTH = tl.constexpr(12)
"""The exponent of a sum of 2,048 products is above the products' by no more than this."""
_FAR = tl.constexpr(1 << 20)
"""An exponent of nothing."""
_ZERO, _SUBNORMAL, _NOT_FINITE = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4)
_LARGEST, _LEAST = tl.constexpr(LARGEST_EXPONENT), tl.constexpr(LEAST_EXPONENT)
_NAN, _SIGN = tl.constexpr(0x7FC00000), tl.constexpr(-(2**31))


@triton.jit
def _multiply(
    a, b, out, rows, columns, terms, batches, a_batch, a_row, a_term, b_batch, b_term, b_column,
    of_segment: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr,
):  # fmt: skip
    """One tile of one segment of one matrix of a batch, by tensor cores."""
    program = tl.program_id(0).to(tl.int64)
    across, down = tl.cdiv(columns, wide), tl.cdiv(rows, high)
    matrix = program // (across * down)
    batch, first = matrix % batches, matrix // batches * of_segment
    row = program // across % down * high + tl.arange(0, high)
    column = program % across * wide + tl.arange(0, wide)
    end = tl.minimum(terms, first + of_segment)
    left = a + batch * a_batch + row[:, None] * a_row
    right = b + batch * b_batch + column[None, :] * b_column
    sums = tl.zeros((high, wide), tl.float32)
    for begin in range(first, end, deep):
        k = begin + tl.arange(0, deep)
        x = tl.load(left + k[None, :] * a_term, mask=(row < rows)[:, None] & (k < end)[None, :], other=0.0)
        y = tl.load(right + k[:, None] * b_term, mask=(k < end)[:, None] & (column < columns)[None, :], other=0.0)
        sums = tl.dot(x, y, sums, out_dtype=tl.float32)
    at = (matrix * rows + row[:, None]) * columns + column[None, :]
    # + 0: a sum that is zero has no sign.
    tl.store(out + at, sums + 0.0, mask=(row < rows)[:, None] & (column < columns)[None, :])


@triton.jit
def _measure(
    x, ends, lines, terms, batches, of_batch, of_line, of_term,
    of_segment: tl.constexpr, group: tl.constexpr, groups: tl.constexpr, many: tl.constexpr,
    fraction: tl.constexpr, infinite: tl.constexpr, least: tl.constexpr,
):  # fmt: skip
    """ends: int32[4, segments, batches, lines], to be written: H, l, g, and what kinds of numbers there are."""
    program = tl.program_id(0).to(tl.int64)
    down = tl.cdiv(lines, many)
    matrix = program // down
    batch, first = matrix % batches, matrix // batches * of_segment
    line = program % down * many + tl.arange(0, many)
    end = tl.minimum(terms, first + of_segment)
    of_terms = tl.arange(0, groups)[None, :, None] * group + tl.arange(0, group)[None, None, :]
    words = x + batch * of_batch + line[:, None, None] * of_line
    largest, lowest = tl.full([many], least, tl.int32), tl.full([many], _FAR, tl.int32)
    of_groups, kinds = lowest, tl.zeros([many], tl.int32)
    for begin in range(first, end, groups * group):
        k = begin + of_terms
        inside = (line < lines)[:, None, None] & (k < end)
        word = tl.load(words + k * of_term, mask=inside, other=0).to(tl.int32) & 0x7FFF
        field = word >> fraction
        exponent = tl.maximum(field, 1) + (least - 1)
        there = word != 0
        largest = tl.maximum(largest, tl.max(tl.max(exponent, axis=2), axis=1))
        lowest = tl.minimum(lowest, tl.min(tl.min(tl.where(there, exponent, _FAR), axis=2), axis=1))
        top = tl.max(tl.where(there, exponent, -_FAR), axis=2)
        of_groups = tl.minimum(of_groups, tl.min(tl.where(top > -_FAR, top, _FAR), axis=1))
        kind = tl.where(inside & (word == 0), _ZERO, 0)
        kind += tl.where((field == 0) & there, _SUBNORMAL, 0) + tl.where(field == infinite, _NOT_FINITE, 0)
        for bit in tl.static_range(3):
            kinds |= tl.max(tl.max(kind & (1 << bit), axis=2), axis=1)
    size = tl.num_programs(0).to(tl.int64) // down * lines
    at = ends + matrix * lines + line
    tl.store(at, largest, mask=line < lines)
    tl.store(at + size, lowest, mask=line < lines)
    tl.store(at + 2 * size, of_groups, mask=line < lines)
    tl.store(at + 3 * size, kinds, mask=line < lines)


@triton.jit
def ends_of(ends, matrix, lines, line, size):
    """H, l, g and kinds of lines; of none those of zeros."""
    at = ends + matrix * lines + line
    inside = line < lines
    largest, lowest = tl.load(at, mask=inside, other=-_FAR), tl.load(at + size, mask=inside, other=_FAR)
    return (
        largest,
        lowest,
        tl.load(at + 2 * size, mask=inside, other=_FAR),
        tl.load(at + 3 * size, mask=inside, other=0),
    )


@triton.jit
def is_left(of_row, of_column, kept: tl.constexpr, subnormals: tl.constexpr, least: tl.constexpr):
    """Whether an element of a row and a column is left to tensor cores."""
    high, low, grouped, kinds = of_row
    others_high, others_low, others_grouped, others_kinds = of_column
    bound = low + others_low
    bound = tl.maximum(bound, tl.where(others_kinds & _ZERO == 0, grouped + others_low, -_FAR))
    bound = tl.maximum(bound, tl.where(kinds & _ZERO == 0, low + others_grouped, -_FAR))
    alignment = tl.where(kinds & (_ZERO | _SUBNORMAL) != 0, least + others_high, -_FAR)
    alignment = tl.maximum(alignment, tl.where(others_kinds & (_ZERO | _SUBNORMAL) != 0, least + high, -_FAR))
    together = kinds | others_kinds
    if not subnormals:
        alignment += tl.where(together & _SUBNORMAL != 0, kept, 0)
    known = (together & _NOT_FINITE == 0) & (high + others_high + _GROWTH <= _LARGEST)
    return known & (bound >= _LEAST + kept) & (bound > alignment)


@triton.jit
def _keep(significand, shift):
    """(significand * 2^shift, truncated toward zero, and whether bits were lost)."""
    down = tl.minimum(tl.maximum(-shift, 0), 31)
    kept = significand << tl.maximum(shift, 0) >> down
    return kept, (shift < 0) & (kept << down != significand)


@triton.jit
def _emulate(
    a, b, out, of_rows, of_columns, rows, columns, terms, batches, a_batch, a_row, a_term, b_batch, b_term, b_column,
    measured: tl.constexpr, of_segment: tl.constexpr, square: tl.constexpr, group: tl.constexpr, kept: tl.constexpr,
    subnormals: tl.constexpr, fraction: tl.constexpr, infinite: tl.constexpr, least: tl.constexpr,
):  # fmt: skip
    """One square of one segment of one matrix of a batch, if it is not left to tensor cores. out: the words of FP32.
    of_rows, of_columns: as `_measure` writes them, if they are measured."""
    program = tl.program_id(0).to(tl.int64)
    across, down = tl.cdiv(columns, square), tl.cdiv(rows, square)
    matrix = program // (across * down)
    batch, first = matrix % batches, matrix // batches * of_segment
    row = program // across % down * square + tl.arange(0, square)
    column = program % across * square + tl.arange(0, square)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    needed = 1
    if measured:
        matrices = tl.num_programs(0).to(tl.int64) // (across * down)
        high, low, grouped, kinds = ends_of(of_rows, matrix, rows, row, matrices * rows)
        others = ends_of(of_columns, matrix, columns, column, matrices * columns)
        its = high[:, None], low[:, None], grouped[:, None], kinds[:, None]
        others = others[0][None, :], others[1][None, :], others[2][None, :], others[3][None, :]
        left = is_left(its, others, kept, subnormals, least)
        needed = tl.sum(tl.sum((inside & ~left).to(tl.int32), axis=1), axis=0)
    if needed > 0:
        end = tl.minimum(terms, first + of_segment)
        of_terms = tl.arange(0, group)[None, None, :]
        left_words = a + batch * a_batch + row[:, None, None] * a_row
        right_words = b + batch * b_batch + column[None, :, None] * b_column
        c, missing = tl.zeros([square, square], tl.int32), tl.zeros([square, square], tl.int32)
        for begin in range(first, end, group):
            k = begin + of_terms
            v = tl.load(left_words + k * a_term, mask=(row < rows)[:, None, None] & (k < end), other=0).to(tl.int32)
            w = tl.load(right_words + k * b_term, mask=(column < columns)[None, :, None] & (k < end), other=0)
            w = w.to(tl.int32)
            field, other_field = (v & 0x7FFF) >> fraction, (w & 0x7FFF) >> fraction
            hidden = 1 << fraction
            significand = (v & (hidden - 1)) | tl.where(field > 0, hidden, 0)
            other_significand = (w & (hidden - 1)) | tl.where(other_field > 0, hidden, 0)
            exponent = tl.maximum(field, 1) + tl.maximum(other_field, 1) + 2 * (least - 1)
            normal = (field > 0) & (other_field > 0)
            finite = (field < infinite) & (other_field < infinite)
            # c is a normal number or zero.
            of_c = (c >> 23) & 0xFF
            c_exponent = tl.maximum(of_c, 1) - 127
            largest = tl.maximum(tl.max(exponent, axis=2), tl.maximum(c_exponent, 2 * least))
            certain = tl.max(tl.where(normal, exponent, -_FAR), axis=2) == largest
            certain = certain | ((of_c > 0) & (c_exponent == largest))
            place = largest - kept
            n, lost = _keep(significand * other_significand, exponent - 2 * fraction - place[:, :, None])
            of_c_kept, c_lost = _keep((c & 0x7FFFFF) | tl.where(of_c > 0, 1 << 23, 0), c_exponent - 23 - place)
            total = tl.sum(tl.where(v ^ w < 0, -n, n).to(tl.int64), axis=2)
            total += tl.where(c < 0, -of_c_kept, of_c_kept).to(tl.int64)
            uncertain = (tl.max(lost.to(tl.int32), axis=2) > 0) | c_lost
            wrong = ~finite
            if not subnormals:
                wrong = wrong | (~normal & (n > 0))
            missing |= tl.max(wrong.to(tl.int32), axis=2) | (largest > _LARGEST).to(tl.int32)
            missing |= (uncertain & ~certain).to(tl.int32)
            magnitude = tl.abs(total)
            word = (magnitude & ~(magnitude >> 24)).to(tl.float32).to(tl.int32, bitcast=True)
            valued = (total != 0) & ((word >> 23) + place > 0)
            missing |= ((total != 0) & ~valued).to(tl.int32)
            c = tl.where(valued, word + (place << 23), 0) | tl.where(valued & (total < 0), _SIGN, 0)
        at = (matrix * rows + row[:, None]) * columns + column[None, :]
        tl.store(out + at, tl.where(missing > 0, _NAN, c), mask=inside)


def segment_sums(a: torch.Tensor, b: torch.Tensor, arithmetic: GroupArithmetic, native: bool) -> torch.Tensor:
    """Sums of the products of every segment, f32[segments, ..., M, N]; NaN where there is no value, and nowhere else.

    a: [..., M, K], b: [..., K, N], both bf16 or both fp16, of any strides, on one device, with the same batches, in at
    most one dimension. native: whether the device's tensor cores are those of the arithmetic; what they are not known
    to give is emulated."""
    format = _FORMATS[a.dtype]
    batched = a.ndim == 3
    rows, terms, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    segments = triton.cdiv(terms, arithmetic.segment_terms)
    out = torch.empty((segments, *a.shape[:-1], columns), dtype=torch.float32, device=a.device)
    if not out.numel():
        return out
    x, y = (a, b) if batched else (a[None], b[None])
    batches = len(x)
    matrices = segments * batches
    sizes = rows, columns, terms, batches, *x.stride(), *y.stride()
    form = form_of(format)
    of_segment, group = arithmetic.segment_terms, arithmetic.terms
    words, other_words = (one.view(torch.int16) for one in (x, y))
    with torch.cuda.device_of(a):
        ends = [out, out]
        if native:
            ends = [
                measured_lines(words, of_segment, group, form),
                measured_lines(other_words.mT, of_segment, group, form),
            ]
            tiles = matrices * triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS)
            _multiply[(tiles,)](
                x, y, out, *sizes, of_segment=of_segment, high=ROWS, wide=COLUMNS, deep=TERMS,
                num_warps=WARPS, num_stages=STAGES, enable_fp_fusion=False,
            )  # fmt: skip
        squares = matrices * triton.cdiv(rows, SQUARE) * triton.cdiv(columns, SQUARE)
        _emulate[(squares,)](
            words, other_words, out.view(torch.int32), *ends, *sizes, measured=native, of_segment=of_segment,
            square=SQUARE, group=group, kept=arithmetic.fraction_bits, subnormals=arithmetic.subnormals, **form,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out


def form_of(format: Format) -> dict[str, int]:
    """A format as the kernels take it."""
    return {
        "fraction": format.fraction_bits,
        "infinite": (1 << format.exponent_bits) - 1,
        "least": format.least_exponent,
    }


def measured_lines(words: torch.Tensor, of_segment: int, group: int, form: dict[str, int]) -> torch.Tensor:
    """int32[4, segments, batches, lines] of words [batches, lines, terms]."""
    batches, lines, terms = words.shape
    segments = triton.cdiv(terms, of_segment)
    ends = torch.empty((4, segments, batches, lines), dtype=torch.int32, device=words.device)
    _measure[(segments * batches * triton.cdiv(lines, _LINES),)](
        words, ends, lines, terms, batches, *words.stride(), of_segment=of_segment, group=group, groups=_GROUPS,
        many=_LINES, **form, enable_fp_fusion=False,
    )  # fmt: skip
    return ends
