"""Random models under optimizers of PyTorch, some with clipping, momentum, tied and frozen weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from roundlog.capture import Task
from torch import nn

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
}


class Model(nn.Module):
    """An embedding, tied to the last layer or not; a hidden layer; batch norm, or not."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.hidden = nn.Linear(6, 6 if draw.random() < 0.5 else 9)
        self.norm = nn.BatchNorm1d(self.hidden.out_features) if draw.random() < 0.5 else nn.Identity()
        self.last = nn.Linear(self.hidden.out_features, 11, bias=draw.random() < 0.5)
        if self.hidden.out_features == 6 and draw.random() < 0.5:
            self.last.weight = self.embed.weight
        if draw.random() < 0.3:
            self.hidden.bias.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(torch.tanh(self.hidden(self.embed(x)))) * self.scale)
        return found


def task(seed: int) -> Task:
    """One model and one optimizer, in turn."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = Model(draw)
    chosen = list(OPTIMIZERS.values())[seed % len(OPTIMIZERS)]
    return Task(
        model=model,
        loss=lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"]),
        optimizer=chosen([one for one in model.parameters() if one.requires_grad]),
        dataset={"x": torch.randint(0, 11, (24,)), "y": torch.randint(0, 11, (24,))},
        batch_size=draw.choice([6, 8]),
        steps=4,
        interval=2,
        seed=seed,
        max_grad_norm=draw.choice([None, 0.3]),
        micro_batches=draw.choice([1, 2]),
    )
