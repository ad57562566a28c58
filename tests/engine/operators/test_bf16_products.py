"""Products of BF16 matrices by all kernels for the CPU: the exact sums, rounded once, and the same logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
import torch
from roundlog.kernels import gemm_microkernel
from roundlog.kernels.pair_microkernel import adds_pairs
from roundlog.log import Entries
from roundlog.number_format import BFLOAT16
from roundlog.operators import Inexact, operator
from roundlog.operators.bounds import Ambiguous
from roundlog.operators.contraction import MatMul
from roundlog.operators.cpu import gemm
from roundlog.operators.exact_lines import are_exact, measure_lines, refine_products, units_of
from roundlog.operators.summation import InParts, sum_by_torch
from roundlog.rounding import Follower, Recorder

GUARD = 4
NARROW = torch.bfloat16
TILES = ((8, 1), (4, 1), (2, 1), *(((8, 2),) if adds_pairs(8) > 1 else ()))
"""Lanes of tiles, and how many products are added at once in FP32."""


def words_of(x: torch.Tensor) -> np.ndarray:
    """Encodings, with one NaN."""
    words = x.contiguous().reshape(-1).view(torch.int16).numpy().view(np.uint16)
    return np.where(x.reshape(-1).isnan().numpy(), BFLOAT16.nan, words)


def scaled(x: torch.Tensor) -> np.ndarray:
    """Finite numbers as integers, in multiples of 2^-133; 0 for others."""
    words = np.where(x.reshape(-1).isfinite().numpy(), words_of(x), 0)
    return np.array([BFLOAT16.scaled(int(word)) for word in words], dtype=object).reshape(x.shape)


def exactly(a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """Encodings of the product of two matrices, by integers; what is not finite by IEEE 754's own rules."""
    sums = np.dot(scaled(a), scaled(b)).reshape(-1)
    found = [BFLOAT16.nearest(Fraction(int(total), 1 << 266)) for total in sums]
    odd_a, odd_b = ~a.isfinite(), ~b.isfinite()
    for i, j in (odd_a.any(1)[:, None] | odd_b.any(0)).nonzero().tolist():
        odd = odd_a[i] | odd_b[:, j]
        by_rules = (a[i, odd].double() * b[odd, j].double()).sum()
        found[i * b.shape[1] + j] = int(words_of(by_rules.to(NARROW))[0])
    # An inexact operator's zero has no sign.
    return np.array([0 if word == BFLOAT16.sign else word for word in found])


