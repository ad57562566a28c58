"""Products of matrices of BF16, FP16 or TF32 numbers as tensor cores add them, to the bits, on any processor.

Every segment of terms is a chain of groups of its own, on top of zero. Tiles of a row block and a panel of columns are
summed in vectors (`roundlog.kernels.tensor_core_microkernel`). These know all exponents relative to the largest of a
row and a column, and keep for every element the least of its groups' largest exponents, e; it decides afterwards
whether an element is right. It is where

* the spreads of the exponents of row and column fit FP32, and no exponent can come to LARGEST_EXPONENT;
* 2^(e - F) is no subnormal number: then no result is, but zero;
* e is above the exponents of all products with a zero or a subnormal operand, as row and column have them, so that a
  normal number has every group's largest exponent (two zeros that fill a group have no larger one than its products).
  Where subnormal operands must not count, e is above theirs by F + 1: they have been truncated to nothing;
* no sum of 16 products has wrapped.

All others are summed one by one (`roundlog.kernels.tensor_core_chain`), and those that have no value are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit

from roundlog.definitions.tensor_core import LARGEST_EXPONENT, LEAST_EXPONENT, OPERAND_FORMATS, TensorCoreArithmetic
from roundlog.kernels.environment import right_environment
from roundlog.kernels.gemm_microkernel import tile_lanes
from roundlog.kernels.scratch import empty, scratch_numbers
from roundlog.kernels.short_microkernel import lowest_bit, width_of
from roundlog.kernels.tensor_core_chain import NO_VALUE, sum_of_groups
from roundlog.kernels.tensor_core_microkernel import (
    LEAST,
    PANEL,
    ROWS,
    TOP,
    finish_groups,
    sum_groups,
)
from roundlog.kernels.tensor_core_packing import (
    CHUNK,
    HAS_SUBNORMAL,
    HAS_ZERO,
    NOT_FINITE,
    TensorCoreWords,
    field_form,
    pack_group_lines,
)
from roundlog.kernels.threads import in_parts, threads_for

I64 = npt.NDArray[np.int64]

_ROWS = 256
"""Rows that are packed at once."""
_GROWTH = 12
"""An exponent of a sum of 2,048 products is above the products' by no more than this."""
_NEVER = -(1 << 31)
_NAN = 0x7FC00000


@dataclass(frozen=True, slots=True)
class GroupArithmetic:
    """Numbers of an arithmetic, for one format of operands (docs/arithmetic.md). Raises ValueError for other numbers
    than those that are said here."""

    fraction_bits: int
    """23 to 25."""
    terms: int
    """Products of a group: 4, 8 or 16."""
    subnormals: bool
    """Whether subnormal operands may count."""
    segment_terms: int = 2048
    """A multiple of 16, and at most 2048."""

    @classmethod
    def of(cls, arithmetic: TensorCoreArithmetic, format: str) -> GroupArithmetic:
        """The numbers of an arithmetic for a format. Raises ValueError for a format that it does not define."""
        terms, subnormals = arithmetic.terms_of(format), format in arithmetic.subnormals
        return cls(arithmetic.fraction_bits, terms, subnormals, arithmetic.segment_terms)

    def __post_init__(self) -> None:
        whole = self.segment_terms % 16 == 0 and 0 < self.segment_terms <= 2048
        if not (23 <= self.fraction_bits <= 25 and self.terms in (4, 8, 16) and whole):
            raise ValueError(f"{self} is not an arithmetic that the proofs hold for")


_FORMATS = {
    torch.bfloat16: OPERAND_FORMATS["bf16"],
    torch.float16: OPERAND_FORMATS["f16"],
    torch.float32: OPERAND_FORMATS["tf32"],
}
_DROPPED = (1 << 13) - 1
"""Bits of FP32's fraction that TF32 has not."""


