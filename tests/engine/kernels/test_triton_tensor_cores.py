"""Which sums Triton's kernels leave to tensor cores, in Triton's interpreter, whose dots are replaced. That all sums
are the CPU's is tried in tests/devices."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from roundlog.definitions.tensor_core import OPERAND_FORMATS
from roundlog.kernels.cuda.tensor_cores import tensor_of, vectors

from tests.engine.kernels.tensor_core_cases import DEFINED, arithmetic_of
from tests.engine.kernels.tensor_core_devices import TensorCores, computing
from tests.engine.kernels.triton_processes import needs_triton

pytestmark = [pytest.mark.slow, needs_triton]

SHORT = [(name, format) for name, format in DEFINED if format != "tf32"]
POISON = 12345.0
"""What a device gives for every sum, to see which ones are left to it. Test sums are others."""


class Poison(TensorCores):
    def dot(self, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.full_like(c, POISON)


def by_cores(name: str, format: str, a: torch.Tensor, b: torch.Tensor, cores: TensorCores) -> torch.Tensor:
    from roundlog.kernels.cuda import tensor_core_kernels as kernels

    with computing(cores):
        return kernels.segment_sums(a, b, arithmetic_of(name, format), True)


def left(name: str, format: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """bool[segments, M, N]: sums that are left to tensor cores."""
    return by_cores(name, format, a, b, Poison.of(name, format)) == POISON


def constant(number: float, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, number, dtype=dtype)


def is_left(pool: ProcessPoolExecutor, a: torch.Tensor, b: torch.Tensor) -> bool:
    found = pool.submit(left, "hopper", "bf16" if a.dtype == torch.bfloat16 else "f16", a, b).result()
    assert bool(found.all()) == bool(found.any())
    return bool(found.all())


def test_the_ends_of_what_is_left_are_those_that_are_proved(interpreter: ProcessPoolExecutor) -> None:
    shape, other = (4, 40), (40, 4)
    for low, expected in ((-101, True), (-102, False)):
        assert is_left(interpreter, constant(2.0**-50, shape), constant(2.0 ** (low + 50), other)) == expected
    for high, expected in ((109, True), (110, False)):
        assert is_left(interpreter, constant(2.0**50, shape), constant(2.0 ** (high - 50), other)) == expected
    # With a zero in a row, every product has to be above 2^-126 times the largest number of the column.
    a, b = constant(2.0**-101, shape), constant(1.0, other)
    a[:, 3] = 0
    for top, expected in ((2.0**24, True), (2.0**25, False)):
        b[20] = top
        assert is_left(interpreter, a, b) == expected
    # A subnormal operand that does not count has to be truncated to nothing, too.
    a[:, 3] = 2.0**-130
    for least, expected in ((2.0**-100, True), (2.0**-101, False)):
        a[:, :3] = a[:, 4:] = least
        assert is_left(interpreter, a, constant(1.0, other)) == expected
    # One that counts has not; zeros in both are counted by products of numbers that are not.
    a, b = constant(1.0, shape, torch.float16), constant(1.0, other, torch.float16)
    a[:, 3] = 2.0**-20
    assert is_left(interpreter, a, b)
    b[4] = 0
    assert not is_left(interpreter, a, b)
    a[:, 3] = 0
    assert is_left(interpreter, a, b)
    for number in (torch.inf, -torch.inf, torch.nan):
        a[:, 3] = number
        assert not is_left(interpreter, a, b)


@pytest.mark.parametrize(("name", "format"), SHORT)
def test_what_a_device_is_tried_with_is_left_to_it(interpreter: ProcessPoolExecutor, name: str, format: str) -> None:
    shares = {
        test: float(
            interpreter.submit(left, name, format, *(tensor_of(x, format) for x in (a, b))).result().float().mean()
        )
        for test, a, b in vectors(OPERAND_FORMATS[format])
    }
    assert shares.pop("all exponents") < 1 and {*shares.values()} == {1.0}
