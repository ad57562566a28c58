"""Sums of squares of the lines of operands, FP32 or BF16: the norms that bounds of products are made of. Each square
can have a weight that depends on where its term stands in a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.number_words import Words, number
from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]

_ANY_ORDER = {"reassoc", "contract"}
"""Squares may be added up in any order, with FMA or without: bounds allow for it. Nothing else is computed here."""
_TOGETHER = 256
"""Lines that are read together where their terms lie apart: their sums stay in the first level of the cache."""


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_ANY_ORDER)
def _square_lines(
    x: Any, at: int, line: int, lines: int, term: int, terms: int, weights: Any, plain: Any, weighted: Any
) -> None:
    period = len(weights)
    if term == 1:
        for number_of_line in range(lines):
            source, total, other = at + number_of_line * line, 0.0, 0.0
            for begin in range(0, terms, period):
                for t in range(min(period, terms - begin)):
                    v = np.float64(number(x[source + begin + t]))
                    total += v * v
                    other += weights[t] * (v * v)
            plain[number_of_line], weighted[number_of_line] = total, other
        return
    plain[:lines], weighted[:lines] = 0.0, 0.0
    for t in range(terms):
        source, weight = at + t * term, weights[t % period]
        for number_of_line in range(lines):
            v = np.float64(number(x[source + number_of_line * line]))
            plain[number_of_line] += v * v
            weighted[number_of_line] += weight * (v * v)


@njit(cache=True, nogil=True, error_model="numpy")
def _square_batches(
    x: Any, how: Any, lines: int, terms: int, weights: Any, plain: Any, weighted: Any, start: int, stop: int
) -> None:
    first, line, term, batch = how
    each = -(-lines // _TOGETHER)
    for part in range(start, stop):
        number_of_batch, begin = part // each, part % each * _TOGETHER
        some, at = min(_TOGETHER, lines - begin), first + number_of_batch * batch + begin * line
        into = number_of_batch * lines + begin
        _square_lines(x, at, line, some, term, terms, weights, plain[into:], weighted[into:])


def square_lines(
    memory: Words, how: tuple[int, int, int, int], batches: int, lines: int, terms: int, weights: F64
) -> F64:
    """float64[2, batches * lines]: the sums of the squares of every line's terms, and the sums in which term t counts
    weights[t % len(weights)] times. how: first, line, term, batch, as `roundlog.kernels.tile_packing` has them."""
    sums = np.empty((2, batches * lines))
    in_parts(
        lambda start, stop: _square_batches(memory, how, lines, terms, weights, sums[0], sums[1], start, stop),
        batches * -(-lines // _TOGETHER),
        batches * lines * terms,
    )
    return sums