@njit(cache=True, nogil=True, error_model="numpy")
def _find_limits(fields: Any, count: int, arithmetic: Any, exponents: Any, spreads: Any, limits: Any) -> None:
    """Largest exponents, spreads, and the largest fields of scales of lines, for `finish_groups`."""
    largest, least, kind = fields
    kept_bits, _, subnormals, least_exponent = arithmetic
    for n in range(count):
        exponents[n] = largest[n] + least_exponent - 1
        spreads[n] = largest[n] - least[n]
        # 2^(254 + F - s) is the exponent field of a group, and TOP + 1 - largest that of a product with such an operand
        # and the largest number of any other line.
        limits[n] = 1 << 16
        if kind[n] & (HAS_ZERO | HAS_SUBNORMAL):
            above = kept_bits if kind[n] & HAS_SUBNORMAL and not subnormals else 0
            limits[n] = 254 + kept_bits - (TOP + 1 - largest[n] + 1 + above)
        if kind[n] & NOT_FINITE:
            limits[n] = _NEVER


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_tiles(
    lanes: Any, group: Any, left: Any, left_codes: Any, right: Any, right_codes: Any, tiles: Any, fields: Any, ends: Any
) -> None:
    """tiles: float32[3, rows, panel]: sums, the bits of scales, and magnitudes. ends: rows, terms, whole groups, and
    fraction bits that are kept."""
    rows, terms, kept_bits = ends
    vector, step = 2 * len(lanes), len(group)
    width = PANEL * vector
    size, tall = -(-rows // ROWS) * ROWS * width, -(-rows // vector) * vector
    sums, scales, magnitudes = tiles[0], tiles[1].view(np.int32), tiles[2].view(np.uint32)
    sums[:size] = np.float32(0.0)
    scales[:size] = -1
    magnitudes[:size] = 0
    for begin in range(0, terms, CHUNK):
        # So few terms of a panel stay in the first level of the cache for all rows.
        some = min(CHUNK, terms - begin)
        for row in range(0, rows, ROWS):
            at, of_tile = begin * tall + row // vector * vector * some + row % vector, row * width * 4
            sum_groups(
                lanes,
                group,
                left.ctypes.data + at * 4,
                left_codes.ctypes.data + at,
                right.ctypes.data + begin * width * 4,
                right_codes.ctypes.data + begin * width,
                sums.ctypes.data + of_tile,
                scales.ctypes.data + of_tile,
                magnitudes.ctypes.data + of_tile,
                fields.ctypes.data,
                width * 4,
                some // step,
                kept_bits,
            )


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply_block(
    lanes: Any, group: Any, operands: Any, sizes: Any, form: Any, arithmetic: Any, room: Any, out: Any, into: int
) -> tuple[int, int]:
    """Some rows by some columns of one segment: out[into + row * pitch + column]. Returns how many elements are summed
    one by one, and how many of them have no value: they are NaN."""
    x, first_row, of_row, row_term, y, first_column, of_column, column_term = operands
    rows, columns, terms, pitch = sizes
    left, left_codes, right, right_codes, words, of_rows, of_columns, factors, tiles, fields, last = room
    width, step = PANEL * 2 * len(lanes), len(group)
    padded = -(-terms // step) * step
    kept_bits, _, _, _ = arithmetic
    slow, missing, row_limits, ends = 0, 0, np.empty(4, dtype=np.int32), out.view(np.uint32)
    line_fields = of_rows[0], of_rows[1], of_rows[2]
    pack_group_lines(
        lanes, (), x, first_row, of_row, row_term, rows, terms, padded, 1, form, words, line_fields, left, left_codes
    )
    _find_limits(line_fields, rows, arithmetic, of_rows[3], of_rows[4], of_rows[5])
    for first in range(0, columns, width):
        across, column = min(width, columns - first), first_column + first * of_column
        line_fields = of_columns[3], of_columns[4], of_columns[5]
        pack_group_lines(
            lanes,
            (0,),
            y,
            column,
            of_column,
            column_term,
            across,
            terms,
            padded,
            PANEL,
            form,
            words,
            line_fields,
            right,
            right_codes,
        )
        _find_limits(line_fields, width, arithmetic, of_columns[0], of_columns[1], of_columns[2])
        for c in range(width):
            factors[c] = 2.0 ** np.float64(of_columns[0, c])
        _sum_tiles(lanes, group, left, left_codes, right, right_codes, tiles, fields, (rows, padded, kept_bits))
        for row in range(rows):
            exponent, of_tile, at = of_rows[3, row], row * width * 4, into + row * pitch + first
            row_limits[0] = LARGEST_EXPONENT - _GROWTH - exponent
            row_limits[1] = TOP - LEAST - of_rows[4, row]
            row_limits[2] = of_rows[5, row]
            row_limits[3] = 254 - TOP - LEAST_EXPONENT + exponent
            found = finish_groups(
                lanes,
                tiles[0].ctypes.data + of_tile,
                tiles[1].ctypes.data + of_tile,
                tiles[2].ctypes.data + of_tile,
                of_columns.ctypes.data,
                factors.ctypes.data,
                row_limits.ctypes.data,
                2.0 ** np.float64(exponent - (TOP - 127)),
                out.ctypes.data + at * 4 if across == width else last.ctypes.data,
            )
            if across < width:
                out[at : at + across] = last[:across]
            while found:
                c = lowest_bit(found)
                found &= found - 1
                if c < across:
                    of_x, of_y = first_row + row * of_row, column + c * of_column
                    bits = sum_of_groups(x, of_x, row_term, y, of_y, column_term, terms, form, arithmetic)
                    slow += 1
                    missing += bits == NO_VALUE
                    ends[at + c] = _NAN if bits == NO_VALUE else bits
    return slow, missing


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply_blocks(
    lanes: Any,
    group: Any,
    operands: Any,
    sizes: Any,
    form: Any,
    arithmetic: Any,
    room: Any,
    out: Any,
    start: int,
    stop: int,
) -> tuple[int, int]:
    """Blocks `start` to `stop` of all segments and batches. Returns what `_multiply_block` does."""
    x, left_batches, of_row, row_term, y, right_batches, of_column, column_term = operands
    rows, columns, terms, of_segment, high, wide = sizes
    down, across, batches = -(-rows // high), -(-columns // wide), len(left_batches)
    slow = missing = 0
    for block in range(start, stop):
        rest, strip = divmod(block, across)
        rest, part = divmod(rest, down)
        segment, batch = divmod(rest, batches)
        row, column, term = part * high, strip * wide, segment * of_segment
        its = (
            x,
            left_batches[batch] + row * of_row + term * row_term,
            of_row,
            row_term,
            y,
            right_batches[batch] + column * of_column + term * column_term,
            of_column,
            column_term,
        )
        some = min(high, rows - row), min(wide, columns - column), min(of_segment, terms - term), columns
        into = (segment * batches + batch) * rows * columns + row * columns + column
        counts = _multiply_block(lanes, group, its, some, form, arithmetic, room, out, into)
        slow, missing = slow + counts[0], missing + counts[1]
    return slow, missing


def _has_more_bits(x: torch.Tensor) -> bool:
    """Whether an FP32 tensor has a number that is none of TF32; any NaN is one."""
    return bool(((x.view(torch.int32) & _DROPPED) != 0).logical_and_(x == x).any())


def _words_of(x: torch.Tensor) -> TensorCoreWords:
    """The words of a tensor of any strides, from its first on."""
    extent = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    words = (
        x.detach().view(torch.int32 if x.dtype == torch.float32 else torch.int16).as_strided((extent,), (1,)).numpy()
    )
    return words.view(np.uint32) if x.dtype == torch.float32 else words.view(np.uint16)


def _batches_of(x: torch.Tensor) -> I64:
    """Where the matrices of a batch begin, int64[batches]."""
    first = np.zeros(1, dtype=np.int64)
    for size, step in zip(x.shape[:-2], x.stride()[:-2], strict=True):
        first = (first[:, None] + np.arange(size, dtype=np.int64) * step).reshape(-1)
    return first


def _room_for(lanes: int, rows: int, terms: int, item: int) -> tuple[npt.NDArray[Any], ...]:
    vector = width_of(lanes)
    width, tall = PANEL * vector, -(-rows // vector) * vector
    padded = -(-terms // 16) * 16

    def numbers(name: str, size: int, kind: Any) -> npt.NDArray[Any]:
        room: npt.NDArray[Any] = scratch_numbers(f"tensor core {name}", -(-size * np.dtype(kind).itemsize // 8)).view(
            kind
        )
        return room[:size]

    return (
        numbers("left", tall * padded, np.float32),
        numbers("left codes", tall * padded, np.uint8),
        numbers("right", width * padded, np.float32),
        numbers("right codes", width * padded, np.uint8),
        numbers("words", vector * terms, np.uint16 if item == 2 else np.uint32),
        numbers("rows", 6 * tall, np.int32).reshape(6, tall),
        numbers("columns", 6 * width, np.int32).reshape(6, width),
        numbers("factors", width, np.float64),
        numbers("tiles", 3 * tall * width, np.float32).reshape(3, tall * width),
        numbers("fields", CHUNK // 4 * ROWS * width, np.uint8),
        numbers("last", width, np.float32),
    )


@dataclass(frozen=True, slots=True)
class TensorCoreSums:
    """Products of matrices, segment by segment."""

    sums: torch.Tensor
    """f32[segments, ..., M, N]; NaN where there is no value, and nowhere else."""
    missing: I64
    """Flat indices of the elements that have no value, ascending."""
    one_by_one: int
    """Elements that were not left to vectors."""


def tensor_core_product(a: torch.Tensor, b: torch.Tensor, arithmetic: GroupArithmetic) -> TensorCoreSums:
    """Sums of products as tensor cores add them, on torch's number of threads.

    a: [..., M, K], b: [..., K, N], of one dtype and of any strides, on the CPU: bf16, fp16, or f32 for TF32, whose
    numbers have 13 bits at the end that are zero, unless they are NaN. Raises ValueError for other numbers, dtypes and
    shapes."""
    if a.dtype != b.dtype or a.dtype not in _FORMATS:
        raise ValueError(f"a tensor core multiplies no {a.dtype} by {b.dtype}: give bf16, fp16, or f32 for TF32")
    if a.ndim < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"{tuple(a.shape)} and {tuple(b.shape)} are no matrices to multiply")
    if a.dtype == torch.float32 and any(map(_has_more_bits, (a, b))):
        raise ValueError("a number is not of TF32: the last 13 bits of FP32 have to be zero")
    rows, terms, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    segments = -(-terms // arithmetic.segment_terms)
    result = empty((segments, *a.shape[:-2], rows, columns), torch.float32)
    if result.numel() == 0:
        return TensorCoreSums(result, np.empty(0, dtype=np.int64), 0)
    lanes, format = tile_lanes(), _FORMATS[a.dtype]
    batches = _batches_of(a), _batches_of(b)
    operands = (
        _words_of(a),
        batches[0],
        a.stride(-2),
        a.stride(-1),
        _words_of(b),
        batches[1],
        b.stride(-1),
        b.stride(-2),
    )
    form = field_form(format)
    numbers = arithmetic.fraction_bits, arithmetic.terms, arithmetic.subnormals, format.least_exponent
    high, wide = _block_of(lanes, rows, columns, segments * len(batches[0]), result.numel() * terms)
    sizes = rows, columns, terms, arithmetic.segment_terms, high, wide
    out, types, counts = result.view(-1).numpy(), ((0,) * lanes, (0,) * arithmetic.terms), []

    def part(start: int, stop: int) -> None:
        room = _room_for(lanes, min(high, rows), min(terms, arithmetic.segment_terms), a.itemsize)
        counts.append(_multiply_blocks(*types, operands, sizes, form, numbers, room, out, start, stop))

    blocks = segments * len(batches[0]) * -(-rows // high) * -(-columns // wide)
    # Subnormal operands are numbers, whatever this thread makes of them.
    with right_environment():
        in_parts(part, blocks, result.numel() * terms)
    slow, missing = map(sum, zip(*counts, strict=True))
    indices = np.flatnonzero(out.view(np.uint32) == _NAN) if missing else np.empty(0, dtype=np.int64)
    return TensorCoreSums(result, indices, slow)


def _block_of(lanes: int, rows: int, columns: int, products: int, work: int) -> tuple[int, int]:
    """Rows and columns of a block: as many rows as are packed at once, and all columns, if all threads have blocks."""
    width, high = PANEL * width_of(lanes), min(rows, _ROWS)
    blocks = products * -(-rows // high)
    panels = -(-columns // width)
    threads = threads_for(blocks * panels, work)
    # Each thread has two parts, or more.
    strips = 1 if blocks % threads == 0 else min(panels, -(-2 * threads // blocks))
    return high, -(-panels // strips) * width
