"""Numbers that change from step to step, as a task states them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from roundlog import Task
from roundlog.capture import CaptureError, capture
from roundlog.training.sameness import confirm_same
from torch import Tensor, nn
from torch.nn import functional as F

from tests.engine.tasks import small_task

STEPS = 6


def task_of(loss: Callable[[nn.Module, Mapping[str, Tensor]], Tensor], numbers: Mapping[str, Any]) -> Task:
    model = nn.Linear(4, 2)
    data = {"x": torch.randn(8, 4), "y": torch.randn(8, 2)}
    run = {"batch_size": 4, "steps": STEPS, "interval": 3, "seed": 1, "micro_batches": 2}
    return small_task(model, loss, data, numbers=numbers, **run)


def annealed() -> Task:
    def loss(m: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["beta"] * F.mse_loss(m(batch["x"]), batch["y"]) + 0.1 * batch["epoch"] * m.weight.square().sum()

    return task_of(loss, {"beta": [0.1 * k for k in range(STEPS)], "epoch": lambda step: step // 2})


def counting(numbers: Mapping[str, Any]) -> Task:
    step = 0

    def loss(m: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        nonlocal step
        step += 1
        return F.mse_loss(m(batch["x"]), batch["y"]) * (1 + 0.25 * step)

    return task_of(loss, numbers)


@pytest.mark.slow_but("of the batch")
@pytest.mark.parametrize(
    ("make", "columns"),
    [
        (annealed, [[0.1 * k for k in range(STEPS)], [0, 0, 1, 1, 2, 2]]),
        (lambda: counting({"loss.step": lambda step: 2 * step}), [[0, 2, 4, 6, 8, 10]]),
    ],
    ids=["of the batch", "of a closure"],
)
def test_stated_numbers_are_columns_of_the_schedule(make: Callable[[], Task], columns: list[list[float]]) -> None:
    captured = capture(make)
    found = captured.schedule[:, captured.program.schedule_names.index("number/0") :].T
    assert torch.equal(found, torch.tensor(columns))
    confirm_same(captured)


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({}, "numbers={'loss.step': lambda step: ...}"),
        ({"loss.step": lambda step: step}, "states that loss.step is 1 at step 1, and it is 2"),
        ({"loss.stop": lambda step: step}, "the model and the loss reach no number of that name"),
        ({"loss.step": [0, 2]}, "has 2 numbers: give one for each of 6 steps"),
        ({"loss.step": lambda step: float("nan")}, "is nan at step 0: give a finite int or float"),
        ({"x": lambda step: step}, "numbers has x, which is a field of the dataset"),
    ],
)
def test_a_false_statement_is_refused(numbers: Mapping[str, Any], sentence: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(lambda: counting(numbers))
    assert sentence in str(caught.value)
