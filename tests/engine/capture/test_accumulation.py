"""Gradient accumulation: losses that are averaged or added up, and what micro-batches share of their batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.training.job import Job
from torch import nn

from tests.engine.trainings import train_by_program


def accumulating(**options: Any) -> Task:
    torch.manual_seed(5)
    model = nn.Linear(3, 2)
    rows, weights = torch.randn(8, 3), torch.tensor([1.0, 0, 1, 1, 0, 1, 1, 1])

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        squares = (model(batch["x"]).square().sum(1) * batch["w"]).sum()
        return squares / batch["count"] if "count" in batch else squares

    return Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": rows, "w": weights},
        batch_size=4,
        steps=2,
        interval=2,
        seed=3,
        **options,
    )


def gradient_of(task: Task) -> torch.Tensor:
    job = Job.from_task(lambda: task)
    return (job.initial["parameter/weight"] - train_by_program(job, 1)["parameter/weight"]) / 0.1


def test_losses_of_micro_batches_are_averaged_or_added_up() -> None:
    whole = gradient_of(accumulating())
    added = gradient_of(accumulating(micro_batches=2, accumulate="sum"))
    averaged = gradient_of(accumulating(micro_batches=2))
    torch.testing.assert_close(added, whole)
    torch.testing.assert_close(averaged, whole / 2)


def test_micro_batches_share_what_is_computed_of_the_whole_batch() -> None:
    """A mean over what counts, which is not as much in one part as in the other."""
    count: Callable[[Any], Any] = lambda batch: {"count": batch["w"].sum()}  # noqa: E731
    whole = gradient_of(accumulating(of_batch=count))
    parts = gradient_of(accumulating(of_batch=count, micro_batches=2, accumulate="sum"))
    torch.testing.assert_close(parts, whole)


def test_wrong_accumulations_are_refused() -> None:
    for options, word in (
        ({"accumulate": "max"}, 'choose "mean" or "sum"'),
        ({"of_batch": 3}, "of_batch is an int"),
        ({"of_batch": lambda batch: {"x": batch["w"]}}, "of_batch gives x, which is a field of the dataset"),
    ):
        with pytest.raises(CaptureError, match=word):
            capture(functools.partial(accumulating, **options))
