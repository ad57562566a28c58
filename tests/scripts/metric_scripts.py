"""Losses over pairs, queues and teachers

Teachers, queues and centres are state: tensors of their final shape from the start, which a step may write into."""

from __future__ import annotations

import copy

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F

from tests.scripts.script_corpus import script
from tests.scripts.script_parts import task


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))


class MoCo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = encoder()
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(8, 32), dim=0))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))


@script("A queue that is shifted, and a teacher by lerp_", source="MoCo, with a queue that every step shifts")
def moco_shifted() -> Task:
    class Net(MoCo):
        def forward(self, x: Tensor) -> Tensor:
            q = F.normalize(self.q(x), dim=1)
            with torch.no_grad():
                for mine, slow in zip(self.q.parameters(), self.k.parameters(), strict=True):
                    slow.lerp_(mine, 0.01)
                k = F.normalize(self.k(x + 0.1 * torch.randn_like(x)), dim=1)
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], dim=1) / 0.07
            self.queue.copy_(torch.cat([k.t(), self.queue[:, : -len(k)]], dim=1))
            return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    model = Net()
    return task(model, lambda m, batch: m(batch["x"]), optimizer=torch.optim.SGD(model.q.parameters(), lr=0.03))
