"""Images of the shape of CIFAR-10's: 32x32 pixels, three colours, ten classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 10
GENERATED_ROWS = 1024


def generate(rows: int) -> dict[str, torch.Tensor]:
    """Images f32[rows, 3, 32, 32] and their classes i64[rows]: a faint image of its own for each class, under noise."""
    labels = torch.randint(0, CLASSES, (rows,))
    images = torch.randn(rows, 3, 32, 32) + torch.randn(CLASSES, 3, 32, 32)[labels]
    return {"images": images, "labels": labels}


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of a batch."""
    return F.cross_entropy(model(batch["images"]), batch["labels"])
