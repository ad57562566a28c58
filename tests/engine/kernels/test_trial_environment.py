"""Trials of a device, whose outcomes are kept for the whole process, come to the same in whatever floating-point
environment the thread has that first asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
import torch
from machines.environment_control import CHANGES, put_right
from roundlog.arithmetic import device_check
from roundlog.kernels.cuda import bf16_products, integer_products, tensor_cores
from roundlog.kernels.cuda.tensor_cores import DeviceVerdict, ProductKernels
from roundlog.kernels.environment import ENVIRONMENT

CPU = torch.device("cpu")


@contextmanager
def changed(change: str) -> Iterator[None]:
    """While this lasts, this thread is in another floating-point environment, and has to be in it at the end."""
    CHANGES[change]()
    try:
        yield
        assert not ENVIRONMENT.is_right()
    finally:
        put_right()


def environment_of(ask: Callable[[], object], change: str) -> list[bool]:
    """Whether the environment is right in the trials of products of tensor cores, in two stages, or of FP64 sums."""
    seen: list[bool] = []

    def tried(*arguments: object) -> None:
        # torch's other threads would have inherited the caller's environment: there are none.
        seen.append(ENVIRONMENT.is_right() and torch.get_num_threads() == 1)

    with (
        patch.object(bf16_products, "family", lambda device: "hopper"),
        patch.object(bf16_products, "verdict", lambda *of: DeviceVerdict(ProductKernels.NATIVE)),
        patch.object(bf16_products, "first_wrong", tried),
        patch.object(integer_products, "first_wrong", tried),
        patch.object(integer_products, "is_quicker", lambda *of: True),
        patch.object(device_check, "_wrong_sum", tried),
        patch.object(tensor_cores, "first_difference", tried),
        changed(change),
    ):
        ask()
    return seen


@pytest.mark.parametrize("change", CHANGES)
def test_trials_of_products_are_made_in_the_right_environment(change: str) -> None:
    torch.set_num_threads(2)
    assert environment_of(lambda: bf16_products.proven.__wrapped__(CPU), change) == [True]
    assert environment_of(lambda: integer_products.by_integers.__wrapped__(CPU, torch.float32), change) == [True]
    assert environment_of(lambda: device_check.fault_of.__wrapped__(CPU, "a card", frozenset()), change) == [True]
    assert environment_of(lambda: tensor_cores.judge(CPU, "hopper", "bf16", True), change) == [True, True]
    assert torch.get_num_threads() == 2


@pytest.mark.slow_but("flushing")
@pytest.mark.parametrize("change", CHANGES)
def test_sums_in_fp64_are_found_right(change: str) -> None:
    with changed(change):
        assert device_check.fault_of.__wrapped__(CPU, "a card", frozenset()) is None
    assert np.float32(2.0**-149) * np.float32(2) == np.float32(2.0**-148)
