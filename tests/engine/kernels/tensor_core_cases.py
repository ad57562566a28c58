"""Operands of products as tensor cores add them, which every processor has to multiply to the same bits; and a
digest of all of their products, which a process prints."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable

import numpy as np
import torch
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.kernels.tensor_core_products import GroupArithmetic, TensorCoreSums, tensor_core_product

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
FIELD_BITS = {"bf16": (8, 7), "f16": (5, 10), "tf32": (8, 10)}
DEFINED = [(name, format) for name, one in ARITHMETICS.items() for format in one.terms]


def arithmetic_of(name: str, format: str) -> GroupArithmetic:
    return GroupArithmetic.of(ARITHMETICS[name], format)


def product(name: str, format: str, a: torch.Tensor, b: torch.Tensor) -> TensorCoreSums:
    return tensor_core_product(a, b, arithmetic_of(name, format))


def numbers(format: str, values: np.ndarray) -> torch.Tensor:
    """float64 values as numbers of a format, those of TF32 without what it has not."""
    singles = torch.from_numpy(np.ascontiguousarray(values)).float()
    if format == "tf32":
        return (singles.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return singles.to(DTYPES[format])


def patterns(format: str, rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
    """Numbers with all significands, and the fields low to high - 1 of the exponent."""
    _, fraction = FIELD_BITS[format]
    words = rng.integers(low, high, shape) << fraction | rng.integers(0, 1 << fraction, shape)
    signs = rng.integers(0, 2, shape)
    if format == "tf32":
        return torch.from_numpy((words << 13 | signs << 31).astype(np.uint32).view(np.int32)).view(torch.float32)
    return torch.from_numpy((words | signs << 15).astype(np.uint16).view(np.int16)).view(DTYPES[format])


Pair = tuple[torch.Tensor, torch.Tensor]
Case = Callable[[str, np.random.Generator, int, int, int], Pair]


def gaussian(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    return numbers(format, rng.standard_normal((rows, terms))), numbers(format, rng.standard_normal((terms, columns)))


def positive(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    """Sums that grow, so that products lose bits."""
    a, b = gaussian(format, rng, rows, terms, columns)
    return abs(a), abs(b)


def cancelling(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    """Every other term takes the one before away, but for a small part."""
    a, b = rng.standard_normal((rows, terms)), rng.standard_normal((terms, columns))
    even = terms - terms % 2
    a[:, 1:even:2] = -a[:, 0:even:2]
    b[1:even:2] = b[0:even:2] * (1 + (rng.random((even // 2, columns)) < 0.1) * 2.0**-5)
    return numbers(format, a), numbers(format, b)


def zeros(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    """Many zeros of both signs, whole rows, columns and groups of them."""
    a, b = gaussian(format, rng, rows, terms, columns)
    a[torch.from_numpy(rng.random(a.shape) < 0.6)] *= 0
    b[torch.from_numpy(rng.random(b.shape) < 0.6)] *= -0.0
    a[0], b[:, -1], a[:, : terms // 2] = 0, 0, 0
    return a, b


def nearly_two(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    """Sums of 16 products, and c, that are above 2^31 in their last place, in two of three rows."""
    a, b = np.full((rows, terms), 2 - 2.0**-7), np.full((terms, columns), 2 - 2.0**-7)
    a[::3] = 1.25
    a[:, rng.random(terms) < 0.02] *= -1
    a[rows // 2] *= -1
    return numbers(format, a * 2.0 ** (rng.random((rows, 1)) < 0.5)), numbers(format, b)


def exponents(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    """All exponents that there are, of finite numbers; subnormal ones among them."""
    top = (1 << FIELD_BITS[format][0]) - 1
    return patterns(format, rng, (rows, terms), 0, top), patterns(format, rng, (terms, columns), 0, top)


def wide(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    """Exponents about as far apart as vectors allow, around the middle of the range."""
    middle = 1 << (FIELD_BITS[format][0] - 1)
    far = min(60, middle - 2)
    a = patterns(format, rng, (rows, terms), middle - far, middle + far + 1)
    return a, patterns(format, rng, (terms, columns), middle - far * 3 // 5, middle + far * 3 // 5)


def small(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    """Groups about as small as there is a value for, smaller from row to row; a zero here and there."""
    if format == "f16":
        a, b = patterns(format, rng, (rows, terms), 0, 3), patterns(format, rng, (terms, columns), 0, 30)
    else:
        a, b = patterns(format, rng, (rows, terms), 60, 92), patterns(format, rng, (terms, columns), 50, 68)
        a = numbers(format, a.double().numpy() * 2.0 ** -(np.arange(rows)[:, None] % 16))
    a[torch.from_numpy(rng.random(a.shape) < 0.02)] = 0
    return a, b


def subnormal(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    """Subnormal numbers among others that are large enough to hide them, or not: larger from row to row."""
    top = (1 << FIELD_BITS[format][0]) - 1
    a = torch.cat([patterns(format, rng, (1, terms), 1, min(2 + 2 * row, top // 2)) for row in range(rows)])
    some = torch.from_numpy(rng.random(a.shape) < 0.05)
    high = top - 24 if format != "f16" else top - 8
    return torch.where(some, patterns(format, rng, (rows, terms), 0, 1), a), patterns(
        format, rng, (terms, columns), max(1, high - 20), high
    )


def large(format: str, rng: np.random.Generator, rows: int, terms: int, columns: int) -> Pair:
    """Products about as large as there is a value for, smaller from row to row; an infinity and a NaN."""
    low, high = (171, 191) if format != "f16" else (12, 31)
    a, b = patterns(format, rng, (rows, terms), low, high), patterns(format, rng, (terms, columns), low, high)
    a = numbers(format, a.double().numpy() * 2.0 ** -(np.arange(rows)[:, None] % 24))
    a[0, terms // 2], b[terms // 3, -1] = float("inf"), float("nan")
    return a, b


CASES: dict[str, Case] = {
    one.__name__: one
    for one in (
        *(gaussian, positive, cancelling, zeros, nearly_two),
        *(exponents, wide, small, subnormal, large),
    )
}


def digest(pairs: list[tuple[str, str]]) -> str:
    """SHA-256 of all cases' products."""
    together = hashlib.sha256()
    for name, format in pairs:
        for number, case in enumerate(CASES.values()):
            a, b = case(format, np.random.default_rng(number), 37, 300, 75)
            found = product(name, format, a, b)
            together.update(found.sums.numpy().tobytes() + found.missing.tobytes())
    # Large enough for several threads.
    for name, format in pairs:
        a, b = gaussian(format, np.random.default_rng(99), 150, 2500, 130)
        together.update(product(name, format, a, b).sums.numpy().tobytes())
    return together.hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(digest([("hopper", "bf16"), ("ampere", "tf32")]))
