"""Sums of products, some terms at a time and in another order of elements, are what their terms sum to, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from roundlog.kernels.summing import sum_products, sum_terms


@pytest.mark.parametrize("terms", [1, 255, 256, 257, 1000])
@pytest.mark.parametrize(("a_by_rows", "b_by_rows"), [(True, True), (True, False), (False, True), (False, False)])
def test_sums_of_products_are_the_sums_of_their_terms(terms: int, a_by_rows: bool, b_by_rows: bool) -> None:
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
