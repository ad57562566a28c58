"""The trial of blocks' sums sees every bit of them: devices that sum otherwise than their arithmetic are refused, and
those that docs/arithmetic.md leaves open are not, in Triton's interpreter."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from roundlog.kernels.cuda.bf16_products import DEPTHS, bound_of_block
from roundlog.kernels.cuda.block_sum_trial import block_sums, first_wrong_block_sum

from tests.engine.kernels.tensor_core_cases import arithmetic_of
from tests.engine.kernels.tensor_core_devices import TensorCores, computing
from tests.engine.kernels.triton_processes import needs_triton

NAMES = "hopper", "ampere"
CPU = torch.device("cpu")
SUMS = 144 * 80


@dataclass(frozen=True)
class Continuing(TensorCores):
    """A device whose blocks begin with the sum of those before, as if a compiler had merged them."""

    before: list[np.ndarray] = field(default_factory=list)

    def dot(self, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if len(self.before) == 5:
            self.before.clear()
        self.before.append(super().dot(self.before[-1] if self.before else c, a, b))
        return self.before[-1] if len(self.before) == 5 else np.zeros_like(c)


def lies(name: str, deep: int) -> dict[str, TensorCores]:
    """Devices that sum otherwise, and for which it matters in blocks of so many terms."""
    its = TensorCores.of(name, "bf16")
    found = {f"{bits} bits fewer": replace(its, fraction_bits=its.fraction_bits - bits) for bits in range(1, 7)}
    found["a bit more"] = replace(its, fraction_bits=its.fraction_bits + 1)
    found["shorter groups"] = replace(its, terms=its.terms // 2)
    found["to nearest"] = replace(its, nearest=True)
    found["small results are dropped"] = replace(its, smallest=2.0**-48)
    found["blocks that do not begin at zero"] = Continuing(**vars(its))
    if deep > its.terms:
        found["longer groups"] = replace(its, terms=its.terms * 2)
        found["groups in reverse order"] = replace(its, backwards=True)
    return found


def sums_by(cores: TensorCores, deep: int, a: torch.Tensor, b: torch.Tensor) -> list[np.ndarray]:
    """Sums of blocks. a: [M, K], b: [K, N]."""
    x, y = a.double().numpy(), b.double().numpy()
    zero = np.zeros((len(x), y.shape[1]), dtype=np.float32)
    return [cores.dot(zero, x[:, k : k + deep], y[k : k + deep]) for k in range(0, x.shape[1], deep)]


@pytest.mark.parametrize("deep", DEPTHS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_has_eight_bits_and_is_what_the_arithmetic_gives(name: str, deep: int) -> None:
    test = block_sums(arithmetic_of(name, "bf16"), deep)
    assert test.left.shape == (1, 144, 80) and test.a.shape == (1, 144, 5 * deep)
    assert torch.equal(test.left.to(torch.bfloat16).float(), test.left)
    blocks = sums_by(TensorCores.of(name, "bf16"), deep, test.a[0], test.b[0])
    total = sum((block.astype(np.float64) for block in blocks), np.zeros((144, 80)))
    assert np.array_equal(total, test.left[0].double().numpy())
    # Nearly all sums leave some bits, and half of them others than an exact sum would leave.
    exact = test.a[0].double() @ test.b[0].double()
    assert np.count_nonzero(total) > 0.9 * SUMS
    assert np.count_nonzero(total != exact.numpy()) > SUMS / 4
    # Added in FP32, blocks would leave another number; and all of this is far below the bound.
    single = np.zeros((144, 80), dtype=np.float32)
    for block in blocks:
        single += block
    assert np.count_nonzero(single != total) > 0.9 * SUMS
    norms = test.a[0].double().norm(dim=1)[:, None] * test.b[0].double().norm(dim=0)
    assert (np.abs(exact.numpy() - total) < norms.numpy() * bound_of_block(arithmetic_of(name, "bf16"), deep)).all()


@pytest.mark.slow_but("hopper-16", "ampere-16")
@pytest.mark.parametrize("deep", DEPTHS)
@pytest.mark.parametrize("name", NAMES)
def test_each_lie_shows_in_many_elements(name: str, deep: int) -> None:
    test = block_sums(arithmetic_of(name, "bf16"), deep)
    for what, cores in lies(name, deep).items():
        blocks = sums_by(cores, deep, test.a[0], test.b[0])
        total = sum((block.astype(np.float64) for block in blocks), np.zeros((144, 80)))
        assert np.count_nonzero(total != test.left[0].double().numpy()) > SUMS / 100, what


def tried(name: str, deep: int, layout: int, cores: TensorCores) -> str | None:
    from roundlog.kernels.cuda import bf16_product_kernels as kernels

    with computing(cores), patch.object(kernels, "ROWS", 64), patch.object(kernels, "COLUMNS", 32):
        return first_wrong_block_sum(CPU, arithmetic_of(name, "bf16"), deep, layout)


@needs_triton
@pytest.mark.parametrize(("layout", "deep"), [*enumerate(DEPTHS)])
@pytest.mark.parametrize("name", NAMES)
def test_devices_that_may_be_are_accepted(interpreter: ProcessPoolExecutor, name: str, layout: int, deep: int) -> None:
    """Whatever is not known of them: no element depends on it that is left to tensor cores."""
    its = TensorCores.of(name, "bf16")
    for other in ({}, {"exponents": "none"}, {"exponents": "normalised"}, {"flushes": False}):
        cores = replace(its, **other)
        assert interpreter.submit(tried, name, deep, layout, cores).result() is None, cores
