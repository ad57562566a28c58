"""Random small jobs: models of many kinds, and data of every layout, each field in any place (`random_places`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from roundlog.capture import Task
from torch import nn

from tests.fuzz.random_places import Column, placed
from tests.fuzz.random_trainings import random_training

_INTEGERS = ("u1", "i1", "<i2", "<u2", "<i4", "<i8")
_CLASSES = 5
_WORDS = 17


@dataclass(frozen=True)
class RandomJob:
    """Everything that a task is made of, drawn by one number; every call of `task` gives a fresh one."""

    name: str
    columns: dict[str, Column]
    make: Callable[[dict[str, object]], Task]

    def made_by(self, directory: Path, places: Mapping[str, str] | None = None) -> Callable[[], Task]:
        """A function that makes the task, with each field in its place (None: all are arrays in memory), files of which
        are written into the directory, once."""
        fields = placed(self.columns, places or dict.fromkeys(self.columns, "memory"), directory)
        return lambda: self.make(fields)


class Rows(nn.Module):
    """A net of layers over rows of numbers, with much of what a network may have."""

    def __init__(self, width: int, draw: Random) -> None:
        super().__init__()
        self.first = nn.Linear(width, 6)
        self.second = nn.Linear(6, 6)
        if draw.random() < 0.3:
            self.second.weight = nn.Parameter(torch.randn(6, 6) * 0.3)
            self.third = nn.Linear(6, 6)
            self.third.weight = self.second.weight
        else:
            self.third = nn.Identity()
        self.norm = draw.choice([nn.BatchNorm1d(6), nn.LayerNorm(6), nn.Identity()])
        self.drop = nn.Dropout(draw.choice([0.0, 0.3]))
        self.last = nn.Linear(6, _CLASSES)
        self.first.bias.requires_grad_(draw.random() < 0.7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.norm(torch.tanh(self.first(x.float().flatten(1)))))
        out: torch.Tensor = self.last(F.gelu(self.third(self.second(h))))
        return out


class Words(nn.Module):
    """One layer of attention under a mask of infinities, its head tied to its embedding or not."""

    def __init__(self, length: int, draw: Random) -> None:
        super().__init__()
        self.embed = nn.Embedding(_WORDS, 8)
        mask = torch.full((length, length), -torch.inf).triu(1)
        self.register_buffer("mask", mask, persistent=draw.random() < 0.5)
        self.qkv = nn.Linear(8, 24)
        self.drop = nn.Dropout(draw.choice([0.0, 0.2]))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, _WORDS, bias=False)
        if draw.random() < 0.5:
            self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.embed(x)).chunk(3, -1)
        mixed = torch.softmax(q @ k.transpose(1, 2) * 0.35 + self.mask, -1) @ v
        out: torch.Tensor = self.head(self.norm(self.drop(mixed)))
        return out


class Images(nn.Module):
    """Convolutions with batch norm."""

    def __init__(self, draw: Random) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.drop, self.head = nn.Dropout(draw.choice([0.0, 0.2])), nn.Linear(3 * 4, _CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.conv(x.float() / 16)))
        out: torch.Tensor = self.head(self.drop(F.max_pool2d(h, 2)[:, :, :2, :2].flatten(1)))
        return out


def _classified(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"].long())


def _classified_bytes(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"][:, None]), batch["y"].long())


def _masked(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    lost = F.cross_entropy(model(batch["x"]), batch["y"].long(), reduction="none")
    return (lost * batch["keep"]).mean()


def _continued(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    words = batch["x"].long()
    return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def _continued_in_part(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    words = batch["x"].long()
    lost = F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:], reduction="none")
    return (lost.mean(1) * batch["keep"]).mean()


_OPTIMIZERS: list[tuple[str, Callable[[Any], torch.optim.Optimizer]]] = [
    ("SGD", lambda p: torch.optim.SGD(p, lr=0.1)),
    ("momentum", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01)),
    ("AdamW", lambda p: torch.optim.AdamW(p, lr=0.01)),
    ("Adam", lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True)),
    ("RMSprop", lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5)),
]


def random_job(seed: int) -> RandomJob:
    """The job with this number."""
    draw = Random(seed)
    kind = draw.choice(["rows", "wide rows", "bytes", "windows", "windows", "images", "script"])
    numbers = np.random.default_rng(seed)
    batch, steps = draw.choice([4, 6, 8]), draw.randint(3, 9)
    interval = draw.choice([each for each in (1, 1, 2, 3) if steps % each == 0])
    title, optimizer = draw.choice(_OPTIMIZERS)
    options: dict[str, Any] = {}
    if draw.random() < 0.3:
        options["max_grad_norm"] = 0.2
    if draw.random() < 0.3:
        options["micro_batches"] = 2
    if draw.random() < 0.3:
        options["schedule"] = lambda step: 1 / (1 + step)
    elif draw.random() < 0.1 and steps > 4:
        options["schedule"] = lambda step: 1.0 if step < 3 else 1e38  # the run soon has no numbers any more
    name = f"{kind}, {title}, {batch} x {steps} by {interval}, {'+'.join(options) or 'plain'}"
    if kind == "script":
        return _of_script(seed, name, numbers, steps, interval)
    rows = draw.choice([batch, batch + 1, 20, 33])
    loss: Callable[..., torch.Tensor] = _classified
    dtype = np.dtype(draw.choice(_INTEGERS))
    model: Callable[[Random], nn.Module]
    model_seed = draw.randrange(1 << 30)
    if kind in ("rows", "wide rows"):
        width = draw.choice([4096, 4097, 5000]) if kind == "wide rows" else draw.choice([1, 4, 24])
        rows = draw.choice([rows, 1024, 1025]) if width == 4 else rows
        columns = {"x": Column(numbers.standard_normal((rows, width), np.float32))}
        model = partial(Rows, width)
    elif kind == "bytes":
        rows = draw.choice([rows, 16384, 16385])
        columns = {"x": Column(numbers.integers(0, 9, rows, np.uint8))}
        model, loss = partial(Rows, 1), _classified_bytes
    elif kind == "windows":
        window, stride = draw.choice([5, 7]), draw.choice([1, 3, 5, 8])
        length = (rows - 1) * stride + window + draw.randrange(stride)
        length = draw.choice([length, 16384 // dtype.itemsize + window])
        columns = {"x": Column(numbers.integers(0, _WORDS, length).astype(dtype), window, stride)}
        model, loss = partial(Words, window - 1), _continued
        name += f", {window}/{stride}"
        if draw.random() < 0.5:
            rows = (length - window) // stride + 1
            columns["keep"] = Column(numbers.integers(0, 2, rows).astype(draw.choice(["f4", "?", "u1", "<i8"])))
            loss = _continued_in_part
    else:
        columns = {"x": Column(numbers.integers(0, 16, (rows, 1, 6, 6)).astype(dtype))}
        model = Images
    if kind != "windows":
        columns["y"] = Column(numbers.integers(0, _CLASSES, rows).astype(draw.choice(_INTEGERS)))
        if kind == "images" and draw.random() < 0.5:
            columns["keep"] = Column(numbers.integers(0, 2, rows).astype(np.uint8))
            loss = _masked
    name += ", " + " ".join(f"{n}:{c.elements.dtype}{list(c.elements.shape)}" for n, c in columns.items())

    def make(dataset: dict[str, object]) -> Task:
        torch.manual_seed(seed)
        made = model(Random(model_seed))
        weights = [one for one in made.parameters() if one.requires_grad]
        return Task(
            model=made,
            loss=loss,
            optimizer=optimizer(weights),
            dataset=dataset,
            batch_size=batch,
            steps=steps,
            interval=interval,
            seed=seed,
            **options,
        )

    return RandomJob(name, columns, make)


def _of_script(seed: int, name: str, numbers: np.random.Generator, steps: int, interval: int) -> RandomJob:
    """A training script of the other campaign, which may be refused."""
    script = random_training(seed)

    def make(dataset: dict[str, object]) -> Task:
        return replace(script.task(), dataset=dataset, steps=steps, interval=interval)

    return RandomJob(name, {"x": Column(numbers.standard_normal((12, 6), np.float32))}, make)
