"""Trainings of layers with biases in BF16: by autocast, or with parameters in BF16."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from roundlog.capture import Task
from roundlog.training.job import Job
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 6


class ShortLayers(nn.Module):
    """Layers with biases: two of every position of a sample, and one of the sample. f32[B, 4, 8] -> [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.middle, self.last = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.first(x))
        y: Tensor = self.last(F.gelu(self.middle(h)).mean(1))
        return y


def under_autocast(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(model(batch["x"]), batch["y"])


def in_bf16(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"].bfloat16()).float(), batch["y"])


def job(loss: Callable[[nn.Module, Mapping[str, Tensor]], Tensor] = under_autocast) -> Job:
    """Six steps of batches of BATCH samples."""
    model = ShortLayers().to(torch.bfloat16 if loss is in_bf16 else torch.float32)
    generator = torch.Generator().manual_seed(1)
    rows, classes = torch.randn(20, 4, 8, generator=generator), torch.randint(0, 3, (20,), generator=generator)
    task = Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        dataset={"x": rows, "y": classes},
        batch_size=BATCH,
        steps=6,
        interval=2,
        seed=1,
    )
    return Job.from_task(task)
