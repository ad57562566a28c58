"""Products of FP32 matrices by sums of 8-bit integers on CUDA, in Triton. Imports triton. docs/numerics.md ("Products
by integers on CUDA") has the proof; `roundlog.kernels.cuda.integer_products` chooses how many digits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from roundlog.number_format import Format

ROWS, COLUMNS, TERMS = tl.constexpr(128), tl.constexpr(32), tl.constexpr(32)
"""Tile of a program that multiplies, and terms of one of its dots."""
WARPS, STAGES = 8, 3
CHUNK = 1 << 14
"""Terms whose products int32 adds."""

_LINES = tl.constexpr(32)
"""Lines of a program that slices."""
_INFINITY = tl.constexpr(0x7F800000)
_BIAS = tl.constexpr(125)
"""A line's numbers are below 127/256 of 2^(its field - 125)."""
_SLACK = tl.constexpr(1.0 + 2.0**-6)
"""For rests, which are little more than half of a digit's unit, and for FP32 sums of at most 2^17."""
_PLACE = tl.constexpr(6)
"""The weight that is the last place of sums in int64: they are multiples of 2^-48."""
_EVALUATED = tl.constexpr(2.0**-50)
"""More than the roundings of an interval's ends, on both machines that look at it."""


@triton.jit
def _slice(
    x, digits, measures, rows, terms, lines, of_batch, of_row, of_term,
    slices: tl.constexpr, left: tl.constexpr,
):  # fmt: skip
    cut: tl.constexpr = slices // 2
    # The last line is done several times, where they fill no program.
    line = tl.minimum(tl.program_id(0).to(tl.int64) * _LINES + tl.arange(0, _LINES), lines - 1)
    numbers = x + (line // rows * of_batch + line % rows * of_row)[:, None]
    padded = tl.cdiv(terms, TERMS) * TERMS
    largest = tl.zeros([_LINES], tl.int32)
    for first in range(0, padded, TERMS):
        term = first + tl.arange(0, TERMS).to(tl.int64)[None, :]
        words = tl.load(numbers + term * of_term, mask=term < terms, other=0)
        largest = tl.maximum(largest, tl.max(words & 0x7FFFFFFF, axis=1))
    # One more from 127/128 of the next power of two on: the first digit could become 128.
    field = tl.maximum(tl.minimum(largest, _INFINITY) + (1 << 17) >> 23, 1)
    reach, square = tl.zeros([_LINES], tl.float32), tl.zeros([_LINES], tl.float32)
    for first in range(0, padded, TERMS):
        term = first + tl.arange(0, TERMS).to(tl.int64)[None, :]
        words = tl.load(numbers + term * of_term, mask=term < terms, other=0)
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
        missed = lost * (2.0 ** (8 * (_PLACE - slices) - 1) if left else 0.0)
        for at in tl.static_range(slices, 0, -1):
            for of in tl.static_range(1, cut + 1):
                # The rest of B behind the digits that meet the digit `of` of A, which is 2^7 at most.
                if (not left) and (at + of == slices + 2 or (of == 1 and at == slices)):
                    missed += (tl.abs(low).to(tl.float32) + lost) * 2.0 ** (7 + 8 * (_PLACE - of - slices))
            digit = ((rest + 128) & 255) - 128
            rest = (rest - digit) >> 8
            low += digit << 8 * (slices - at)
            if left and at > cut:
                missed += tl.abs(digit).to(tl.float32) * 2.0 ** (8 * (_PLACE - slices - 2) - 1)
            tl.store(digits + (line[:, None] * slices + (at - 1)) * padded + term, digit.to(tl.int8))
        reach += tl.sum(missed, axis=1)
    tl.store(measures + 3 * line, field.to(tl.float32))
    tl.store(measures + 3 * line + 1, reach * _SLACK)
    tl.store(measures + 3 * line + 2, square * _SLACK)


@triton.jit
def _multiply(
    a, b, out, doubts, of_rows, of_columns, rows, columns, batches, padded, ratio: tl.float32,
    slices: tl.constexpr, dropped: tl.constexpr, least: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    """One tile of one product of a batch."""
    program = tl.program_id(0).to(tl.int64)
    across, down = tl.cdiv(columns, COLUMNS), tl.cdiv(rows, ROWS)
    batch = program // (across * down)
    row = program // across % down * ROWS + tl.arange(0, ROWS)[:, None]
    column = program % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    line, other = batch * rows + tl.minimum(row, rows - 1), batch * columns + tl.minimum(column, columns - 1)
    ours = a + line * (slices * padded) + tl.arange(0, TERMS)[None, :]
    theirs = b + other * (slices * padded) + tl.arange(0, TERMS)[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.int64)
    # A shift to the right drops less than one, and so does the conversion of a reach.
    missed = 2
    for start in range(0, padded, chunk):
        sums = ()
        for _ in tl.static_range(slices + 1):
            sums = sums + (tl.zeros((ROWS, COLUMNS), tl.int32),)  # type: ignore[assignment]  # noqa: RUF005
        for first in range(start, tl.minimum(start + chunk, padded), TERMS):
            lefts, rights = (), ()
            for at in tl.static_range(slices):
                lefts = lefts + (tl.load(ours + (first + at * padded)),)  # type: ignore[assignment]  # noqa: RUF005
                rights = rights + (tl.load(theirs + (first + at * padded)),)  # type: ignore[assignment]  # noqa: RUF005
            for at in tl.static_range(slices):
                for of in tl.static_range(slices):
                    if at + of <= slices:
                        more = tl.dot(lefts[at], rights[of], sums[at + of], out_dtype=tl.int32)
                        sums = sums[: at + of] + (more,) + sums[at + of + 1 :]  # noqa: RUF005
        for weight in tl.static_range(2, slices + 3):
            if weight > _PLACE:
                total += sums[weight - 2].to(tl.int64) >> 8 * (weight - _PLACE)
                missed += 1
            else:
                total += sums[weight - 2].to(tl.int64) << 8 * (_PLACE - weight)
    field, others = tl.load(of_rows + 3 * line).to(tl.int32), tl.load(of_columns + 3 * other).to(tl.int32)
    reach = tl.load(of_rows + 3 * line + 1) + tl.load(of_columns + 3 * other + 1)
    norms = tl.load(of_rows + 3 * line + 2) * tl.load(of_columns + 3 * other + 2)
    reach += norms * ratio + tl.abs(total).to(tl.float32) * _EVALUATED
    away = reach.to(tl.int64) + missed
    low = (total - away).to(tl.float32).to(tl.int32, bitcast=True)
    high = (total + away).to(tl.float32).to(tl.int32, bitcast=True)
    # Where FP32 may have rounded to a tie of the format, the two ways to round it differ.
    half: tl.constexpr = (1 << dropped) >> 1
    less: tl.constexpr = half - 1 if half else 0
    nearest = (high + half) >> dropped
    certain = (nearest == (low + less) >> dropped) & ((low + half) >> dropped == (high + less) >> dropped)
    moved = field + others - (2 * _BIAS + 8 * _PLACE)
    exponent = ((nearest << dropped) >> 23 & 0xFF) + moved
    certain = certain & (exponent >= least) & (exponent <= 255 - least)
    certain = (certain | (norms == 0.0)) & (field < 255) & (others < 255)
    word = tl.where(norms == 0.0, 0, (nearest << dropped) + (moved << 23))
    inside, at_out = (row < rows) & (column < columns), (batch * rows + row) * columns + column
    tl.store(out + at_out, word.to(tl.float32, bitcast=True), mask=inside)
    tl.store(doubts + at_out, (~certain).to(tl.uint8), mask=inside)


def slice_lines(x: torch.Tensor, many: int, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(int8[B L, n, P], the lines' digits, the largest first, of K terms and zeros; f32[B L, 3]: biased exponents, 255
    for a line with a number that is not finite; shares of what products of digits leave out, in units of the sums' last
    place; norms, in units of the lines' powers of two).

    x: f32[B, L, K], of any strides, nothing empty. many: digits, at most 6. left: whether the lines are rows of A."""
    batches, rows, terms = x.shape
    lines, padded = batches * rows, triton.cdiv(terms, TERMS.value) * TERMS.value
    digits = torch.empty((lines, many, padded), dtype=torch.int8, device=x.device)
    measures = torch.empty((lines, 3), device=x.device)
    with torch.cuda.device_of(x):
        _slice[(triton.cdiv(lines, _LINES.value),)](
            x.view(torch.int32), digits, measures, rows, terms, lines, *x.stride(), many, left,
            enable_fp_fusion=False,
        )  # fmt: skip
    measures[:, 2].sqrt_()
    return digits, measures


def decide(
    a: torch.Tensor, b: torch.Tensor, ratio: float, many: int, format: Format
) -> tuple[torch.Tensor, torch.Tensor]:
    """(f32[B, M, N], products rounded to a format; bool[B, M, N], which are in doubt: of these there is nothing of use
    in the first).

    a: f32[B, M, K], b: f32[B, K, N], of any strides, nothing empty, K at most 2^17. ratio: of the two lines' norms, how
    far from where rounding changes a product is to be certain, besides what is left out. many: digits, at most 6;
    pairs of them up to the weight many + 2 are multiplied."""
    (batches, rows, _), columns = a.shape, b.shape[2]
    (digits, of_rows), (others, of_columns) = slice_lines(a, many, True), slice_lines(b.mT, many, False)
    out = torch.empty((batches, rows, columns), dtype=torch.float32, device=a.device)
    doubts = torch.empty(out.shape, dtype=torch.uint8, device=a.device)
    tiles = batches * triton.cdiv(rows, ROWS.value) * triton.cdiv(columns, COLUMNS.value)
    with torch.cuda.device_of(a):
        _multiply[(tiles,)](
            digits, others, out, doubts, of_rows, of_columns, rows, columns, batches, digits.shape[2],
            ratio * 2.0 ** (8 * _PLACE.value), many, 23 - format.fraction_bits, 127 + format.least_exponent,
            CHUNK, num_warps=WARPS, num_stages=STAGES, enable_fp_fusion=False,
        )  # fmt: skip
    return out, doubts.view(torch.bool)
