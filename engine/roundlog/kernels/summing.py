"""Exact sums, nearly: sums of FP64 numbers together with everything that rounding took away from them.

A sum is taken in lanes, which are added up at the end, because vector instructions need sums that do not wait for each
other; all of it by TwoSum. In any order a sum of k terms has at most k - 1 errors that are not zero: as many as there
are additions of two numbers that are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.threads import in_parts, threads_for

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

_LANES = 16
"""Sums at once: two vectors of 512 bits, four of 256. Also FP32 numbers in one line of the cache."""
_TERMS = 128
"""Terms that are added to one sum before the next one's turn, where they have to be gathered."""
_PITCH = _TERMS + _LANES
"""FP32 numbers from one gathered run to the next: an odd number of lines, so that all sets of the cache are used."""
_BLOCK = 1024
"""Sums whose terms are gathered together: with what they read they stay in the second level of the cache."""


@njit(inline="always")
def _add(lanes: Any, lane: int, p: float) -> None:
    """lanes: float64[3, _LANES], the sums, their errors' sums, and those of the errors' magnitudes."""
    s = lanes[0, lane]
    # TwoSum (Knuth): t + error = s + p exactly.
    t = s + p
    v = t - s
    error = (s - (t - v)) + (p - v)
    lanes[0, lane] = t
    lanes[1, lane] += error
    lanes[2, lane] += abs(error)


@njit(cache=True, nogil=True, error_model="numpy")
def _add_products(a: Any, b: Any, lanes: Any) -> None:
    whole = len(a) - len(a) % _LANES
    for begin in range(0, whole, _LANES):
        x, y = a[begin : begin + _LANES], b[begin : begin + _LANES]
        for lane in range(_LANES):
            # A product of two FP32 numbers is exact in FP64.
            _add(lanes, lane, np.float64(x[lane]) * np.float64(y[lane]))
    for t in range(whole, len(a)):
        _add(lanes, t - whole, np.float64(a[t]) * np.float64(b[t]))


@njit(cache=True, nogil=True, error_model="numpy")
def _finish(lanes: Any, out: Any, r: int) -> None:
    half = _LANES // 2
    while half:
        for lane in range(half):
            _add(lanes, lane, lanes[0, half + lane])
            lanes[1, lane] += lanes[1, half + lane]
            lanes[2, lane] += lanes[2, half + lane]
        half //= 2
    out[0, r], out[1, r], out[2, r] = lanes[0, 0], lanes[1, 0], lanes[2, 0]


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_terms(terms: Any, out: Any, start: int, stop: int) -> None:
    lanes = np.empty((3, _LANES))
    for r in range(start, stop):
        lanes[:] = 0.0
        row = terms[r]
        whole = len(row) - len(row) % _LANES
        for begin in range(0, whole, _LANES):
            x = row[begin : begin + _LANES]
            for lane in range(_LANES):
                _add(lanes, lane, x[lane])
        for t in range(whole, len(row)):
            _add(lanes, t - whole, row[t])
        _finish(lanes, out, r)


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_placed(x: Any, index: Any, size: int, elements: Any, out: Any, start: int, stop: int) -> None:
    lanes = np.empty((3, 1))
    for r in range(start, stop):
        lanes[:] = 0.0
        line, within = elements[r] // x.shape[2], elements[r] % x.shape[2]
        outer, place = line // size, line % size
        for t in range(x.shape[1]):
            if index[outer, t, within] == place:
                _add(lanes, 0, np.float64(x[outer, t, within]))
        out[0, r], out[1, r], out[2, r] = lanes[0, 0], lanes[1, 0], lanes[2, 0]


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_dense(a: Any, b: Any, first_a: Any, first_b: Any, terms: int, out: Any, start: int, stop: int) -> None:
    lanes = np.empty((3, _LANES))
    for r in range(start, stop):
        lanes[:] = 0.0
        _add_products(a[first_a[r] : first_a[r] + terms], b[first_b[r] : first_b[r] + terms], lanes)
        _finish(lanes, out, r)


@njit(cache=True, nogil=True, error_model="numpy")
def _locate(elements: Any, sizes: Any, strides: Any, offset: int, out: Any) -> None:
    for i in range(len(elements)):
        rest, at = elements[i], offset
        for axis in range(len(sizes) - 1, 0, -1):
            at += rest % sizes[axis] * strides[axis]
            rest //= sizes[axis]
        out[i] = at + rest * strides[0]


