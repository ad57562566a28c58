"""Products of FP32 matrices by sums of 8-bit integers on CUDA, in Triton. Imports triton. docs/numerics.md ("Products
by integers on CUDA") has the proof; `roundlog.kernels.cuda.integer_products` chooses how many digits.

Slicing: a program reads some lines (rows of A, columns of B) twice: for their largest magnitudes, and to cut every
number, a multiple of 2^-8n of the line's power of two, into n digits of base 256 between -128 and 127, from the last
one on. What products of digits leave out is bounded by sums of magnitudes of digits and of rests.

Multiplying: a program multiplies a tile. `tl.dot` of digits adds in int32, exactly: a weight has at most 6 products of
digits, none above 2^14, so that 2^14 terms stay below 2^31. Sums of a weight are added in int64. Both ends of the
interval are converted to FP32 to nearest (`cvt.rn.f32.s64`), and compared after rounding to the output's format; the
line's powers of two change their exponents alone, in the range of normal numbers. All else is left in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from roundlog.number_format import Format

ROWS, COLUMNS, TERMS = 128, 32, 32
"""Tile of a program that multiplies, and terms of one of its dots."""
WARPS, STAGES = 8, 3
CHUNK = 1 << 14
"""Terms whose products int32 adds."""
MOST_TERMS = 1 << 20
"""Sums of so many reaches err by less than their slack."""

_LINES = tl.constexpr(32)
"""Lines of a program that slices."""
_INFINITY = tl.constexpr(0x7F800000)
_FINITE = tl.constexpr(254)
_BIAS = tl.constexpr(125)
"""A line's numbers are below 127/256 of 2^(its field - 125)."""
_SLACK = tl.constexpr(1.0 + 2.0**-6)
"""For rests, which are little more than half of a digit's unit, and for sums of reaches and squares."""
_EVALUATED = tl.constexpr(2.0**-50)
"""More than the roundings of an interval's ends, on both machines that look at it."""


