"""Handwritten digits: a small convolutional net with batch norm, trained by SGD with momentum.

The data are the 1797 images of 8x8 pixels that come with scikit-learn (Alpaydin and Kaynak, Optical Recognition of
Handwritten Digits, UCI Machine Learning Repository, 1998).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from roundlog.capture import CaptureError, Task, portable


class Net(nn.Module):
    """Two convolutions and a linear layer. Input f32[B, 1, 8, 8] in 0..1, output logits f32[B, 10]."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width * 2 * 2, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        logits: torch.Tensor = self.head(x.flatten(1))
        return logits


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of a batch."""
    return F.cross_entropy(model(batch["images"]), batch["labels"])


def data() -> dict[str, torch.Tensor]:
    """All images f32[1797, 1, 8, 8], scaled to 0..1, and their labels i64[1797]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise CaptureError("the digits come with scikit-learn: pip install 'tiebreak[demo]'") from None
    digits = load_digits()
    return {
        "images": torch.tensor(digits.images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16,
        "labels": torch.tensor(digits.target, dtype=torch.int64),
    }


@portable()
def digits(*, steps: int = 60, interval: int = 5, batch_size: int = 64, width: int = 16, seed: int = 7) -> Task:
    """The task: `steps` optimizer steps with a checkpoint every `interval`; the learning rate decays to zero."""
    torch.manual_seed(seed)
    model = Net(width)
    return Task(
        model=model,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4),
        dataset=data(),
        batch_size=batch_size,
        steps=steps,
        interval=interval,
        seed=seed,
        schedule=lambda step: 1 - step / steps,
    )
