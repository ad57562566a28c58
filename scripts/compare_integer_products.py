"""Compares products by integers, which CUDA devices compute by `roundlog.kernels.cuda.integer_products`, with the CPU's
kernels, and counts what they leave in doubt. The integers are NumPy's here, by the same rules (docs/numerics.md).

    python scripts/compare_integer_products.py [--elements 10000000]
    python scripts/compare_integer_products.py --step 10 [--model gpt12m] [--precision bf16]

The first command multiplies random matrices; the exit code is 1 if an element that is decided is rounded otherwise than
the CPU rounds it, or marked there, and else 0. The second trains, and counts the elements in doubt of all products of
matrices of one step, by shape.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from bench_engine import MODELS, PRECISIONS, Certified, task_of
from roundlog.execution import Batches
from roundlog.kernels.cuda.integer_products import LEVELS
from roundlog.number_format import BFLOAT16, FLOAT16, FLOAT32, Format
from roundlog.operators import Inexact, operator
from roundlog.operators.registry import Attributes, Tensors
from roundlog.operators.summation import blocked_gamma
from roundlog.rounding import Recorder, Window, certify
from roundlog.training.job import Job

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
GUARD, SIDE = 4, 464
BIAS, PLACE = 125, 6


@dataclass(frozen=True)
class Digits:
    """Lines of a matrix as digits of base 256. Rests and norms are in units of the lines' powers of two."""

    field: I64
    """int64[L]."""
    digits: F64
    """f64[n, L, K], integers."""
    rests: F64
    """f64[n + 1, L]: sums of magnitudes of what the first 0 .. n digits leave."""
    norms: F64
    """f64[L]."""


def digits_of(x: npt.NDArray[np.float32], many: int) -> Digits:
    """x: f32[L, K]."""
    words = x.view(np.int32).astype(np.int64)
    exponent = words >> 23 & 0xFF
    largest = np.minimum(words & 0x7FFFFFFF, 0x7F800000).max(axis=1)
    field = np.maximum(largest + (1 << 17) >> 23, 1)
    # Multiples of 2^-149 that are below 2^24 by a power of two, and the number to be cut, with its last bit a half.
    below = field[:, None] - np.maximum(exponent, 1) + 25 - 8 * many
    significand = (words & 0x7FFFFF) + ((exponent > 0).astype(np.int64) << 23)
    exact = np.ldexp(significand.astype(np.float64), -np.minimum(below, 60))
    whole = np.floor(exact + 0.5)
    lost = np.where(whole != exact, 0.5, 0.0)
    rest, digits, rests = np.where(words < 0, -whole, whole).astype(np.int64), [], [lost.sum(axis=1)]
    low = np.zeros_like(rest)
    for place in range(many):
        digit = (rest + 128 & 255) - 128
        rest = rest - digit >> 8
        low += digit << 8 * place
        digits.append(digit.astype(np.float64))
        rests.append((np.abs(low) + lost).sum(axis=1))
    assert not rest.any() and np.abs(digits[-1]).max(initial=0) < 128
    return Digits(
        field,
        np.stack(digits[::-1]),
        np.stack(rests[::-1]) * 2.0 ** (-8 * many),
        np.sqrt((low.astype(np.float64) ** 2).sum(axis=1)) * 2.0 ** (-8 * many),
    )


