"""Random small jobs: models of many kinds, and data of every layout in every place that a field may lie in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import roundlog
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from random_trainings import random_training
from roundlog.capture import Task
from safetensors.numpy import save_file
from torch import nn

PLACES = ("memory", "memmap", "safetensors", "arrow")
"""Places in which the data of a task may lie."""

_INTEGERS = ("u1", "i1", "<i2", "<u2", "<i4", "<i8")
_CLASSES = 5
_WORDS = 17


@dataclass(frozen=True)
class Column:
    """A field: its rows, or a stream that is cut into windows of it (`window` 0: not cut)."""

    elements: NDArray[Any]
    window: int = 0
    stride: int = 0

    def cut(self, source: object) -> object:
        return roundlog.windows(source, window=self.window, stride=self.stride) if self.window else source


@dataclass(frozen=True)
class RandomJob:
    """Everything that a task is made of, drawn by one number; every call of `task` gives a fresh one."""

    name: str
    columns: dict[str, Column]
    make: Callable[[dict[str, object]], Task]

    def task(self, place: str, directory: Path) -> Task:
        """The task with its data in a place, files of which are written into the directory."""
        return self.make(_placed(self.columns, place, directory))


def _placed(columns: dict[str, Column], place: str, directory: Path) -> dict[str, object]:
    directory.mkdir(parents=True, exist_ok=True)
    if place == "memory":
        found: dict[str, object] = {name: column.elements for name, column in columns.items()}
    elif place == "memmap":
        found = {name: _mapped(column.elements, directory / f"{name}.bin") for name, column in columns.items()}
    elif place == "safetensors":
        save_file({name: column.elements for name, column in columns.items()}, directory / "data.safetensors")
        found = dict(roundlog.safetensors_fields(directory / "data.safetensors", list(columns)))
    else:
        found = dict(roundlog.arrow_fields(_table(columns, directory / "data.arrow"), list(columns)))
    return {name: column.cut(found[name]) for name, column in columns.items()}


def _mapped(elements: NDArray[Any], path: Path) -> NDArray[Any]:
    """A part of a memory map that begins inside of its file."""
    head, tail = 3 * elements[:1].nbytes, 7
    path.write_bytes(b"\xa5" * head + elements.tobytes() + b"\xa5" * tail)
    return np.memmap(path, elements.dtype, "r", head, elements.shape)


def _table(columns: dict[str, Column], path: Path) -> Any:
    """A table in a file, whose columns are stored in batches of several sizes."""
    import pyarrow

    arrays = {}
    for name, column in columns.items():
        array = pyarrow.array(column.elements.reshape(-1))
        for size in reversed(column.elements.shape[1:]):
            array = pyarrow.FixedSizeListArray.from_arrays(array, size)
        arrays[name] = array
    whole = pyarrow.table(arrays)
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_file(sink, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=max(1, whole.num_rows // 3))
    return pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all()


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
    return F.cross_entropy(model(batch["x"]), batch["y"])


def _classified_bytes(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"][:, None]), batch["y"])


def _masked(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    lost = F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
    return (lost * batch["keep"]).mean()


def _continued(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    words = batch["x"]
    return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


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
