"""Products tile by tile: sums in the order that is written down, rounded and marked as everywhere else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from roundlog.kernels.gemm_microkernel import TILES
from roundlog.kernels.gemm_tiles import OutputPlace, Product, certify_part, sum_part
from roundlog.kernels.marking import AmbiguousPart, mark_flat
from roundlog.kernels.tile_packing import Operand, lines_of

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

FACTOR = 9.0
GAMMA = 2.0**-43

SIZES = [
    # Less than a tile, tiles exactly, one more; several strips that are packed together; several chunks of terms.
    (1, 1, 1, 1),
    (8, 24, 8, 8),
    (9, 25, 9, 4),
    (7, 23, 17, 5),
    (20, 200, 33, 16),
    (17, 30, 2500, 250),
    (3, 100, 1030, 1024),
    (3, 100, 1200, 1200),
]


@pytest.fixture(params=sorted(TILES), ids=lambda lanes: f"{lanes} lanes")
def lanes(request: pytest.FixtureRequest) -> int:
    """Tiles for every kind of vectors: LLVM makes what the processor has of them."""
    return int(request.param)


def lines(x: F32, axis: int) -> Operand:
    """x: [N, K] (axis 0) or [K, N] (axis 1), wherever it lies in its memory."""
    memory = x if x.base is None else x.base
    flat = np.asarray(memory).reshape(-1)
    first = (x.ctypes.data - flat.ctypes.data) // 4
    steps = [step // 4 for step in x.strides]
    return lines_of(flat, first, steps[axis], steps[1 - axis])


def product(a: F32, b: F32, block: int, gamma: float = GAMMA) -> Product:
    return Product(lines(a, 0), lines(b, 1), (0, len(a)), (0, b.shape[1]), a.shape[1], block, gamma)


def in_order(a: F32, b: F32, block: int) -> F64:
    """The sums by FP64 additions, one term after the other, block by block."""
    total = np.zeros((len(a), b.shape[1]))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    edges = [*range(0, a.shape[1], block), a.shape[1]]
    with np.errstate(all="ignore"):
        for start, stop in pairwise(edges):
            block_sum = np.zeros_like(total)
            for k in range(start, stop):
                block_sum += wide_a[:, k, None] * wide_b[None, k]
            total += block_sum
    return total


def operands(rows: int, columns: int, terms: int) -> tuple[F32, F32]:
    generator = np.random.default_rng([rows, columns, terms])
    return (
        generator.standard_normal((rows, terms), dtype=np.float32),
        generator.standard_normal((terms, columns), dtype=np.float32),
    )


def norms(a: F32, b: F32) -> tuple[F64, F64]:
    return (np.sqrt((x.astype(np.float64) ** 2).sum(axis)) for x, axis in ((a, 1), (b, 0)))  # type: ignore[return-value]


def layouts(x: F32) -> list[F32]:
    spread = np.zeros((x.shape[0] + 2, 2 * x.shape[1] + 5), dtype=np.float32)
    spread[1:-1, 3:-2:2] = x
    inside = np.zeros((x.shape[0] + 1, x.shape[1] + 9), dtype=np.float32)
    inside[1:, 5:-4] = x
    return [x, np.ascontiguousarray(x.T).T, spread[1:-1, 3:-2:2], inside[1:, 5:-4]]


@pytest.mark.parametrize(("rows", "columns", "terms", "block"), SIZES)
def test_sums_are_taken_in_the_order_that_is_promised(
    lanes: int, rows: int, columns: int, terms: int, block: int
) -> None:
    a, b = operands(rows, columns, terms)
    expected = in_order(a, b, block)
    of_rows, of_columns = norms(a, b)
    for x, y in zip(layouts(a), layouts(b), strict=True):
        for left, right in ((x, b), (a, y)):
            sums, row_energy, column_energy = sum_part(lanes, product(left, right, block))
            assert np.array_equal(sums, expected)
            # Energies may be summed in any order: within the bounds' slack.
            assert np.allclose(np.sqrt(row_energy), of_rows, rtol=2.0**-40, atol=0)
            assert np.allclose(np.sqrt(column_energy), of_columns, rtol=2.0**-40, atol=0)


def place(out: F32, first: int, pitch: int, columns: int) -> OutputPlace:
    return OutputPlace(out, first, pitch, np.arange(columns))


def marked(lanes: int, a: F32, b: F32, block: int, out: OutputPlace, gamma: float = GAMMA) -> AmbiguousPart:
    return certify_part(lanes, product(a, b, block, gamma), FACTOR, out)


@pytest.mark.parametrize(("rows", "columns", "terms", "block"), SIZES)
@pytest.mark.parametrize("gamma", [GAMMA, 2.0**-30, 1.0], ids=["few", "many", "all"])
def test_tiles_are_rounded_and_marked_as_whole_outputs_are(
    lanes: int, rows: int, columns: int, terms: int, block: int, gamma: float
) -> None:
    a, b = operands(rows, columns, terms)
    # Norms that are exact, however they are summed up: no element may be marked here and not there.
    a, b = np.sign(a) * np.float32(0.5), np.sign(b) * (1 + b.round() % 2)
    y, row_energy, column_energy = sum_part(lanes, product(a, b, block))
    expected = np.zeros(rows * columns, dtype=np.float32)
    d = (np.sqrt(row_energy) * gamma)[:, None] * np.sqrt(column_energy)
    (near,) = mark_flat(y.reshape(-1), d.reshape(-1), FACTOR, expected)
    # As a part of a larger output, of which nothing else is touched.
    pitch, first = columns + 3, 5
    memory = np.full(first + rows * pitch, np.float32(7), dtype=np.float32)
    found = marked(lanes, a, b, block, place(memory, first, pitch, columns), gamma)
    inside = memory[first:].reshape(rows, pitch)
    assert np.array_equal(inside[:, :columns].reshape(-1).view(np.int32), expected.view(np.int32))
    assert (memory[:first] == 7).all() and (inside[:, columns:] == 7).all()
    order = np.argsort(found.indices)
    row, column = np.divmod(near.indices, columns)
    assert np.array_equal(found.indices[order], first + row * pitch + column)
    assert np.array_equal(found.y[order], near.y) and np.array_equal(found.d[order], near.d)
    assert gamma != 1.0 or len(found.indices) == rows * columns