def decide(
    a: torch.Tensor, b: torch.Tensor, ratio: float, many: int, format: Format, slack: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `decide` of `roundlog.kernels.cuda.integer_product_kernels` returns for f32[M, K] and f32[K, N], but that
    reaches are evaluated in FP64, and `slack` times as large."""
    terms = a.shape[1]
    left, right = (digits_of(x.contiguous().numpy(), many) for x in (a, b.T))
    total, missed = np.zeros((a.shape[0], b.shape[1]), dtype=np.int64), 2
    for start in range(0, terms, 1 << 14):
        some = slice(start, start + (1 << 14))
        for weight in range(2, many + 3):
            pairs = [(i, weight - 2 - i) for i in range(many) if 0 <= weight - 2 - i < many]
            products = sum(left.digits[i][:, some] @ right.digits[j][:, some].T for i, j in pairs)
            assert np.abs(products).max(initial=0) < 2**31
            shift = 8 * (PLACE - weight)
            total += products.astype(np.int64) << shift if shift >= 0 else products.astype(np.int64) >> -shift
            missed += shift < 0
    # By digits of A from 1 on, how many digits of B they are multiplied by.
    kept, half = [min(many, many + 2 - at) for at in range(1, many + 1)], many // 2
    sizes = np.abs(left.digits).sum(axis=2)
    rows = 0.5 * left.rests[many] + sum(sizes[at] * 2.0 ** (-9 - 8 * at - 8 * kept[at]) for at in range(half, many))
    columns = sum(2.0 ** (-1 - 8 * at) * right.rests[kept[at]] for at in range(half))
    norms = left.norms[:, None] * right.norms
    reach = (rows[:, None] + columns + norms * ratio) * slack * 2.0 ** (8 * PLACE) + np.abs(total) * 2.0**-50
    away = reach.astype(np.int64) + missed
    low, high = ((total + end).astype(np.float32).view(np.int32) for end in (-away, away))
    dropped = 23 - format.fraction_bits
    tie = 1 << dropped >> 1
    ways = [(end + way) >> dropped for end in (low, high) for way in (tie, max(tie - 1, 0))]
    certain = np.logical_and.reduce([way == ways[0] for way in ways[1:]])
    moved = left.field[:, None] + right.field - 2 * BIAS - 8 * PLACE
    word = (ways[0] << dropped).astype(np.int64)
    exponent = (word >> 23 & 0xFF) + moved
    certain &= (exponent >= 127 + format.least_exponent) & (exponent <= 127 + format.largest_exponent)
    finite = (left.field[:, None] < 255) & (right.field < 255)
    rounded = np.where(norms == 0, 0, word + (moved << 23)).astype(np.int32).view(np.float32)
    return torch.from_numpy(rounded), torch.from_numpy(~((certain | (norms == 0)) & finite))


def random_products(elements: int) -> Iterator[tuple[str, Format, torch.Tensor, torch.Tensor]]:
    """Operands of products that have so many elements together, at least."""
    rng = np.random.default_rng(0)
    kinds = {
        "normal": lambda shape: rng.standard_normal(shape),
        "Student's t, 3": lambda shape: rng.standard_t(3, shape),
        "normal x exp(2 normal)": lambda shape: rng.standard_normal(shape) * np.exp(2 * rng.standard_normal(shape)),
        "small integers": lambda shape: rng.integers(-99, 99, shape).astype(np.float64),
    }
    while True:
        for terms in (64, 384, 1024, 3072):
            for name, numbers in kinds.items():
                for format, dtype in FORMATS.items():
                    a, b = (torch.from_numpy(numbers(shape)).to(dtype) for shape in ((SIDE, terms), (terms, SIDE)))
                    yield name, format, a, b
                    elements -= SIDE * SIDE
                    if elements <= 0:
                        return


FORMATS = {FLOAT32: torch.float32, BFLOAT16: torch.bfloat16, FLOAT16: torch.float16}


def by_levels(a: torch.Tensor, b: torch.Tensor, format: Format) -> tuple[list[float], torch.Tensor, torch.Tensor]:
    """The shares in doubt by the levels that a device would try, and what `decide` returns of the last one."""
    shares: list[float] = []
    ratio = blocked_gamma(a.shape[1]) * (GUARD + 2)
    for digits, share in LEVELS.get(a.dtype, LEVELS[torch.float32]):
        rounded, doubts = decide(a.float(), b.float(), ratio, digits, format)
        shares.append(float(doubts.double().mean()))
        if shares[-1] * share <= 1:
            break
    return shares, rounded, doubts


def compare(elements: int) -> int:
    """Print a line for each sort of product, and return the exit code."""
    found: dict[tuple[str, Format, int], list[float]] = {}
    matmul = operator("matmul")
    assert isinstance(matmul, Inexact)
    for name, format, a, b in random_products(elements):
        shares, rounded, doubts = by_levels(a, b, format)
        right, marked = certify(matmul, [a, b], {}, GUARD, format)
        row = found.setdefault((name, format, a.shape[1]), [0.0] * 6)
        wrong = int((~doubts & (rounded != right.float())).sum())
        counts = doubts.numel(), shares[0] * doubts.numel(), int(doubts.sum()), len(shares) - 1, wrong
        row[:] = [x + y for x, y in zip(row, (*counts, int((~doubts).view(-1)[marked.indices].sum())), strict=True)]
    print("| operands | format | terms | elements | in doubt first | in the end | wrong | marked by the CPU |")
    print("|---|---|---|---|---|---|---|---|")
    for (name, format, terms), (many, first, doubtful, _, wrong, marked) in found.items():
        print(
            f"| {name} | {NAMES[format]} | {terms} | {many:,.0f} | {first / many:.5f} | {doubtful / many:.5f} ", end=""
        )
        print(f"| {wrong:.0f} | {marked:.0f} |")
    print(f"{sum(row[0] for row in found.values()):,.0f} elements")
    return int(any(row[4] or row[5] for row in found.values()))


PRODUCTS = {3: 8, 5: 19, 6: 26}
"""Pairs of so many digits whose weights are low enough."""
NAMES = {FLOAT32: "FP32", BFLOAT16: "BF16", FLOAT16: "FP16"}


class Counting(Recorder):
    """Certified rounding that counts what integers would leave in doubt of products of matrices."""

    def __init__(self, guard: int) -> None:
        super().__init__(guard)
        self.shares: dict[str, list[list[float]]] = {}
        self.weighed = np.zeros(3)
        """Multiplications, and by them products of digits and elements in doubt."""
        self.on = False

    def round(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes, format: Format = FLOAT32,
        window: Window | None = None,
    ) -> torch.Tensor:  # fmt: skip
        if self.on and operator.name == "matmul":
            a, b = (x if x.ndim == 3 else x[None] for x in inputs)
            # Of many products of one batch, some.
            shares = [by_levels(a[i], b[i], format)[0] for i in range(0, len(a), max(1, len(a) // 8))]
            longest = max(map(len, shares))
            mean = [float(np.mean([one[at] for one in shares if len(one) > at])) for at in range(longest)]
            products = PRODUCTS[LEVELS.get(a.dtype, LEVELS[torch.float32])[longest - 1][0]]
            self.weighed += a.numel() * b.shape[2] * np.array([1, products, mean[-1]])
            batch = f"{len(a)} x " if len(a) > 1 else ""
            shape = f"{NAMES[format]}, {batch}[{a.shape[1]}, {a.shape[2]}] @ [{a.shape[2]}, {b.shape[2]}]"
            self.shares.setdefault(shape, []).append(mean)
        return super().round(index, operator, inputs, attributes, format, window)


def count(model: str, precision: str, step: int) -> int:
    """Print a line for each shape, and return the exit code."""
    task = task_of(model, step + 1, precision)
    job = Job.from_task(lambda: task)
    training, rounding, batches = Certified(job, torch.device("cpu")), Counting(GUARD), Batches(job.dataset, job.spec)
    for number in range(step + 1):
        rounding.on = number == step
        training.step(number, batches.load(number), rounding)
        rounding.take()
    print("| product | in a step | in doubt, mean | most | that take more digits | in doubt then |")
    print("|---|---|---|---|---|---|")
    for shape, shares in rounding.shares.items():
        first, more = [one[0] for one in shares], [one[1] for one in shares if len(one) > 1]
        then = f"{np.mean(more):.5f}" if more else ""
        print(f"| {shape} | {len(shares)} | {np.mean(first):.5f} | {max(first):.5f} | {len(more)} | {then} |")
    many, products, doubtful = rounding.weighed
    print(f"by multiplications: {products / many:.2f} products of digits, {doubtful / many:.5f} in doubt")
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--step", type=int, help="count what is in doubt in this step of a training")
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt12m")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    given = parser.parse_args()
    sys.exit(compare(given.elements) if given.step is None else count(given.model, given.precision, given.step))


if __name__ == "__main__":
    main()
