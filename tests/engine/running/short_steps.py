"""Small trainings in BF16, and whether the comparison with PyTorch's kernels lets a program of one pass."""

from __future__ import annotations

from typing import Any

import torch
from roundlog.capture import Captured, CaptureError, Task
from roundlog.training.kernel_sameness import confirm_same_kernels
from roundlog.training.trial import Trial, TrialProgress
from torch import Tensor, nn, optim

from tests.engine.tasks import small_task


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(32), nn.Linear(32, 3))


class Between(nn.Module):
    """A function between two linear layers."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.function, self.last = nn.Linear(8, 24), function, nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.function(self.first(x)))
        return y


def task_of(model: nn.Module, loss: Any, optimizer: Any = None, **more: Any) -> Task:
    generator = torch.Generator().manual_seed(1)
    data = {"x": torch.randn(20, 8, generator=generator), "y": torch.randint(0, 3, (20,), generator=generator)}
    more = {"batch_size": 5, "steps": 4, "interval": 2, "seed": 1, **more}
    return small_task(model, loss, data, optimizer=optimizer or optim.AdamW(model.parameters(), lr=0.01), **more)


def compared(captured: Captured) -> int:
    progress = TrialProgress(lambda share, detail: None, [1], kernels=len(captured.origin.trail.calls))
    trial = Trial(captured, captured.states, 1, progress)
    trial.by_engine()
    return confirm_same_kernels(captured, trial, lambda step, theirs, ours: None)[1]


def is_noticed(captured: Captured) -> bool:
    try:
        compared(captured)
    except CaptureError:
        return True
    return False