def gaussian(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to(NARROW)


def cancelling(rng: np.random.Generator, rows: int, terms: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Terms come in pairs that cancel, but for a few."""
    a, b = gaussian(rng, rows, terms), gaussian(rng, terms, columns)
    half = terms // 2
    a[:, half : 2 * half], b[half : 2 * half] = a[:, :half], -b[:half]
    if terms > 3:
        b[0] *= 1.5
    return a, b


def tied(rng: np.random.Generator, rows: int, terms: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Every sum is an odd multiple of half a place, 128 to 256 places high, or lies a little beside one."""
    a = torch.from_numpy(rng.choice([0.0, 1.0, -1.0], (rows, terms))).to(NARROW)
    b = torch.from_numpy(rng.choice([0.0, 1.0, -1.0], (terms, columns))).to(NARROW)
    a[:, 0], b[0] = torch.from_numpy(rng.integers(128, 256, rows)).to(NARROW), 1.0
    if terms > 2:
        a[:, 1:], b[1:] = 0.0, 0.0
        a[:, 1], b[1] = 1.0, 0.5
        least = torch.from_numpy(rng.choice([0.0, 2.0**-20, -(2.0**-20), 2.0**-60, -(2.0**-60)], rows))
        a[:, -1], b[-1] = least.to(NARROW), 1.0
        if terms > 6:
            # Behind what is far larger, and cancels.
            a[:, 3], a[:, terms // 2], b[3], b[terms // 2] = 2.0**30, 2.0**30, 1.0, -1.0
    return a, b


def extreme(rng: np.random.Generator, rows: int, terms: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All exponents: products below the least FP32 number, and beyond the largest."""

    def drawn(*shape: int) -> torch.Tensor:
        exponents = rng.integers(-133, 127, shape)
        return (torch.from_numpy(rng.standard_normal(shape)) * 2.0 ** torch.from_numpy(exponents)).to(NARROW)

    return drawn(rows, terms), drawn(terms, columns)


def of_size(low: int, high: int):  # type: ignore[no-untyped-def]
    def drawn(rng: np.random.Generator, rows: int, terms: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = gaussian(rng, rows, terms), gaussian(rng, terms, columns)
        return (a.double() * 2.0**low).to(NARROW), (b.double() * 2.0**high).to(NARROW)

    return drawn


def infinite(rng: np.random.Generator, rows: int, terms: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = gaussian(rng, rows, terms), gaussian(rng, terms, columns)
    for x in (a, b):
        flat = x.view(-1)
        for value in (torch.inf, -torch.inf, torch.nan, 0.0):
            flat[rng.integers(0, len(flat))] = value
    return a, b


def biased(rng: np.random.Generator, rows: int, terms: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums beside ties, behind what FP32 loses of a large first term and many small ones, rounding towards one side."""
    a, b = torch.ones(rows, terms, dtype=torch.float64), torch.ones(terms, columns, dtype=torch.float64)
    # Nearly half a place of the first term's sum, or, in sums of eight or sixteen, nearly halves of places of these.
    shares = np.array([0.498, 0.502, -0.498, 0.186, 0.311, 0.0312, 0.0938, -0.436])
    a[:, 0] = torch.from_numpy(rng.integers(128, 256, rows) + 0.0)
    if terms > 2:
        a[:, 1:] = torch.from_numpy(rng.choice(shares, (rows, 1)) * 2.0**-16)
        a[:, terms // 2 :] *= torch.from_numpy(rng.choice([0.0, 1.0], (rows, 1)))
        lost = a.to(NARROW).double()[:, 1:-1].sum(1)
        # What is left of the tie's half by FP32's errors, a little more, or a little less.
        b[-1], a[:, -1] = 1.0, 0.5 - lost * torch.from_numpy(rng.choice([0.0, 0.5, 1.0, 1.004], rows))
    return a.to(NARROW), b.to(NARROW)


def with_subnormal(rng: np.random.Generator, rows: int, terms: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Subnormal numbers meet large ones: what is lost by taking them as zeros counts."""
    a, b = gaussian(rng, rows, terms).double(), gaussian(rng, terms, columns).double()
    small = 2.0**-116 * torch.from_numpy(rng.choice([1.0, 2.0**-9], terms))
    of_a, of_b = (small, 1 / small) if terms % 2 else (1 / small, small)
    return (a * of_a).to(NARROW), (b * of_b[:, None]).to(NARROW)


KINDS = {
    "cancelling": cancelling,
    "ties": tied,
    "all exponents": extreme,
    "subnormal": of_size(-130, 0),
    "products below FP32": of_size(-80, -75),
    "products at the end of FP32": of_size(60, 64),
    "biased": biased,
    "subnormal beside large": with_subnormal,
    "infinite": infinite,
}


def layouts(x: torch.Tensor) -> list[torch.Tensor]:
    """The numbers of a matrix as they may lie in memory."""
    spread = torch.full((x.shape[0] + 2, 2 * x.shape[1] + 5), 7.0, dtype=NARROW)
    spread[1:-1, 3:-2:2] = x
    return [x, x.T.contiguous().T, spread[1:-1, 3:-2:2]]


@contextmanager
def by(kernel: tuple[int, int], fast: bool) -> Iterator[None]:
    lanes, at_once = kernel
    with (
        patch.object(gemm_microkernel, "tile_lanes", lambda: lanes),
        patch.object(gemm, "adds_pairs", lambda lanes: at_once),
        patch.object(gemm, "fast_short_products", lambda: fast),
        patch.object(gemm, "has_short_bounds", lambda terms, factor: True),
        patch.object(gemm, "worth_it", lambda terms, at_once: True),
    ):
        yield


def recorded(a: torch.Tensor, b: torch.Tensor) -> tuple[np.ndarray, Entries]:
    """Encodings of the product, and its log, which an auditor finds right."""
    op, recorder = operator("matmul"), Recorder(GUARD)
    assert isinstance(op, Inexact)
    found = recorder.round(0, op, [a, b], {}, BFLOAT16)
    assert found.dtype == NARROW
    entries = recorder.take().get(0, Entries.empty())
    follower = Follower(GUARD, 1.0, np.random.default_rng(0))
    follower.follow(0, {0: entries})
    assert np.array_equal(words_of(follower.round(0, op, [a, b], {}, BFLOAT16)), words_of(found))
    assert follower.findings == []
    return words_of(found), entries


def same(one: Entries, other: Entries) -> bool:
    pairs = ((one.indices, other.indices), (one.decisions, other.decisions), (one.values, other.values))
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("rows", "terms", "columns"),
    [(19, 17, 53), (5, 300, 26), (16, 1, 7), pytest.param(9, 5000, 26, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_gives_the_exact_sums_rounded_once(kind: str, rows: int, terms: int, columns: int) -> None:
    a, b = KINDS[kind](np.random.default_rng([terms, *map(ord, kind)]), rows, terms, columns)
    right, pairs = exactly(a, b), list(zip(layouts(a), reversed(layouts(b)), strict=True))
    for number, kernel in enumerate(TILES):
        # Of small ones a layout for each kernel.
        for x, y in pairs if terms > 1000 else [pairs[number % len(pairs)]]:
            logs = []
            for fast in (False, True):
                with by(kernel, fast):
                    found, log = recorded(x, y)
                assert np.array_equal(found, right), (kernel, fast)
                logs.append(log)
            assert same(*logs), kernel


@pytest.mark.parametrize("terms", [300])
def test_what_fp64_adds_exactly_is_not_logged_by_any_kernel(terms: int) -> None:
    rng = np.random.default_rng(terms)
    a, b = ((gaussian(rng, *shape) * 16).round() / 16 for shape in ((70, terms), (terms, 130)))
    right, op = exactly(a, b), operator("matmul")
    assert isinstance(op, MatMul)
    y = a.double() @ b.double()
    assert int((y.to(NARROW).double() - y).abs().eq(2.0**-8 * 2 ** y.abs().log2().floor()).sum()) > 50, "ties"
    for kernel in TILES:
        with by(kernel, True):
            found, log = recorded(a, b)
        assert np.array_equal(found, right) and not len(log.indices), kernel
    recorder = Recorder(GUARD)
    parts = InParts(op, terms, 2, lambda part: [a[:, part::2], b[part::2]])
    assert np.array_equal(words_of(recorder.round(0, parts, [], {}, BFLOAT16)), right) and not recorder.take()


@pytest.mark.parametrize("terms", [64])
def test_what_fp64_adds_exactly_of_bf16_numbers_in_fp32_is_not_logged(terms: int) -> None:
    """Attention's gradients are such products: every eighth of them is a tie between two FP32 numbers."""
    rng, op = np.random.default_rng(terms), operator("matmul")
    assert isinstance(op, MatMul)
    a, b = (gaussian(rng, 2, *shape).clamp(min=2.0**-4).float() for shape in ((70, terms), (terms, 130)))
    b[0, 1, 2] += 2.0**-12  # a column that is none of BF16 numbers
    y = torch.stack([x.double() @ other.double() for x, other in zip(a, b, strict=True)])
    is_tie = (y.view(torch.int64) & 0x1FFFFFFF) == 0x10000000
    assert int(is_tie.sum()) > 500

    def logged(a: torch.Tensor, b: torch.Tensor, op: Inexact = op) -> set[int]:
        recorder = Recorder(GUARD)
        found = recorder.round(0, op, [a, b] if op.name == "matmul" else [], {})
        assert torch.equal(found, y[: len(found)].float() if found.ndim == 3 else y[0].float())
        return set(recorder.take().get(0, Entries.empty()).indices.tolist())

    right = set(is_tie[0, :, 2].nonzero().squeeze(1).mul(130).add(2).tolist())
    for kernel in TILES:
        with by(kernel, False):
            assert right and logged(a, b) == logged(a[:1], b[:1]) == logged(a[0], b[0]) == right, kernel
    in_parts = InParts(op, terms, 2, lambda part: [a[0, :, part::2], b[0, part::2]])
    assert logged(a[0], b[0], in_parts) == right
    with patch.object(MatMul, "certify", Inexact.certify):  # as on a device
        assert logged(a, b) == right


def test_lines_are_exact_up_to_what_fp64_holds() -> None:
    """A line of 2^k and one is 2^k + 1 of its last places, and 2^(k + 1) with two."""
    for low, high, exact in ((26, 26, True), (26, 27, False), (20, 32, True), (20, 33, False)):
        a, b = torch.tensor([[2.0**low, 1.0, 1.0]]), torch.tensor([[2.0**high], [1.0], [0.0]])
        units = [units_of(measure_lines(x.to(NARROW), dim)) for x, dim in ((a, 1), (b, 0))]
        assert [float(one) for one in units] == [2.0**low + 2, 2.0**high + 1]
        assert bool(are_exact(*units)) == exact == (float(units[0]) * float(units[1]) < 2**53)
        for scale in (2.0**-100, 2.0**90):
            assert torch.equal(units_of(measure_lines((a * scale).to(NARROW), 1)), units[0])
    whole, none = (sum_by_torch(a[:, :end], (1,))[1] for end in (a.shape[1], 0))
    assert all(torch.equal(torch.minimum(one, other), one) for one, other in zip(whole[1:], none[1:], strict=True))
    of_zeros = units_of(measure_lines(torch.zeros(1, 3), 1))
    assert bool(are_exact(of_zeros, of_zeros + 2.0**60))
    assert not are_exact(of_zeros + 1, units_of(measure_lines(torch.tensor([[1.0, torch.inf]]), 1)))
    assert not are_exact(of_zeros + 1, units_of(measure_lines(torch.tensor([[1.0, torch.nan]]), 1)))


@pytest.mark.parametrize("seed", [0, 1, 4, 5, 11])
def test_lines_in_one_loop_are_those_of_their_measures(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    batches, rows, terms, columns = (int(x) for x in torch.randint(1, 150, (4,), generator=draws))
    spread = seed * 4

    def numbers(*shape: int) -> torch.Tensor:
        exponents = (torch.randn(shape, generator=draws) * spread).round().clamp(-140, 110)
        x = (torch.randn(shape, generator=draws).double() * torch.exp2(exponents.double())).to(NARROW)
        x[torch.rand(shape, generator=draws) < 0.1] = 0
        if seed % 3 == 2:
            x.view(-1)[:: x.numel() // 3 + 1] = (torch.inf, torch.nan)[seed % 2]
        return x

    batch = (batches % 4,) if seed % 2 and batches % 4 else ()
    a = numbers(*batch, rows, terms) if seed % 4 else numbers(*batch, terms, rows).mT
    b = numbers(*batch, terms, columns) if seed % 5 else numbers(*batch, columns, terms).mT
    wide = a.float()
    if seed % 3 == 1:
        wide[..., 0, 0] = 1 + 2.0**-20  # none of BF16
    for left, right in ((a, b), (wide, b.float())):
        of_rows, of_columns = (units_of(measure_lines(x, x.ndim + dim)) for x, dim in ((left, -1), (right, -2)))
        indices = torch.randperm(len(of_rows.reshape(-1)) * columns, generator=draws)[:60].sort().values
        marked = refine_products(Ambiguous(indices, *torch.ones(2, len(indices), dtype=torch.float64)), left, right)
        line, column = indices // columns, indices % columns
        others = of_columns.reshape(-1, columns)[line // rows, column]
        assert torch.equal(marked.d == 0, are_exact(of_rows.reshape(-1)[line], others))


@pytest.mark.parametrize("terms", [4096, 4097])
def test_every_processor_marks_the_same_elements_with_the_same_bounds(terms: int) -> None:
    rng = np.random.default_rng(terms)
    a, b = (torch.from_numpy(np.rint(rng.standard_normal(shape) * 4) / 4) for shape in ((20, terms), (terms, 50)))
    # Squares that FP64 does not add exactly, of terms that do not move the sums.
    a[:, -100:], b[-100:] = torch.from_numpy(rng.standard_normal((20, 100)) * 2.0**-18), 0.0
    a, b = a.to(NARROW), b.to(NARROW)
    found = []
    for lanes, at_once in TILES:
        with (
            patch.object(gemm_microkernel, "tile_lanes", lambda lanes=lanes: lanes),
            patch.object(gemm, "adds_pairs", lambda lanes, at_once=at_once: at_once),
        ):
            out, near = gemm.certify_product(a[None], b[None], 4_000.0)
        found.append((out, near.indices, near.y, near.d))
    assert len(found[0][1])
    for others in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], others, strict=True))
