"""Tasks of a small net whose forward pass is given, trained beside PyTorch or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor, nn

from tests.engine.trainings import batch_of, train_by_program

Forward = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Two layers and a few places for state; what it computes is given."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)
        self.how = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def task_of(model: nn.Module, loss: Callable[..., Tensor] | None = None, **more: object) -> Task:
    torch.manual_seed(5)
    return Task(
        model=model,
        loss=loss or (lambda m, b: m(b["x"]).square().mean()),
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9),
        dataset={"x": torch.randn(12, 6)},
        **{"batch_size": 4, "steps": 3, "interval": 1, "seed": 3, **more},  # type: ignore[arg-type]
    )


def trained_on_itself(task: Task) -> dict[str, Tensor]:
    """Three steps by PyTorch on the task's own objects, which change: no copy could lose what they share."""
    for step in range(3):
        task.optimizer.zero_grad()
        task.loss(task.model, batch_of(task, step)).backward()
        task.optimizer.step()
    named = [*task.model.named_parameters(), *task.model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def same(task: Task) -> Job:
    """Captured, and trained to what PyTorch trains."""
    job = Job.from_task(lambda: task)
    ours = train_by_program(job, 3)
    by_name = {name.partition("/")[2]: tensor for name, tensor in ours.items() if not name.startswith("slot/")}
    for name, tensor in trained_on_itself(task).items():
        if name in by_name:
            torch.testing.assert_close(by_name[name], tensor, rtol=1e-5, atol=1e-6)
    return job


def refused(task: Task, *sentences: str) -> None:
    with pytest.raises(CaptureError) as caught:
        Job.from_task(lambda: task)
    assert "\n" not in str(caught.value)
    for sentence in sentences:
        assert sentence in str(caught.value)
