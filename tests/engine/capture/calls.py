"""A linear layer followed by any function: trained both ways, or refused."""

import pytest
import torch
from roundlog.capture import CaptureError, capture
from roundlog.training.job import Job
from torch import nn

from tests.engine.tasks import small_task
from tests.engine.trainings import train_by_program, train_by_pytorch


class Calls(nn.Module):
    """A linear layer followed by any function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.linear(x))


def linear_through(function) -> None:
    """Train a linear layer with a function behind it both ways, and compare."""
    torch.manual_seed(2)
    model = Calls(function)
    task = small_task(model, lambda m, b: (m(b["x"]) * b["x"]).sum(), {"x": torch.randn(6, 6)}, steps=2)
    job = Job.from_task(lambda: task)
    theirs, ours = train_by_pytorch(task, 2), train_by_program(job, 2)
    for name, tensor in theirs.items():
        if name.startswith("buffer/") and name not in ours:
            continue  # a constant
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-5)


def refused(module: nn.Module, message: str, *, x: torch.Tensor | None = None, loss=None, **more) -> None:
    x = torch.randn(4, 6) if x is None else x
    task = small_task(module, loss or (lambda m, b: m(b["x"]).sum()), {"x": x}, **more)
    with pytest.raises(CaptureError, match=message) as caught:
        capture(lambda: task)
    assert "\n" not in str(caught.value)
