"""A task that is put together wrongly is refused in one sentence that says what is wrong, and what to give instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.training.job import Job
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import TensorDataset

FIELDS = "give field names with tensors of all rows"
FUNCTION = "give a function of both, as lambda model, batch:"
SCHEDULE = "give a function of the step, or a scheduler of torch.optim.lr_scheduler"


def task_of(**changes: object) -> Task:
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    given = {
        "model": model,
        "loss": lambda m, b: m(b["x"]).square().mean(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": {"x": torch.randn(8, 6)},
    }
    return Task(**{**given, "batch_size": 4, "steps": 3, "interval": 1, "seed": 0, **changes})  # type: ignore[arg-type]


def sentence(task: Task) -> str:
    with pytest.raises(CaptureError) as caught:
        capture(lambda: task)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fails(step: int) -> float:
    if step:
        raise ValueError("a\nb")
    return 1.0


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "a list of data": ({"dataset": [torch.randn(8, 6)]}, f"the dataset is a list: {FIELDS}"),
    "a dataset of torch": ({"dataset": TensorDataset(torch.randn(8))}, f"the dataset is a TensorDataset: {FIELDS}"),
    "a field without a name": ({"dataset": {0: torch.randn(8, 6)}}, "the dataset field 0 has a name that is no text"),
    "a loss module of torch": (
        {"loss": nn.MSELoss()},
        f"the loss MSELoss of torch.nn takes tensors, not .*: {FUNCTION}",
    ),
    "a loss function of torch": ({"loss": F.mse_loss}, "the loss mse_loss of torch.nn takes tensors"),
    "the name of a loss": ({"loss": "mse"}, f"the loss is a str: {FUNCTION}"),
    "a loss of the batch alone": (
        {"loss": lambda batch: batch["x"].sum()},
        f"the loss cannot be called with a model and a batch: {FUNCTION}",
    ),
    "a function for a model": ({"model": lambda x: x}, "the model is a function: give a torch.nn.Module"),
    "a class for a model": ({"model": nn.Linear}, "the model is the class Linear itself: give a torch.nn.Module, made"),
    "the name of an optimizer": (
        {"optimizer": "sgd"},
        "the optimizer str is not supported: use one of torch.optim.SGD, ",
    ),
    "a class for an optimizer": (
        {"optimizer": torch.optim.SGD},
        "the optimizer is the class SGD itself: give an optimizer of torch.optim, made of it",
    ),
    "a batch size of True": ({"batch_size": True}, "batch_size is True: give a whole number"),
    "a norm that is text": ({"max_grad_norm": "1"}, "max_grad_norm is '1': give a finite number above 0, or None"),
    "a norm of True": ({"max_grad_norm": True}, "max_grad_norm is True: give a finite number above 0, or None"),
    "a number for a schedule": ({"schedule": 0.5}, f"the schedule is a float: {SCHEDULE}"),
    "another accumulation": ({"accumulate": "max"}, 'choose "mean" or "sum"'),
    "a number for a function of the batch": ({"of_batch": 3}, "of_batch is an int"),
    "a number of the batch with the name of a field": (
        {"of_batch": lambda batch: {"x": batch["x"]}},
        "of_batch gives x, which is a field of the dataset",
    ),
    "a batch larger than the data": ({"batch_size": 9}, "a batch of 9 does not fit a dataset of 8 rows"),
    "steps that no interval divides": ({"steps": 7, "interval": 2}, "7 steps cannot be cut"),
    "a negative seed": ({"seed": -1}, "seed"),
    "a loss of several numbers": ({"loss": lambda m, b: m(b["x"])}, "reduce it to a scalar"),
    "a schedule that fails": ({"schedule": fails}, "the schedule fails at step 1 with ValueError: a$"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_put_together_wrongly_is_refused_in_a_sentence(what: str) -> None:
    changes, message = WRONG[what]
    with pytest.raises(CaptureError, match=message) as caught:
        capture(lambda: task_of(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_no_step_after_the_last_is_asked_for() -> None:
    numbers, loss = {"beta": [1.0, 0.5]}, lambda m, b: m(b["x"]).square().mean() * b["beta"]
    Job.from_task(lambda: task_of(steps=2, schedule=lambda step: [1.0, 0.5][step], numbers=numbers, loss=loss))
    task = task_of(steps=2)
    task = replace(task, schedule=OneCycleLR(task.optimizer, 0.1, total_steps=2))
    Job.from_task(lambda: task)


def test_a_state_that_all_tasks_share_is_refused() -> None:
    count = torch.zeros((), dtype=torch.int64)

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        count.add_(1)
        return model(batch["x"]).square().mean() / (1 + count)

    with pytest.raises(CaptureError, match="count, which all tasks have: make it in the function that makes a task"):
        capture(lambda: task_of(loss=loss))


def test_a_part_that_all_models_share_is_copied() -> None:
    base = nn.Linear(6, 6)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}

    def make() -> Task:
        torch.manual_seed(0)
        model = nn.Sequential(base, nn.Linear(6, 2))
        return task_of(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    job = Job.from_task(make)
    for name, tensor in before.items():
        assert torch.equal(job.initial[f"parameter/0.{name}"], tensor) and torch.equal(base.state_dict()[name], tensor)
