"""Exact products of BF16 matrices on CUDA, in Triton: which elements tensor cores decide, and FP64 sums of the others.
Imports triton. `roundlog.kernels.cuda.bf16_products` has the bound.

Deciding: a program multiplies a tile. Blocks of `deep` terms are summed by `tl.dot`, each from zero, and their sums are
added in FP64. The bound counts groups of a block, not their order: whatever order a compiler gives them is as good. An
element is certain if its row and its column have exponents with which tensor cores are known to give every group a
value (`is_left` of `roundlog.kernels.cuda.tensor_core_kernels`), and both ends of the sum's interval round to one
number of BF16. Ends are rounded as integers, to nearest, ties to even. They are finite: the exponents of a row and of a
column add up to 109 at most, so that products are below 2^111, and sums of 2^15 of them below 2^126.

Summing: a program takes some elements of those in doubt, and adds their products in FP64, blocks of terms one after the
other, as the error bound of FP64 sums has it: any order will do within a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from roundlog.kernels.cuda.tensor_core_kernels import ends_of, form_of, is_left, measured_lines
from roundlog.kernels.tensor_core_products import GroupArithmetic
from roundlog.number_format import BFLOAT16

ROWS, COLUMNS = 128, 64
"""Tile of a program that decides."""
WARPS, STAGES = 8, 3
ELEMENTS, TERMS = 16, 256
"""Elements of a program that sums, and most terms of a block of theirs."""
MOST_TERMS = 1 << 15

_DROPPED = tl.constexpr(52 - BFLOAT16.fraction_bits)
"""Bits of an FP64 number that BF16 has not."""
_BELOW_HALF = tl.constexpr((1 << (51 - BFLOAT16.fraction_bits)) - 1)
"""The largest of them that is rounded down."""
_LEAST_NORMAL = tl.constexpr(2.0**BFLOAT16.least_exponent)
_EVALUATED = tl.constexpr(2.0**-50)
"""More than the roundings of an interval's ends, on both machines that look at it."""


@triton.jit
def _nearest(x):
    """The normal BF16 number that an FP64 number rounds to, as an integer that no other number has."""
    word = x.to(tl.int64, bitcast=True)
    return (word + ((word >> _DROPPED) & 1) + _BELOW_HALF) >> _DROPPED


@triton.jit
def _decide(
    a, b, out, doubts, row_bounds, column_bounds, row_ends, column_ends, rows, columns, terms, batches,
    a_batch, a_row, a_term, b_batch, b_term, b_column, ratio: tl.float64,
    kept: tl.constexpr, least: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr,
):  # fmt: skip
    """One tile of one product of a batch."""
    program = tl.program_id(0).to(tl.int64)
    across, down = tl.cdiv(columns, wide), tl.cdiv(rows, high)
    batch = program // (across * down)
    row = program // across % down * high + tl.arange(0, high)
    column = program % across * wide + tl.arange(0, wide)
    left = a + batch * a_batch + row[:, None] * a_row
    right = b + batch * b_batch + column[None, :] * b_column
    sums = tl.zeros((high, wide), tl.float64)
    for begin in range(0, terms, deep):
        k = begin + tl.arange(0, deep).to(tl.int64)
        x = tl.load(left + k[None, :] * a_term, mask=(row < rows)[:, None] & (k < terms)[None, :], other=0.0)
        y = tl.load(right + k[:, None] * b_term, mask=(k < terms)[:, None] & (column < columns)[None, :], other=0.0)
        sums += tl.dot(x, y, out_dtype=tl.float32).to(tl.float64)
    its = ends_of(row_ends, batch, rows, row, batches * rows)
    others = ends_of(column_ends, batch, columns, column, batches * columns)
    known = is_left(
        (its[0][:, None], its[1][:, None], its[2][:, None], its[3][:, None]),
        (others[0][None, :], others[1][None, :], others[2][None, :], others[3][None, :]),
        kept, False, least,
    )  # fmt: skip
    scale = tl.load(row_bounds + batch * rows + row, mask=row < rows, other=0.0)[:, None]
    bound = scale * tl.load(column_bounds + batch * columns + column, mask=column < columns, other=0.0)[None, :]
    reach = bound * ratio + tl.abs(sums) * _EVALUATED
    nearest = _nearest(sums - reach)
    certain = (nearest == _nearest(sums + reach)) & (tl.abs(sums) - reach >= _LEAST_NORMAL)
    # A line of zeros has a norm of zero, and no other line has one.
    certain = known & (certain | (reach == 0.0))
    value = (nearest << _DROPPED).to(tl.float64, bitcast=True).to(tl.float32)
    at = (batch * rows + row[:, None]) * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out + at, value + 0.0, mask=inside)
    tl.store(doubts + at, (~certain).to(tl.uint8), mask=inside)


