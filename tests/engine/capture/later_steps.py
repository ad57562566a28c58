"""Tasks of many steps with a counter and other Python state in their model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from roundlog.capture import Task
from roundlog.training.job import Job
from torch import Tensor, nn

from tests.engine.trainings import batch_of, steps_by_program

STEPS = 60


class Net(nn.Module):
    """A layer, a counter, and what is done with them."""

    def __init__(self, forward: Callable[[Net, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.how = forward
        self.n, self.x, self.on = 0, 1.0, True
        self.table = [1.0] * 9 + [2.0]
        self.held: list[object] = []
        self.kept: dict[object, object] = {}

    def forward(self, x: Tensor) -> Tensor:
        if self.how is None:
            return self.a(x)
        self.n += 1
        return self.how(self, x)


def task_of(model: Net, loss: Callable[..., Tensor] | None = None, **more: object) -> Task:
    torch.manual_seed(5)
    more = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), **more}
    return Task(
        model=model,
        loss=loss or (lambda m, b: m(b["x"]).square().mean()),
        dataset={"x": torch.randn(8, 4)},
        **{"batch_size": 4, "steps": STEPS, "interval": STEPS, "seed": 3, **more},  # type: ignore[arg-type]
    )


def followed(make: Callable[[], Task]) -> Job:
    """Captured, and trained through all steps to the losses of PyTorch on objects of their own.

    make: makes the task anew."""
    job, theirs = Job.from_task(make), make()
    ours = losses_of(job)
    assert len(ours) == theirs.steps
    assert ours == pytest.approx(_losses_by_pytorch(theirs), rel=2e-5)
    return job


def losses_of(job: Job) -> list[float]:
    """The losses of all steps by the engine."""
    return [float(result.loss) for result, _ in steps_by_program(job, job.spec.steps)]


def _losses_by_pytorch(task: Task) -> list[float]:
    """The losses of a plain loop over the task's own objects, which change."""
    (phase,), losses = task.phases(), []
    rates = [group["lr"] for group in phase.optimizer.param_groups]
    for step in range(task.steps):
        for group, rate in zip(phase.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * phase.schedule(step)
        phase.optimizer.zero_grad()
        total = 0.0
        for part in task.parts_at(step, batch_of(task, step)):
            loss = task.share(phase.loss(task.model, part))
            loss.backward()
            total += loss.item()
        if phase.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(task.model.parameters(), phase.max_grad_norm)
        phase.optimizer.step()
        losses.append(total)
    return losses
