"""Sums of products, some terms at a time and in another order of elements, are what their terms sum to, to the bit; and
a sum, its errors and their magnitude keep their promises."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from roundlog.kernels import summing
from roundlog.kernels.summing import lines_of, locate, sum_placed, sum_products, sum_terms


@pytest.mark.parametrize("together", [7, 1024])
@pytest.mark.parametrize("terms", [1, 15, 16, 127, 128, 129, 1000])
@pytest.mark.parametrize(("a_by_rows", "b_by_rows"), [(True, True), (True, False), (False, True), (False, False)])
def test_sums_of_products_are_the_sums_of_their_terms(
    terms: int, a_by_rows: bool, b_by_rows: bool, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summing, "_BLOCK", together)
    rng = np.random.default_rng(terms)
    rows, columns = 50, 70
    a = rng.standard_normal((rows, terms)).astype(np.float32) * np.float32(2.0) ** rng.integers(-20, 20, (rows, terms))
    a, b = a.astype(np.float32), rng.standard_normal((terms, columns)).astype(np.float32)
    elements = np.sort(rng.choice(rows * columns, 300, replace=False))
    row, column = np.divmod(elements, columns)
    first_a, step_a = (row * terms, 1) if a_by_rows else (row, rows)
    first_b, step_b = (column, columns) if b_by_rows else (column * terms, 1)
    found = sum_products(
        a.ravel() if a_by_rows else a.T.ravel(),
        b.ravel() if b_by_rows else b.T.ravel(),
        first_a,
        step_a,
        first_b,
        step_b,
        terms,
    )
    expected = sum_terms(a[row].astype(np.float64) * b[:, column].T.astype(np.float64))
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.tobytes()


def keeps_its_promise(terms: np.ndarray, s: float, e: float, m: float) -> bool:
    off = abs(sum(map(Fraction, terms.tolist())) - Fraction(float(s)) - Fraction(float(e)))
    return off <= max(len(terms) - 1, 0) * Fraction(2) ** -53 * Fraction(float(m)) * (1 + Fraction(2) ** -40)


@pytest.mark.parametrize("terms", [1, 2, 3, 16, 17, 40, 500])
def test_a_sum_and_its_errors_are_the_exact_sum_but_for_what_adding_up_so_many_errors_takes(terms: int) -> None:
    rng = np.random.default_rng(terms)
    x = rng.standard_normal((60, terms)) * 2.0 ** rng.integers(-100, 100, (60, terms))
    # Terms that cancel leave errors that are large beside the sum.
    x[20:, terms // 2 :] = -x[20:, : terms - terms // 2] * rng.choice([1.0, 1.0 + 2.0**-52], (40, terms - terms // 2))
    for row, s, e, m in zip(x, *sum_terms(x), strict=True):
        assert keeps_its_promise(row, s, e, m)


def test_sums_without_rounding_errors_say_so() -> None:
    x = np.random.default_rng(1).integers(-(2**40), 2**40, (50, 100)).astype(np.float64)
    s, e, m = sum_terms(x)
    assert s.tolist() == x.astype(np.int64).sum(axis=1).tolist()
    assert not e.any()
    assert not m.any()


@pytest.mark.parametrize("shape", [(1, 40, 7), (3, 20, 5), (4, 30, 1), (2, 0, 3)])
def test_sums_of_what_is_placed_take_it_and_nothing_else(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(shape[1])
    x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, shape)).astype(np.float32)
    size = 6
    index = rng.integers(-2, size + 2, shape)
    elements = np.sort(rng.choice(shape[0] * size * shape[2], 15, replace=False))
    for element, s, e, m in zip(elements, *sum_placed(x, index, size, elements), strict=True):
        outer, place, within = np.unravel_index(element, (shape[0], size, shape[2]))
        terms = x[outer, :, within][index[outer, :, within] == place].astype(np.float64)
        assert keeps_its_promise(terms, s, e, m)
        # The order is that of the terms, from zero.
        assert s == np.add.accumulate(terms)[-1] if len(terms) else s == 0.0


@pytest.mark.parametrize("sizes", [(5,), (1, 7), (3, 4, 5), (2, 1, 3, 4)])
def test_elements_are_located_where_strides_say(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(sizes))
    strides = tuple(int(stride) for stride in rng.integers(0, 50, len(sizes)))
    elements = rng.permutation(int(np.prod(sizes)))
    expected = [3 + int(np.dot(strides, np.unravel_index(element, sizes))) for element in elements]
    assert locate(elements, sizes, strides, 3).tolist() == expected


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 4, 5), (2, 7, 1), (4, 1, 9)])
def test_elements_of_batches_are_in_one_row_and_one_column_of_all(sizes: tuple[int, int, int]) -> None:
    batches, rows, columns = sizes
    count = batches * rows * columns
    for elements in (np.arange(count), np.random.default_rng(0).permutation(count)[: count // 2 + 1]):
        batch, row, column = np.unravel_index(elements, sizes)
        line, right = lines_of(elements, rows, columns)
        assert np.array_equal(line, batch * rows + row) and np.array_equal(right, batch * columns + column)
