"""Small tasks that the engine's tests share: everything that the networks of this project are made of."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from roundlog.capture import Task
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


class ConvNet(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.gelu(self.conv2(x))
        return self.head(self.drop(F.avg_pool2d(x, 2).flatten(1)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        p = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
        x = x + self.drop(self.out(attended.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(
        self, vocabulary: int = 17, width: int = 16, length: int = 6, dropout: float = 0.1, blocks: int = 2
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 2, dropout) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def short_numbers(rows: int, columns: int, *, bits: int) -> torch.Tensor:
    """f32[rows, columns] of numbers in (-1, 1) that have `bits` significant bits at most."""
    generator = torch.Generator().manual_seed(bits)
    return torch.randint(1 - 2**bits, 2**bits, (rows, columns), generator=generator).float() / 2**bits


class HalfwayGPT(GPT):
    """A GPT with a fixed code beside its trained embedding, whose sums are in doubt on every machine.

    A product of 12 and 13 bits has 25, one more than FP32 keeps: many sums of such products lie exactly halfway between
    two FP32 numbers. They follow the data, so another batch leads to other entries of the log."""

    def __init__(self, vocabulary: int = 17, width: int = 16, code: int = 8, dropout: float = 0.1) -> None:
        super().__init__(vocabulary, width, dropout=dropout, blocks=1)
        self.register_buffer("code", short_numbers(vocabulary, code, bits=12))
        self.register_buffer("mix", short_numbers(code, width, bits=13))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.tokens(x) + self.positions(torch.arange(x.shape[1])) + F.embedding(x, self.code) @ self.mix
        return self.head(self.norm(self.blocks(embedded)))


def small_task(model: nn.Module, loss: Any, data: Mapping[str, Any], **more: Any) -> Task:
    """A task of one step over all rows by SGD, if `more` says nothing else."""
    plain = {"batch_size": len(next(iter(data.values()))), "steps": 1, "interval": 1, "seed": 0}
    optimizer = more.pop("optimizer", None) or torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(model=model, loss=loss, optimizer=optimizer, dataset=data, **{**plain, **more})


def classify(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]).flatten(0, -2), batch["y"].flatten())


def conv_task(*, dropout: float = 0.1, steps: int = 6, interval: int = 2, seed: int = 3, **sgd: object) -> Task:
    torch.manual_seed(seed)
    model = ConvNet(dropout)
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, **sgd})
    data = {"x": torch.randn(40, 1, 8, 8), "y": torch.randint(0, 5, (40,))}
    run = {"batch_size": 8, "steps": steps, "interval": interval, "seed": seed}
    return small_task(model, classify, data, optimizer=optimizer, schedule=lambda step: 1.0 / (1 + step), **run)


def gpt_task(
    *,
    dropout: float = 0.1,
    eps: float = 1e-8,
    steps: int = 6,
    interval: int = 2,
    seed: int = 4,
    network: type[GPT] = GPT,
) -> Task:
    torch.manual_seed(seed)
    model = network(dropout=dropout)
    data = {"x": torch.randint(0, 17, (30, 6)), "y": torch.randint(0, 17, (30, 6))}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=eps)
    return small_task(
        model, classify, data, optimizer=optimizer, batch_size=4, steps=steps, interval=interval, seed=seed
    )


def halfway_task(*, steps: int = 6) -> Task:
    """A training whose log has decisive entries at every step: for tests that bend, thin or forge them."""
    return gpt_task(steps=steps, network=HalfwayGPT)


def linear_task(*, steps: int = 8, interval: int = 2, seed: int = 5) -> Task:
    """The smallest real training: for tests about files and processes."""
    torch.manual_seed(seed)
    model = nn.Linear(24, 3)
    data = {"x": torch.randn(20, 24), "y": torch.randint(0, 3, (20,))}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return small_task(
        model, classify, data, optimizer=optimizer, batch_size=5, steps=steps, interval=interval, seed=seed
    )


def features_task(*, steps: int = 6, interval: int = 2, seed: int = 6) -> Task:
    """Task with all that people put around a step: groups, frozen parameters, a scheduler, accumulation, clipping."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 5))
    model[2].weight.requires_grad_(False)
    groups = [
        {"params": [model[0].weight, model[4].weight], "weight_decay": 0.3},
        {"params": [model[0].bias, model[2].bias, model[4].bias], "weight_decay": 0.0, "lr": 0.02},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    warm_up, cosine = LinearLR(optimizer, 0.1, 1.0, 2), CosineAnnealingLR(optimizer, steps)
    data = {"x": torch.randn(40, 24), "y": torch.randint(0, 5, (40,))}
    run = {"batch_size": 12, "steps": steps, "interval": interval, "seed": seed, "micro_batches": 3}
    schedule = SequentialLR(optimizer, [warm_up, cosine], [2])
    return small_task(model, classify, data, optimizer=optimizer, schedule=schedule, max_grad_norm=0.1, **run)


SIX_STEPS = {"batch_size": 6, "steps": 6, "interval": 2, "seed": 1}


class ShortLayers(nn.Module):
    """Layers with biases: two of every position of a sample, and one of the sample. f32[B, 4, 8] -> [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.middle, self.last = nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.first(x))
        y: torch.Tensor = self.last(F.gelu(self.middle(h)).mean(1))
        return y


def under_autocast(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(model(batch["x"]), batch["y"])


def in_bf16(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"].bfloat16()).float(), batch["y"])


def short_layers_task(loss: Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor] = under_autocast) -> Task:
    """Layers with biases in BF16, by autocast or with parameters in BF16: six steps of batches of six samples."""
    model = ShortLayers().to(torch.bfloat16 if loss is in_bf16 else torch.float32)
    generator = torch.Generator().manual_seed(1)
    rows, classes = torch.randn(20, 4, 8, generator=generator), torch.randint(0, 3, (20,), generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return small_task(model, loss, {"x": rows, "y": classes}, optimizer=optimizer, **SIX_STEPS)


TASKS = {"conv": conv_task, "features": features_task, "gpt": gpt_task, "linear": linear_task}
