"""Parts that scripts have in common: small data sets of 32 rows of random numbers, a small model, and the rest of a
task."""

from __future__ import annotations

from typing import Any

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F

from tests.scripts.script_corpus import RUN


def images(size: int = 8) -> dict[str, Tensor]:
    return {"x": torch.randn(32, 3, size, size), "y": torch.randint(4, (32,))}


def rows() -> dict[str, Tensor]:
    return {"x": torch.randn(32, 6), "y": torch.randint(3, (32,))}


def pairs() -> dict[str, Tensor]:
    return {"a": torch.randn(32, 6), "b": torch.randn(32, 6), "same": torch.randint(2, (32,))}


def words() -> dict[str, Tensor]:
    return {"ids": torch.randint(1, 16, (32, 9)), "y": torch.randint(3, (32,)), "length": torch.randint(3, 10, (32,))}


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def entropy(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(m(batch["x"]), batch["y"])


def task(model: nn.Module, loss: Any = entropy, dataset: Any = None, optimizer: Any = None, **more: Any) -> Task:
    """Make the task of a script. more: what it has beyond `RUN`, or in its place."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=1e-3) if optimizer is None else optimizer
    dataset = rows() if dataset is None else dataset
    return Task(model=model, loss=loss, optimizer=optimizer, dataset=dataset, **{**RUN, **more})
