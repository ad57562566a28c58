"""CIFAR-10: 32x32 colour images of ten classes (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
2009), or generated images of the same shape.

The official files of the binary version (https://www.cs.toronto.edu/~kriz/cifar.html) are records of 3073 bytes: a
class, then 1024 red, green and blue pixels each.

Two nets learn them by SGD with momentum. ResNet-50: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition"
(2016), bottleneck blocks in four stages; as usual for CIFAR, the stem is one 3x3 convolution, without pooling. VGG-11:
Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2015), configuration A; as
usual for CIFAR, three linear layers of 512 features and about ten million parameters in all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from roundlog.capture import CaptureError, Task, portable
from roundlog.examples.baseline import FP32, computed_in
from roundlog.storage import open_regular
from roundlog.training.checkpoint import load_checkpoint

PIXELS = 3 * 32 * 32
CLASSES = 10
RECORD = 1 + PIXELS
"""Bytes of an image and its class in a file."""
NAMES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
MAX_FILE_BYTES = 64 << 20
"""The official files have 31 million bytes each."""


def read(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels uint8[rows, 3072] and classes i64[rows] of all five files. Raises CaptureError."""
    if not folder.is_dir():
        raise CaptureError(f"there is no folder {folder}: name the one that holds CIFAR-10's {NAMES[0]} to {NAMES[-1]}")
    records = np.concatenate([_records(folder / name) for name in NAMES])
    return records[:, 1:], records[:, 0].astype(np.int64)


def _records(path: Path) -> NDArray[np.uint8]:
    """Class and pixels, uint8[rows, 3073], of a file. Raises CaptureError."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CaptureError(
            f"{path} cannot be read ({error.strerror}): name the folder of CIFAR-10's binary version, with all of "
            f"{NAMES[0]} to {NAMES[-1]}"
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise CaptureError(f"{path} has more than {MAX_FILE_BYTES} bytes: CIFAR-10's own files are smaller")
    if not content or len(content) % RECORD:
        raise CaptureError(f"{path} has {len(content)} bytes, not whole images of {RECORD}: fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    if records[:, 0].max() >= CLASSES:
        raise CaptureError(f"{path} has the class {records[:, 0].max()}, and CIFAR-10 has {CLASSES}: fetch it again")
    return records


GENERATED_ROWS = 1024

# Mean and deviation of the training set's pixels in 0..1, by colour: the figures that everybody uses.
MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)


def load(folder: Path | None, rows: int | None) -> dict[str, torch.Tensor]:
    """Images f32[rows, 3, 32, 32], each colour of mean 0 and deviation 1, and classes i64[rows].

    folder: holds data_batch_1.bin to data_batch_5.bin; None: generated images, a faint one of its own for each class,
    under noise. rows: so many from the first on; None: all of the files', or 1024 generated ones.

    Raises CaptureError."""
    if rows is not None and rows < 1:
        raise CaptureError(f"{rows} rows make no dataset: ask for at least one")
    if folder is None:
        count = rows or GENERATED_ROWS
        labels = torch.randint(0, CLASSES, (count,))
        return {"images": torch.randn(count, 3, 32, 32) + torch.randn(CLASSES, 3, 32, 32)[labels], "labels": labels}
    pixels, classes = read(folder)
    if rows is not None and rows > len(classes):
        raise CaptureError(f"{folder} has {len(classes)} images, not {rows}: ask for fewer rows")
    images = torch.from_numpy(pixels[:rows]).reshape(-1, 3, 32, 32).to(torch.float32)
    images.div_(255).sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(DEVIATION).view(3, 1, 1))
    return {"images": images, "labels": torch.from_numpy(classes[:rows])}


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of a batch."""
    return F.cross_entropy(model(batch["images"]), batch["labels"])


EXPANSION = 4
"""A block's output has so many times the channels of its 3x3 convolution."""


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut. [B, channels, H, W] -> [B, 4 width, H / stride, W / stride]."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """`blocks[i]` bottlenecks in stage i, of `width` * 2^i channels. Images f32[B, 3, H, W] -> logits f32[B, 10]."""

    def __init__(self, blocks: Sequence[int], width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(Bottleneck(channels, width << stage, stride))
                channels = EXPANSION * width << stage
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stages(F.relu(self.norm(self.conv(images))))
        logits: torch.Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


@portable()
def resnet50(
    *,
    data: Path | None = None,
    rows: int | None = None,
    checkpoint: Path | None = None,
    steps: int = 100,
    interval: int = 10,
    batch_size: int = 64,
    width: int = 64,
    stages: int = 4,
    precision: str = FP32,
    seed: int = 7,
) -> Task:
    """The task: `steps` optimizer steps; the learning rate follows a cosine to zero.

    data: folder of CIFAR-10's binary files; None: generated images. rows: so many of them; None: all, or 1024
    generated. checkpoint: safetensors file to fine-tune from. width, stages: 64 and 4 make a ResNet-50;
    smaller ones are for trying out. precision: fp32, or bf16 for autocast. Raises CaptureError."""
    torch.manual_seed(seed)
    model = ResNet((3, 4, 6, 3)[:stages], width)
    if checkpoint is not None:
        load_checkpoint(model, checkpoint)
    return Task(
        model=model,
        loss=computed_in(precision, loss),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4),
        dataset=load(data, rows),
        batch_size=batch_size,
        steps=steps,
        interval=interval,
        seed=seed,
        schedule=lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps),
    )


CONFIGURATION_A = (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8, "pool")
"""Channels of the 3x3 convolutions, in multiples of the width, and where pixels are pooled."""


class VGG(nn.Module):
    """Images f32[B, 3, 32, 32] -> logits f32[B, 10]."""

    def __init__(self, width: int, batch_norm: bool, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for item in CONFIGURATION_A:
            if isinstance(item, str):
                layers.append(nn.MaxPool2d(2))
                continue
            layers.append(nn.Conv2d(channels, item * width, 3, padding=1))
            channels = item * width
            if batch_norm:
                layers.append(nn.BatchNorm2d(channels))
            layers.append(nn.ReLU(inplace=True))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(channels, channels),
            nn.ReLU(inplace=True),
            nn.Linear(channels, CLASSES),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # there is one

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(images).flatten(1))
        return logits


@portable()
def vgg11(
    *,
    data: Path | None = None,
    rows: int | None = None,
    checkpoint: Path | None = None,
    steps: int = 100,
    interval: int = 10,
    batch_size: int = 16,
    width: int = 64,
    batch_norm: bool = False,
    dropout: float = 0.5,
    precision: str = FP32,
    seed: int = 7,
) -> Task:
    """The task: `steps` optimizer steps; the learning rate follows a cosine to zero.

    data: folder of CIFAR-10's binary files; None: generated images. rows: so many of them; None: all, or 1024
    generated. checkpoint: safetensors file to fine-tune from. width: 64 is VGG-11; smaller ones are for trying out.
    precision: fp32, or bf16 for autocast. Raises CaptureError."""
    torch.manual_seed(seed)
    model = VGG(width, batch_norm, dropout)
    if checkpoint is not None:
        load_checkpoint(model, checkpoint)
    return Task(
        model=model,
        loss=computed_in(precision, loss),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
        dataset=load(data, rows),
        batch_size=batch_size,
        steps=steps,
        interval=interval,
        seed=seed,
        schedule=lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps),
    )
