"""Exact products of BF16 matrices in two stages: the bound of the first one, by sums as tensor cores add them."""

from __future__ import annotations

import warnings
from unittest.mock import patch

import numpy as np
import pytest
import torch
from roundlog.kernels.cuda import bf16_products
from roundlog.kernels.cuda.bf16_products import DEPTHS, bound_of_block, depth_of, ratio_of
from roundlog.kernels.cuda.tensor_cores import DeviceVerdict, ProductKernels

from tests.engine.kernels.tensor_core_cases import arithmetic_of
from tests.engine.kernels.tensor_core_devices import TensorCores
from tests.engine.operators.test_bf16_products import gaussian

NAMES = "hopper", "ampere"
CPU = torch.device("cpu")


def beside_ties(
    rng: np.random.Generator, deep: int, small: np.ndarray, shares: list[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of an integer, of small products, which are all lost beside it, of a half, and of a share of what is lost,
    with the other sign. small: float64[deep - 1]. Norms are little more than the integers."""
    rows, terms, columns = 64, 256, 20
    a, b = np.zeros((rows, terms)), np.zeros((terms, columns))
    a[:, 0], b[0] = rng.integers(128, 256, rows), 1.0
    a[:, 1:deep], b[1:deep] = small * 2.0**9, 2.0**-9
    a[:, deep], b[deep] = 4.0, 2.0**-3
    a[:, 2 * deep], b[2 * deep] = -small.sum() * rng.choice(shares, rows) * 2.0**9, 2.0**-9
    a *= rng.choice([1.0, -1.0], (rows, 1))
    b *= rng.choice([1.0, -1.0], columns) * 2.0 ** rng.integers(-20, 20, columns)
    return torch.from_numpy(a).bfloat16(), torch.from_numpy(b).bfloat16()


def truncated(name: str, deep: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums beside ties, on the other side of them by what tensor cores truncate: all of a block's products but the
    first are a little less than the last bit that is kept."""
    small = (2.0 - 2.0**-7) * 2.0 ** (6 - arithmetic_of(name, "bf16").fraction_bits)
    return beside_ties(rng, deep, np.full(deep - 1, small), [0.0, 0.01, 0.3, 0.7, 0.97, 1.02])


def rounded_down(name: str, deep: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums beside ties, on the other side of them by what the results of a block's groups lose when they are rounded:
    every group has a product a little less than the integer's last place."""
    small = np.zeros(deep - 1)
    small[:: arithmetic_of(name, "bf16").terms] = (2.0 - 2.0**-7) * 2.0**-17
    return beside_ties(rng, deep, small, [0.01, 0.3, 0.7, 0.97])


HOSTILE = truncated, rounded_down


def error_of_blocks(name: str, deep: int, a: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """Errors of sums by blocks, in units of the products of norms."""
    cores = TensorCores.of(name, "bf16")
    x, y = a.double().numpy(), b.double().numpy()
    total = np.zeros((len(x), y.shape[1]))
    for begin in range(0, x.shape[1], deep):
        some = slice(begin, begin + deep)
        total += cores.dot(np.zeros(total.shape, np.float32), x[:, some], y[some])
    return np.abs(total - x @ y) / (np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=0))


@pytest.mark.parametrize("deep", DEPTHS)
@pytest.mark.parametrize("name", NAMES)
def test_the_bound_holds_and_is_nearly_reached(name: str, deep: int) -> None:
    bound, rng = bound_of_block(arithmetic_of(name, "bf16"), deep), np.random.default_rng(deep)
    largest = [float(error_of_blocks(name, deep, *made(name, deep, rng)).max()) for made in HOSTILE]
    random = float(error_of_blocks(name, deep, gaussian(rng, 30, 256), gaussian(rng, 256, 30)).max())
    assert max(*largest, random) < bound < 2.5 * max(largest)


def test_bounds_and_depths_are_those_of_the_proof() -> None:
    hopper, ampere = (arithmetic_of(name, "bf16") for name in NAMES)
    assert bound_of_block(hopper, 32) == 33 * 2.0**-25 + 2 * 2.0**-23
    assert bound_of_block(hopper, 64) == (16 + 3 * 17) * 2.0**-25 + 4 * 2.0**-23
    assert bound_of_block(ampere, 16) == 17 * 2.0**-24 + 2 * 2.0**-23
    assert bound_of_block(ampere, 64) == (8 + 7 * 9) * 2.0**-24 + 8 * 2.0**-23
    lengths = 127, 128, 256, 300, 1024, 1200, 4096, 5000, 16384, 16385
    assert [depth_of(hopper, terms) for terms in lengths] == [None, *[64] * 4, 32, 32, 16, 16, None]
    assert [depth_of(ampere, terms) for terms in lengths] == [None, 64, 64, 32, 32, 16, 16, *[None] * 3]
    for factor in (1.0, 2.0**20):
        assert ratio_of(hopper, 32, 256, 2.0**-44, factor) * 2.0**-44 > bound_of_block(hopper, 32) + factor * 2.0**-44


@pytest.mark.parametrize(
    ("name", "way", "wrong", "expected"),
    [
        ("hopper", ProductKernels.NATIVE, None, True),
        (None, ProductKernels.NATIVE, None, False),
        ("hopper", ProductKernels.EMULATED, None, False),
        ("ampere", ProductKernels.NONE, None, False),
        ("ampere", ProductKernels.NATIVE, "element 3", False),
        ("ampere", ProductKernels.NATIVE, MemoryError("shared memory"), False),
    ],
)
def test_only_devices_that_have_proven_themselves_multiply_in_stages(
    name: str | None, way: ProductKernels, wrong: object, expected: bool
) -> None:
    def first_wrong(*arguments: object) -> str | None:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong if isinstance(wrong, str) else None

    with (
        patch.object(bf16_products, "family", lambda device: name),
        patch.object(bf16_products, "verdict", lambda *arguments: DeviceVerdict(way)),
        patch.object(bf16_products, "first_wrong", first_wrong),
        pytest.warns(UserWarning, match="element 3|shared memory") if wrong else warnings.catch_warnings(),
    ):
        found = bf16_products.proven.__wrapped__(CPU)
    assert (found is not None) == expected
    assert found is None or found == arithmetic_of(str(name), "bf16")
