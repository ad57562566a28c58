"""Logistic regression on generated rows, trained by plain SGD: the smallest task of the proof-of-training papers.

2^18 rows of 1024 features in batches of 2048 are the sizes of Garg et al., "Experimenting with Zero-Knowledge Proofs of
Training" (2023).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from roundlog.capture import Task, portable
from roundlog.examples.baseline import FP32, computed_in


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean binary cross entropy of a batch."""
    return F.binary_cross_entropy_with_logits(model(batch["features"]).squeeze(1), batch["labels"])


def generate(rows: int, features: int) -> dict[str, torch.Tensor]:
    """Normal features f32[rows, features]; labels f32[rows], 1 on one side of a random plane, most of the time."""
    x, normal, side = torch.randn(rows, features), torch.randn(features), torch.zeros(rows)
    for column, weight in zip(x.T, normal, strict=True):  # a product of matrices has other bits on other processors
        side += column * weight
    side = side / features**0.5 + 0.1 * torch.randn(rows)
    return {"features": x, "labels": (side > 0).to(torch.float32)}


@portable()
def logistic(
    *,
    rows: int = 1 << 18,
    features: int = 1024,
    steps: int = 128,
    interval: int = 16,
    batch_size: int = 2048,
    precision: str = FP32,
    seed: int = 7,
) -> Task:
    """The task: `steps` optimizer steps; 128 of them are one epoch of all rows. precision: fp32, or bf16 for autocast.
    Raises CaptureError."""
    torch.manual_seed(seed)
    model = nn.Linear(features, 1)
    return Task(
        model=model,
        loss=computed_in(precision, loss),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=generate(rows, features),
        batch_size=batch_size,
        steps=steps,
        interval=interval,
        seed=seed,
    )
