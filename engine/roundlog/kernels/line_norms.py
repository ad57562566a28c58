"""Sums of squares of lines of BF16 numbers, the norms that bounds of products are made of: plain ones, and ones in which
a square's weight depends on where its term stands in a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.number_words import number
from roundlog.kernels.short_packing import ShortLines
from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]


@njit(cache=True, nogil=True, error_model="numpy")
def _square_lines(
    x: Any, first: int, batch: int, line: int, lines: int, terms: int, weights: Any, sums: Any, start: int, stop: int
) -> None:
    period = len(weights)
    # One sum for every place in a block, so that they are added up in vectors.
    by_place = np.empty(period)
    for at in range(start, stop):
        by_place[:] = 0.0
        source = first + at // lines * batch + at % lines * line
        for begin in range(0, terms - terms % period, period):
            some = x[source + begin : source + begin + period]
            for t in range(period):
                v = np.float64(number(some[t]))
                by_place[t] += v * v
        for t in range(terms - terms % period, terms):
            v = np.float64(number(x[source + t]))
            by_place[t % period] += v * v
        plain = weighted = 0.0
        for t in range(period):
            plain += by_place[t]
            weighted += weights[t] * by_place[t]
        sums[0, at], sums[1, at] = plain, weighted


def square_lines(x: ShortLines, batches: int, lines: int, terms: int, weights: F64) -> F64:
    """float64[2, batches * lines]: the sums of the squares of every line's terms, and the sums in which term t counts
    weights[t % len(weights)] times."""
    sums = np.empty((2, batches * lines))
    how = x.words, x.first, x.batch, x.line, lines, terms, weights, sums
    in_parts(lambda start, stop: _square_lines(*how, start, stop), batches * lines, batches * lines * terms)
    return sums
