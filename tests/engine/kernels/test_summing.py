"""Sums of products, some terms at a time and in another order of elements, are what their terms sum to, to the bit; and
a sum, its errors and their magnitude keep their promises."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from roundlog.kernels import summing
from roundlog.kernels.summing import sum_products, sum_terms


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


@pytest.mark.parametrize("terms", [1, 2, 3, 16, 17, 40, 500])
def test_a_sum_and_its_errors_are_the_exact_sum_but_for_what_adding_up_so_many_errors_takes(terms: int) -> None:
    rng = np.random.default_rng(terms)
    x = rng.standard_normal((60, terms)) * 2.0 ** rng.integers(-100, 100, (60, terms))
    # What cancels leaves errors that are large beside the sum.
    x[20:, terms // 2 :] = -x[20:, : terms - terms // 2] * rng.choice([1.0, 1.0 + 2.0**-52], (40, terms - terms // 2))
    for row, s, e, m in zip(x, *sum_terms(x), strict=True):
        off = abs(sum(map(Fraction, row.tolist())) - Fraction(float(s)) - Fraction(float(e)))
        assert off <= (terms - 1) * Fraction(2) ** -53 * Fraction(float(m)) * (1 + Fraction(2) ** -40)


def test_sums_without_rounding_errors_say_so() -> None:
    x = np.random.default_rng(1).integers(-(2**40), 2**40, (50, 100)).astype(np.float64)
    s, e, m = sum_terms(x)
    assert s.tolist() == x.astype(np.int64).sum(axis=1).tolist()
    assert not e.any()
    assert not m.any()