def locate(elements: I64, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> I64:
    """elements: int64[n], flat indices of something with these sizes, one or more. Returns int64[n]: where they are in
    memory that it lies in with these strides and this offset."""
    out = np.empty(len(elements), np.int64)
    _locate(elements, sizes, strides, offset, out)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _lines_of(elements: Any, rows: int, columns: int, line: Any, right: Any) -> None:
    number = begin = batch = 0
    for i in range(len(elements)):
        within = elements[i] - begin
        if not 0 <= within < columns:
            # Neighbours are mostly in the same line, and dividing takes as long as all the rest.
            number = elements[i] // columns
            begin, batch = number * columns, number // rows
            within = elements[i] - begin
        line[i], right[i] = number, batch * columns + within


def lines_of(elements: I64, rows: int, columns: int) -> tuple[I64, I64]:
    """elements: int64[n], flat indices of a product [B, rows, columns]. Returns int64[n] each: the row among those of
    all batches, and the column among those of all batches."""
    line, right = np.empty(len(elements), np.int64), np.empty(len(elements), np.int64)
    _lines_of(elements, rows, columns, line, right)
    return line, right


@njit(cache=True, nogil=True, error_model="numpy")
def _find_runs(first: Any, order: Any, begins: Any, run_of: Any) -> int:
    """Begins of runs, neighbours in this order that begin alike counted once, and the run of every sum."""
    count = 0
    for r in order:
        if not count or first[r] != begins[count - 1]:
            begins[count] = first[r]
            count += 1
        run_of[r] = count - 1
    return count


@njit(cache=True, nogil=True, error_model="numpy")
def _gather(x: Any, begins: Any, count: int, step: int, begin: int, end: int, runs: Any) -> None:
    """Terms begin to end of so many runs, each to a row of its own. A line of the cache is written at once."""
    whole = end - (end - begin) % _LANES
    for t in range(begin, whole, _LANES):
        from_here = x[t * step :]
        for number in range(count):
            first, run = np.uint64(begins[number]), runs[number, t - begin : t - begin + _LANES]
            for lane in range(_LANES):
                run[lane] = from_here[first + np.uint64(lane * step)]
    for t in range(whole, end):
        from_here = x[t * step :]
        for number in range(count):
            runs[number, t - begin] = from_here[begins[number]]


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_strided(
    a: Any,
    b: Any,
    first_a: Any,
    step_a: int,
    first_b: Any,
    step_b: int,
    terms: int,
    order: Any,
    members: Any,
    block: int,
    run_of: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    begins = np.empty((2, block), np.int64)
    runs_a = np.empty((block if step_a != 1 else 0, _PITCH), np.float32)
    runs_b = np.empty((block if step_b != 1 else 0, _PITCH), np.float32)
    lanes = np.empty((block, 3, _LANES))
    for number in range(start, stop):
        cut = slice(number * block, (number + 1) * block)
        sorted_, chosen = order[cut], members[cut]
        count_a = count_b = 0
        if step_a != 1:
            count_a = _find_runs(first_a, sorted_ if step_a > step_b else chosen, begins[0], run_of[0])
        if step_b != 1:
            count_b = _find_runs(first_b, chosen if step_a > step_b else sorted_, begins[1], run_of[1])
        lanes[:] = 0.0
        for begin in range(0, terms, _TERMS):
            end = min(begin + _TERMS, terms)
            _gather(a, begins[0], count_a, step_a, begin, end, runs_a)
            _gather(b, begins[1], count_b, step_b, begin, end, runs_b)
            for position in range(len(chosen)):
                r = chosen[position]
                of_a = runs_a[run_of[0, r], : end - begin] if count_a else a[first_a[r] + begin : first_a[r] + end]
                of_b = runs_b[run_of[1, r], : end - begin] if count_b else b[first_b[r] + begin : first_b[r] + end]
                _add_products(of_a, of_b, lanes[position])
        for position in range(len(chosen)):
            _finish(lanes[position], out, chosen[position])


def sum_terms(terms: F64) -> tuple[F64, F64, F64]:
    """terms: float64[n, k] -> (s, e, m), float64[n] each: a row's exact sum is s + sum of its rounding errors, e is the
    FP64 sum of those, m the sum of their magnitudes."""
    out = np.empty((3, len(terms)))
    in_parts(lambda start, stop: _sum_terms(terms, out, start, stop), len(terms), terms.size)
    return out[0], out[1], out[2]


def slots_of(elements: I64, size: int) -> I64:
    """int64[size]: where each of so many elements is among the chosen ones, or -1."""
    slots = np.full(size, -1, np.int64)
    slots[elements] = np.arange(len(elements))
    return slots


def sum_placed(x: F32, index: I64, size: int, elements: I64) -> tuple[F64, F64, F64]:
    """x: float32[A, K, B], index: int64[A, K, B]; elements: int64[n], flat indices of an output [A, size, B]. The sums
    of the x[a, k, b] with index[a, k, b] = j for the elements [a, j, b], as `sum_terms` gives them."""
    out = np.empty((3, len(elements)))
    in_parts(
        lambda start, stop: _sum_placed(x, index, size, elements, out, start, stop),
        len(elements),
        len(elements) * x.shape[1],
    )
    return out[0], out[1], out[2]


def sum_products(
    a: F32, b: F32, first_a: I64, step_a: int, first_b: I64, step_b: int, terms: int
) -> tuple[F64, F64, F64]:
    """Flat float32 a and b; for every r the sum over t < terms of a[first_a[r] + t step_a] * b[first_b[r] + t step_b],
    as `sum_terms` gives it. The caller answers for the indices."""
    count = len(first_a)
    out, work = np.empty((3, count)), count * terms * 8
    if step_a == 1 and step_b == 1:
        in_parts(lambda start, stop: _sum_dense(a, b, first_a, first_b, terms, out, start, stop), count, work)
    elif count:
        block = min(_BLOCK, -(-count // threads_for(count, work)))
        # Columns of the larger of two matrices that lie row by row are gathered from left to right, each once. Other
        # memory is read in the order of the sums.
        order = np.argsort(first_a if step_a > step_b else first_b)
        members = np.arange(count)
        if block < count:
            number = np.empty(count, np.int64)
            number[order] = members // block
            members = np.argsort(number, kind="stable")
        run_of = np.empty((2, count), np.int64)
        in_parts(
            lambda start, stop: _sum_strided(
                a, b, first_a, step_a, first_b, step_b, terms, order, members, block, run_of, out, start, stop
            ),
            -(-count // block),
            work,
        )
    return out[0], out[1], out[2]
