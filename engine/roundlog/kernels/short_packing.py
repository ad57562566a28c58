"""BF16 operands as `roundlog.kernels.short_products` takes them: lines whose terms lie side by side, for sums of single
elements, and FP32 strips, for tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from roundlog.kernels.number_words import load_vector, number, widen_pairs
from roundlog.kernels.short_microkernel import width_of
from roundlog.kernels.threads import in_parts

U16 = npt.NDArray[np.uint16]

_WORD = ir.IntType(32)


@dataclass(frozen=True, slots=True)
class ShortLines:
    """Lines of a batch of BF16 matrices: term t of line l is word first + batch * `batch` + l * line + t."""

    words: U16
    """Flat."""
    first: int
    line: int
    batch: int

    @staticmethod
    def of(lanes: int, words: U16, how: tuple[int, int, int, int], batches: int, lines: int, terms: int) -> ShortLines:
        """how: first, line, term, batch, as `roundlog.kernels.tile_packing` has them. A copy, unless terms lie side by
        side."""
        first, line, term, batch = how
        if term == 1:
            return ShortLines(words, first, line, batch)
        copy = np.empty(batches * lines * terms, dtype=np.uint16)
        strips = -(-lines // width_of(lanes))
        in_parts(
            lambda start, stop: _transpose((0,) * lanes, words, how, lines, terms, copy, start, stop),
            batches * strips,
            copy.size,
        )
        return ShortLines(copy, 0, terms, lines * terms)


@njit(cache=True, nogil=True, error_model="numpy")
def _transpose(lanes: Any, x: Any, how: Any, lines: int, terms: int, copy: Any, start: int, stop: int) -> None:
    first, line, term, batch = how
    side, strips = 2 * len(lanes), -(-lines // (2 * len(lanes)))
    source, target = x.ctypes.data, copy.ctypes.data
    for part in range(start, stop):
        of, begin = part // strips, part % strips * side
        some, at, into = min(side, lines - begin), first + of * batch + begin * line, (of * lines + begin) * terms
        whole = terms - terms % side if some == side and line == 1 else 0
        for t in range(0, whole, side):
            _cross(lanes, source + (at + t * term) * 2, term * 2, target + (into + t) * 2, terms * 2)
        for t in range(whole, terms):
            for i in range(some):
                copy[into + i * terms + t] = x[at + i * line + t * term]


@intrinsic
def _cross(typingctx: Any, lanes: Any, source: Any, line: Any, target: Any, term: Any) -> Any:
    """Transpose a square of words: a row is as many as an FP32 vector has lanes, rows lie `line` bytes apart, and those
    of the result `term` bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, line, target, term = arguments[1:]
        count = width_of(len(lanes))
        kind = ir.VectorType(ir.IntType(16), count)
        rows = [load_vector(builder, _at(builder, source, line, n), kind, 2) for n in range(count)]
        for n, row in enumerate(_crossed(builder, rows)):
            builder.store(row, builder.inttoptr(_at(builder, target, term, n), kind.as_pointer())).align = 2
        return context.get_dummy_value()

    return types.void(lanes, types.int64, types.int64, types.int64, types.int64), generate


def _at(builder: Any, first: Any, step: Any, number: int) -> Any:
    return builder.add(first, builder.mul(step, ir.Constant(ir.IntType(64), number)))


def _crossed(builder: Any, rows: list[Any]) -> list[Any]:
    """As many vectors as each has lanes, transposed: exchanges between vectors whose numbers differ by one, two, four
    and so on."""
    count, apart = len(rows), 1
    while apart < count:
        low = [lane if not lane & apart else lane - apart + count for lane in range(count)]
        masks = [ir.Constant(ir.VectorType(_WORD, count), [lane + more for lane in low]) for more in (0, apart)]
        for n in range(count):
            if not n & apart:
                pair = rows[n], rows[n + apart]
                rows[n], rows[n + apart] = (builder.shuffle_vector(*pair, mask) for mask in masks)
        apart *= 2
    return rows


@intrinsic
def _widen_crossed(typingctx: Any, lanes: Any, source: Any, line: Any, target: Any, term: Any) -> Any:
    """As many lines as an FP32 vector has lanes, `line` bytes apart, of as many pairs of BF16 words, as FP32 columns
    that lie `term` bytes apart; only these are aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, line, target, term = arguments[1:]
        count = width_of(len(lanes))
        kind = ir.VectorType(_WORD, count)
        rows = [load_vector(builder, _at(builder, source, line, n), kind, 2) for n in range(count)]
        for n, pairs in enumerate(_crossed(builder, rows)):
            for odd, numbers in enumerate(widen_pairs(builder, pairs)):
                _store(builder, numbers, _at(builder, target, term, 2 * n + odd))
        return context.get_dummy_value()

    return types.void(lanes, types.int64, types.int64, types.int64, types.int64), generate


def _store(builder: Any, numbers: Any, address: Any) -> None:
    place = builder.inttoptr(address, numbers.type.as_pointer())
    builder.store(numbers, place).align = 4 * numbers.type.count


@njit(cache=True, nogil=True, error_model="numpy")
def pack_short(
    lanes: Any, x: Any, at: int, line: int, lines: int, terms: int, width: int, room: int, strips: Any
) -> None:
    """strips[l // width][k][l % width] = word at + l * line + k of x, as an FP32 number, and 0 where there is no line
    l; float32, a strip has room for `room` terms, and `width` is a multiple of the vector's numbers."""
    vector, size = 2 * len(lanes), room * width
    source, target = x.ctypes.data + at * 2, strips.ctypes.data
    if lines % width:
        strips[lines // width * size : lines // width * size + terms * width] = np.float32(0.0)
    whole, most = lines - lines % vector, terms - terms % (2 * vector)
    for n in range(0, lines, vector):
        into = n // width * size + n % width
        if n < whole:
            for k in range(0, most, 2 * vector):
                _widen_crossed(lanes, source + (n * line + k) * 2, line * 2, target + (into + k * width) * 4, width * 4)
        for i in range(min(vector, lines - n)):
            for k in range(most if n < whole else 0, terms):
                strips[into + i + k * width] = number(x[at + (n + i) * line + k])