@triton.jit
def _slice(
    x, digits, fields, reaches, squares, rows, terms, lines, padded, of_batch, of_row, of_term,
    kept: tl.constexpr, cut: tl.constexpr, left: tl.constexpr, place: tl.constexpr, deep: tl.constexpr,
):  # fmt: skip
    slices: tl.constexpr = len(kept)
    line = tl.program_id(0).to(tl.int64) * _LINES + tl.arange(0, _LINES)
    numbers = x + (line // rows * of_batch + line % rows * of_row)[:, None]
    inside = (line < lines)[:, None]
    largest = tl.zeros([_LINES], tl.int32)
    for first in range(0, terms, deep):
        term = first + tl.arange(0, deep).to(tl.int64)[None, :]
        words = tl.load(numbers + term * of_term, mask=inside & (term < terms), other=0)
        largest = tl.maximum(largest, tl.max(words & 0x7FFFFFFF, axis=1))
    # One more from 127/128 of the next power of two on: the first digit could become 128.
    field = tl.maximum(tl.minimum(largest, _INFINITY) + (1 << 17) >> 23, 1)
    reach, square = tl.zeros([_LINES], tl.float32), tl.zeros([_LINES], tl.float32)
    for first in range(0, padded, deep):
        term = first + tl.arange(0, deep).to(tl.int64)[None, :]
        words = tl.load(numbers + term * of_term, mask=inside & (term < terms), other=0)
        exponent = words >> 23 & 0xFF
        significand = (words & 0x7FFFFF | tl.where(exponent > 0, 1 << 23, 0)).to(tl.int64)
        below = field[:, None] - tl.maximum(exponent, 1) + (25 - 8 * slices)
        right = tl.minimum(tl.maximum(below, 0), 26).to(tl.int64)
        whole = significand << tl.maximum(-below, 0).to(tl.int64)
        rest = whole + ((tl.full(right.shape, 1, tl.int64) << right) >> 1) >> right
        lost = tl.where(rest << right != whole, 0.5, 0.0)
        rest = tl.where(words < 0, -rest, rest)
        wide = rest.to(tl.float32) * 2.0 ** (-8 * slices)
        square += tl.sum(wide * wide, axis=1)
        low = tl.zeros(rest.shape, tl.int64)
        missed = lost * (2.0 ** (8 * (place - slices) - 1) if left else 0.0)
        for at in tl.static_range(slices, 0, -1):
            for of in tl.static_range(1, cut + 1):
                # The rest of B behind the digits that meet the digit `of` of A, which is 2^7 at most.
                if (not left) and kept[of - 1] == at:
                    missed += (tl.abs(low).to(tl.float32) + lost) * 2.0 ** (7 + 8 * (place - of - slices))
            digit = ((rest + 128) & 255) - 128
            rest = (rest - digit) >> 8
            low += digit << 8 * (slices - at)
            if left and at > cut:
                missed += tl.abs(digit).to(tl.float32) * 2.0 ** (8 * (place - at - kept[at - 1]) - 1)
            at_digits = digits + (line[:, None] * slices + (at - 1)) * padded + term
            tl.store(at_digits, digit.to(tl.int8), mask=inside & (term < padded))
        reach += tl.sum(missed, axis=1)
    tl.store(fields + line, field, mask=line < lines)
    tl.store(reaches + line, reach * _SLACK, mask=line < lines)
    tl.store(squares + line, square * _SLACK, mask=line < lines)


@triton.jit
def _multiply(
    a, b, out, doubts, row_fields, column_fields, row_reaches, column_reaches, row_norms, column_norms,
    rows, columns, padded, batches, missed, ratio: tl.float32,
    kept: tl.constexpr, weights: tl.constexpr, place: tl.constexpr, dropped: tl.constexpr, least: tl.constexpr,
    most: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """One tile of one product of a batch."""
    slices: tl.constexpr = len(kept)
    program = tl.program_id(0).to(tl.int64)
    across, down = tl.cdiv(columns, wide), tl.cdiv(rows, high)
    batch = program // (across * down)
    row = program // across % down * high + tl.arange(0, high)
    column = program % across * wide + tl.arange(0, wide)
    line, other = batch * rows + row, batch * columns + column
    ours = a + line[:, None] * (slices * padded) + tl.arange(0, deep)[None, :]
    theirs = b + other[None, :] * (slices * padded) + tl.arange(0, deep)[:, None]
    total = tl.zeros((high, wide), tl.int64)
    for start in range(0, padded, chunk):
        sums = ()
        for _ in tl.static_range(weights):
            sums = sums + (tl.zeros((high, wide), tl.int32),)  # type: ignore[assignment]  # noqa: RUF005
        for first in range(start, tl.minimum(start + chunk, padded), deep):
            lefts, rights = (), ()
            for at in tl.static_range(slices):
                behind = first + at * padded
                x = tl.load(ours + behind, mask=(row < rows)[:, None], other=0)
                y = tl.load(theirs + behind, mask=(column < columns)[None, :], other=0)
                lefts, rights = lefts + (x,), rights + (y,)  # type: ignore[assignment]  # noqa: RUF005
            for at in tl.static_range(slices):
                for of in tl.static_range(slices):
                    if of < kept[at]:
                        more = tl.dot(lefts[at], rights[of], sums[at + of], out_dtype=tl.int32)
                        sums = sums[: at + of] + (more,) + sums[at + of + 1 :]  # noqa: RUF005
        for weight in tl.static_range(weights):
            if weight + 2 > place:
                total += sums[weight].to(tl.int64) >> 8 * (weight + 2 - place)
            else:
                total += sums[weight].to(tl.int64) << 8 * (place - weight - 2)
    field = tl.load(row_fields + line, mask=row < rows, other=0)[:, None]
    others = tl.load(column_fields + other, mask=column < columns, other=0)[None, :]
    norm = tl.load(row_norms + line, mask=row < rows, other=0.0)[:, None]
    norms = norm * tl.load(column_norms + other, mask=column < columns, other=0.0)[None, :]
    reach = tl.load(row_reaches + line, mask=row < rows, other=0.0)[:, None]
    reach += tl.load(column_reaches + other, mask=column < columns, other=0.0)[None, :]
    reach += norms * ratio + tl.abs(total).to(tl.float32) * _EVALUATED
    away = reach.to(tl.int64) + missed
    low = (total - away).to(tl.float32).to(tl.int32, bitcast=True)
    high_end = (total + away).to(tl.float32).to(tl.int32, bitcast=True)
    # Where FP32 may have rounded to a tie of the format, the two ways to round it differ.
    half: tl.constexpr = (1 << dropped) >> 1
    less: tl.constexpr = half - 1 if half else 0
    nearest = (high_end + half) >> dropped
    certain = (nearest == (low + less) >> dropped) & ((low + half) >> dropped == (high_end + less) >> dropped)
    word = nearest << dropped
    moved = field + others - (2 * _BIAS + 8 * place)
    exponent = (word >> 23 & 0xFF) + moved
    zero = norms == 0.0
    certain = certain & (exponent >= least) & (exponent <= most)
    certain = (certain | zero) & (field <= _FINITE) & (others <= _FINITE)
    word = tl.where(zero, 0, word + (moved << 23))
    at_out = line[:, None] * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out + at_out, word.to(tl.float32, bitcast=True), mask=inside)
    tl.store(doubts + at_out, (~certain).to(tl.uint8), mask=inside)


@dataclass(frozen=True, slots=True)
class SlicedLines:
    """Lines of a matrix, or of several, as digits."""

    digits: torch.Tensor
    """int8[L, n, P]: of K terms, and zeros; the first digit is the largest."""
    fields: torch.Tensor
    """int32[L]: biased exponents, 255 for a line with a number that is not finite."""
    reaches: torch.Tensor
    """f32[L]: the line's share of what products of digits leave out, in units of the sums' last place."""
    norms: torch.Tensor
    """f32[L]: Euclidean norms, in units of the lines' powers of two."""


def place_of(terms: int) -> int:
    """The weight that is the last place of sums in int64."""
    return 6 if terms <= 1 << 16 else 5


def slice_lines(x: torch.Tensor, kept: tuple[int, ...], left: bool) -> SlicedLines:
    """x: f32[B, L, K], of any strides, nothing empty. kept: by how many digits of B each digit of A is multiplied.
    left: whether the lines are rows of A."""
    batches, rows, terms = x.shape
    lines, padded = batches * rows, triton.cdiv(terms, TERMS) * TERMS
    digits = torch.empty((lines, len(kept), padded), dtype=torch.int8, device=x.device)
    fields = torch.empty(lines, dtype=torch.int32, device=x.device)
    reaches, squares = torch.empty((2, lines), device=x.device)
    with torch.cuda.device_of(x):
        _slice[(triton.cdiv(lines, _LINES.value),)](
            x.view(torch.int32), digits, fields, reaches, squares, rows, terms, lines, padded, *x.stride(),
            kept=kept, cut=len(kept) // 2, left=left, place=place_of(terms), deep=TERMS, enable_fp_fusion=False,
        )  # fmt: skip
    return SlicedLines(digits, fields, reaches, squares.sqrt_())


def decide(
    a: torch.Tensor, b: torch.Tensor, ratio: float, kept: tuple[int, ...], format: Format
) -> tuple[torch.Tensor, torch.Tensor]:
    """(f32[B, M, N], products rounded to a format; bool[B, M, N], which are in doubt: of these there is nothing of use
    in the first).

    a: f32[B, M, K], b: f32[B, K, N], of any strides, nothing empty, K at most MOST_TERMS. ratio: of the two lines'
    norms, how far from where rounding changes a product is to be certain, besides what is left out. kept: as in
    `slice_lines`."""
    (batches, rows, terms), columns = a.shape, b.shape[2]
    left, right = slice_lines(a, kept, True), slice_lines(b.mT, kept, False)
    out = torch.empty((batches, rows, columns), dtype=torch.float32, device=a.device)
    doubts = torch.empty(out.shape, dtype=torch.uint8, device=a.device)
    place, padded = place_of(terms), left.digits.shape[2]
    weights = max(at + many for at, many in enumerate(kept))
    # A shift to the right drops less than one, and so does the conversion of a reach.
    missed = max(weights + 1 - place, 0) * triton.cdiv(padded, CHUNK) + 2
    with torch.cuda.device_of(a):
        _multiply[(batches * triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS),)](
            left.digits, right.digits, out, doubts, left.fields, right.fields, left.reaches, right.reaches, left.norms,
            right.norms, rows, columns, padded, batches, missed, ratio * 2.0 ** (8 * place), kept=kept, weights=weights,
            place=place, dropped=23 - format.fraction_bits, least=127 + format.least_exponent,
            most=128 - format.least_exponent, high=ROWS, wide=COLUMNS, deep=TERMS, chunk=CHUNK, num_warps=WARPS,
            num_stages=STAGES, enable_fp_fusion=False,
        )  # fmt: skip
    return out, doubts.view(torch.bool)