@triton.jit
def _number(word):
    """The number of a word of BF16, or an FP32 number, in FP64."""
    if word.dtype == tl.float32:
        return word.to(tl.float64)
    else:
        return (word.to(tl.int32) << 16).to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit
def _sum(
    a, b, elements, sums, count, rows, columns, terms, a_batch, a_row, a_term, b_batch, b_term, b_column, of_block,
    many: tl.constexpr, most: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * many + tl.arange(0, many)
    element = tl.load(elements + place, mask=place < count, other=0)
    line, column = element // columns, element % columns
    batch, row = line // rows, line % rows
    left = (a + batch * a_batch + row * a_row)[:, None]
    right = (b + batch * b_batch + column * b_column)[:, None]
    total = tl.zeros([many], tl.float64)
    for begin in range(0, terms, of_block):
        within = tl.arange(0, most).to(tl.int64)
        k = begin + within
        inside = (place < count)[:, None] & ((within < of_block) & (k < terms))[None, :]
        x = tl.load(left + k[None, :] * a_term, mask=inside, other=0)
        y = tl.load(right + k[None, :] * b_term, mask=inside, other=0)
        total += tl.sum(_number(x) * _number(y), axis=1)
    tl.store(sums + place, total, mask=place < count)


def decide(
    a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, ratio: float,
    arithmetic: GroupArithmetic, deep: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(f32[B, M, N], sums of the products rounded to BF16; bool[B, M, N], which are in doubt: of these there is nothing
    of use in the first).

    a: bf16[B, M, K], b: bf16[B, K, N], of any strides, nothing empty, K at most MOST_TERMS. rows: f64[B, M], columns:
    f64[B, N], contiguous, zero for lines of zeros only: a sum by blocks of `deep` terms errs by at most rows * columns
    * ratio. arithmetic: of the device's tensor cores. All on one device."""
    (batches, height, terms), width = a.shape, b.shape[2]
    out = torch.empty((batches, height, width), dtype=torch.float32, device=a.device)
    doubts = torch.empty(out.shape, dtype=torch.uint8, device=a.device)
    with torch.cuda.device_of(a):
        ends = (
            measured_lines(x.view(torch.int16), MOST_TERMS, arithmetic.terms, form_of(BFLOAT16))
            for x in (a, b.mT)
        )  # fmt: skip
        tiles = batches * triton.cdiv(height, ROWS) * triton.cdiv(width, COLUMNS)
        _decide[(tiles,)](
            a, b, out, doubts, rows, columns, *ends, height, width, terms, batches, *a.stride(), *b.stride(), ratio,
            kept=arithmetic.fraction_bits, least=BFLOAT16.least_exponent, high=ROWS, wide=COLUMNS, deep=deep,
            num_warps=WARPS, num_stages=STAGES, enable_fp_fusion=False,
        )  # fmt: skip
    return out, doubts.view(torch.bool)


def sum_elements(a: torch.Tensor, b: torch.Tensor, elements: torch.Tensor, block: int) -> torch.Tensor:
    """f64[n]: chosen elements of a product, in FP64: blocks of so many terms, at most TERMS, one after the other.

    a: bf16 or f32[B, M, K], b: the same, [B, K, N], of any strides. elements: int64[n], flat. All on one device."""
    sums = torch.empty(len(elements), dtype=torch.float64, device=a.device)
    if not len(elements):
        return sums
    # Lines are read one by one: terms that lie apart would each be a read of their own.
    a, b = a if a.stride(2) == 1 else a.contiguous(), b if b.stride(1) == 1 else b.mT.contiguous().mT
    a, b = (x.view(torch.int16) if x.dtype == torch.bfloat16 else x for x in (a, b))
    with torch.cuda.device_of(a):
        _sum[(triton.cdiv(len(elements), ELEMENTS),)](
            a, b, elements, sums, len(elements), a.shape[1], b.shape[2],
            a.shape[2], *a.stride(), *b.stride(), block, many=ELEMENTS, most=TERMS, enable_fp_fusion=False,
        )  # fmt: skip
    return sums
