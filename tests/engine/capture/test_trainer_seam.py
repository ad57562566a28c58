"""A captured `Trainer` takes the steps of its own `train()`: random trainers, each trained both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.capture import Task, capture

from tests.engine.capture.random_trainers import ADAPTED, Case, by_program, by_trainer, distance, random_case

# Largest distance of a captured step from PyTorch's FP64, as a multiple of what PyTorch's FP32 is, and in units of the
# largest element.
_ROOM, _FLOOR = 24.0, 4e-6


def difference(case: Case, task: Task, where: Path) -> str | None:
    """The first loss or tensor that is another after `train()`; None if all are the same."""
    ours = by_program(task, capture(lambda: task))
    single = by_trainer(case, task, ours.draws, where, torch.float32)
    truth = by_trainer(case, task, ours.draws, where, torch.float64)
    for step, (mine, one, two) in enumerate(zip(ours.losses, single.losses, truth.losses, strict=True)):
        if not abs(mine - two) <= _ROOM * abs(one - two) + 1e-5 * abs(two):
            return f"loss {step}"
    away, noise = distance(ours.states, truth.states), distance(single.states, truth.states)
    # But for few (gradients of nearly nothing, of which Adagrad takes the sign), FP32 says what FP64 says.
    close = [apart <= 1e-3 * (1e-3 + float(truth.states[name].abs().max())) for name, apart in noise.items()]
    assert sum(close) >= 0.7 * len(close), noise
    start = {name: one.detach().double() for name, one in task.model.named_parameters()}
    assert max(float((truth.states[name] - one).abs().max()) for name, one in start.items()) > 1e-5, "nothing moves"
    for name, value in truth.states.items():
        if not away[name] <= _ROOM * noise[name] + _FLOOR * (1 + float(value.abs().max())):
            return name
    return None


@pytest.mark.slow
@pytest.mark.parametrize("number", [*range(5), *(pytest.param(one, marks=pytest.mark.long) for one in range(5, 12))])
def test_a_captured_trainer_takes_the_steps_of_train(number: int, tmp_path: Path) -> None:
    case = random_case(number)
    task = Task.from_trainer(case.trainer(tmp_path))
    assert (task.steps, task.rows) == (case.steps, case.rows)
    assert difference(case, task, tmp_path) is None, case


def case_of(model: str, **arguments: Any) -> Case:
    own = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 3, "max_grad_norm": 0.0, "weight_decay": 0.1}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    return Case(model, 0.0, 11, 3, own | sizes | arguments)


@pytest.mark.slow
@pytest.mark.parametrize("model", ADAPTED)
def test_adapters_take_the_steps_of_train(model: str, tmp_path: Path) -> None:
    """Adapters of `peft` on a frozen base."""
    pytest.importorskip("peft")
    case = case_of(model, optim="adamw_torch", adam_epsilon=1e-3, learning_rate=1e-2, max_grad_norm=0.5)
    case.dropout = 0.2 if model == "LoRA" else 0.0
    assert difference(case, Task.from_trainer(case.trainer(tmp_path)), tmp_path) is None
