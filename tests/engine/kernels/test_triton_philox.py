"""Triton's random numbers are those of every other machine: in its interpreter, or on a device."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from roundlog.kernels import cuda
from roundlog.randomness import philox_word, stream_key, uniform

from tests.engine.kernels.triton_processes import needs_triton

CPU = torch.device("cpu")


def _uniform(key: tuple[int, int], size: int) -> torch.Tensor:
    from roundlog.kernels.cuda import triton_kernels as philox

    return philox.uniform(key, size, torch.device("cuda") if torch.cuda.is_available() else CPU).cpu()


@needs_triton
@pytest.mark.parametrize("size", [0, 1, 9, 1025, 5000])
@pytest.mark.parametrize("place", [(0, 0, 0), (1, 0, 1), (2**63, 1, 0), (2**64 - 1, 2**32 - 1, 2**32 - 1)])
def test_a_stream_is_the_same(interpreter: ProcessPoolExecutor, place: tuple[int, int, int], size: int) -> None:
    key = stream_key(*place)
    found = _uniform(key, size) if torch.cuda.is_available() else interpreter.submit(_uniform, key, size).result()
    assert torch.equal(found, uniform(*place, (size,)))
    for element in range(0, size, 97):
        assert found[element] * 2**24 == philox_word(*place, element) >> 8


@needs_triton
def test_it_is_tried_before_it_is_used(interpreter: ProcessPoolExecutor) -> None:
    assert interpreter.submit(cuda.philox_agrees, CPU).result()
    assert not interpreter.submit(_agrees_with_another_generator).result()


def _agrees_with_another_generator() -> bool:
    from roundlog.kernels.cuda import triton_kernels as philox

    right = philox.uniform
    # One word further.
    philox.uniform = lambda key, size, device: right(key, size + 1, device)[1:]
    try:
        return cuda.philox_agrees(CPU)
    finally:
        philox.uniform = right
