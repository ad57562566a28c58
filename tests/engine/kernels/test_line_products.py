"""Products of a few rows: every element that is not marked is the exact sum rounded once, whatever the layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels.gemm_microkernel import TILES
from roundlog.kernels.line_microkernel import TOGETHER, vectors_at_once
from roundlog.kernels.line_products import FEW, certify_lines, span_of, takes
from roundlog.kernels.number_words import words_of
from roundlog.operators.bounds import Ambiguous
from roundlog.operators.summation import blocked_gamma, chain, longest_block

SCALE = 8.0

SIZES = [
    # Batches, rows, terms, columns: less than a vector; one more than whole vectors, in batches; several parts and
    # blocks; more rows than a tile has columns; many terms.
    (1, 1, 1, 1),
    (2, 2, 33, 25),
    (1, FEW, 700, 50),
    (3, FEW, 40, 3),
    (2, 1, 9000, 30),
]


@pytest.fixture(params=sorted(TILES), ids=lambda lanes: f"{lanes} lanes")
def lanes(request: pytest.FixtureRequest) -> int:
    """For every kind of vectors: LLVM makes what the processor has of them."""
    return int(request.param)


def operands(
    size: tuple[int, int, int, int], dtype: torch.dtype, layout: str, spread: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """a [B, M, K], its terms apart, and b [B, K, N], whose terms or columns lie side by side inside of more memory."""
    batches, rows, terms, columns = size
    draw = torch.Generator().manual_seed(sum(size))
    a = torch.randn(batches, rows, terms, 2, generator=draw)
    shape = (batches, columns, terms + 3) if layout == "terms" else (batches, terms, columns + 3)
    b = torch.randn(shape, generator=draw)
    if spread:
        a, b = (x * 2.0 ** torch.randint(-spread, spread, x.shape, generator=draw) for x in (a, b))
    b = b.to(dtype)
    return a.to(dtype)[..., 1], b[..., 1:-2].mT if layout == "terms" else b[..., 1:-2]


def certified(lanes: int, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, Ambiguous]:
    out = torch.full((a.shape[0], a.shape[1], b.shape[2]), 7.0, dtype=a.dtype)
    terms = a.shape[2]
    how = longest_block(terms), blocked_gamma(terms), interval_factor(SCALE)
    return out, Ambiguous.collect(certify_lines(lanes, a, b, *how, words_of(out)))


def exact_sums(a: torch.Tensor, b: torch.Tensor) -> list[float]:
    """The exact sums, rounded to FP64 once."""
    left, right = a.double().numpy(), b.double().numpy()
    return [
        math.fsum((left[batch, row] * right[batch, :, column]).tolist())
        for batch in range(len(left))
        for row in range(left.shape[1])
        for column in range(right.shape[2])
    ]


@pytest.mark.parametrize(("dtype", "layout"), [(torch.float32, "terms"), (torch.bfloat16, "columns")])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_all_but_marked_elements_are_right(
    lanes: int, size: tuple[int, int, int, int], dtype: torch.dtype, layout: str
) -> None:
    for spread in (0, 12):
        a, b = operands(size, dtype, layout, spread)
        assert takes(a, b)
        out, marked = certified(lanes, a, b)
        exact = torch.tensor(exact_sums(a, b), dtype=torch.float64)
        near = marked.indices.tolist()
        assert near == sorted(set(near))
        sure = torch.ones(out.numel(), dtype=torch.bool)
        sure[marked.indices] = False
        # FP64 to either format at once: no sum is within 2^-53 of a boundary, or it is marked.
        right = exact.float() if dtype == torch.float32 else rounded_to_bf16(exact)
        assert torch.equal(out.reshape(-1)[sure].float(), right[sure])
        norms = (a.double().norm(dim=2)[:, :, None] * b.double().norm(dim=1)[:, None]).reshape(-1)
        d = norms * blocked_gamma(a.shape[2])
        torch.testing.assert_close(marked.d, d[marked.indices], rtol=1e-12, atol=0.0)
        assert ((marked.y - exact[marked.indices]).abs() <= marked.d).all()


def rounded_to_bf16(y: torch.Tensor) -> torch.Tensor:
    """FP64 -> the nearest BF16 number, ties to even, as FP32."""
    mantissa, exponent = np.frexp(y.numpy())
    return torch.from_numpy(np.ldexp(np.rint(mantissa * 256.0), exponent - 8).astype(np.float32))


def test_no_term_goes_through_more_additions_than_its_bound_allows() -> None:
    for lanes in TILES:
        for rows in (1, TOGETHER):
            at_once = lanes * vectors_at_once(rows)
            for terms in [*range(1, 3000), 5000, 8192, 16384, 70000, 1 << 20]:
                span = span_of(longest_block(terms), lanes, rows)
                some = min(span, terms)
                # Of a span: those of its steps, of the halvings, of the rest; then one for every further span. What is
                # added to nothing stays what it is.
                steps, rest = divmod(some, at_once)
                of_span = steps - 1 + at_once.bit_length() - 1 + rest if steps else rest - 1
                additions = of_span + -(-terms // span) - 1
                assert additions < chain(terms), (lanes, rows, terms)
