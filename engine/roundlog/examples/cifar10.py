"""Generated images of the shape of CIFAR-10's: 32x32 in colour, of ten classes (Krizhevsky, "Learning Multiple Layers
of Features from Tiny Images", 2009).

Two nets learn them by SGD with momentum. ResNet-50: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition"
(2016), bottleneck blocks in four stages; as usual for CIFAR, the stem is one 3x3 convolution, without pooling. VGG-11:
Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2015), configuration A; as
usual for CIFAR, three linear layers of 512 features and about ten million parameters in all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from roundlog.capture import Task, portable
from roundlog.examples.baseline import FP32, computed_in

CLASSES = 10
GENERATED_ROWS = 1024


def generate(rows: int) -> dict[str, torch.Tensor]:
    """Images f32[rows, 3, 32, 32], a faint one of its own for each class under noise, and classes i64[rows]."""
    labels = torch.randint(0, CLASSES, (rows,))
    return {"images": torch.randn(rows, 3, 32, 32) + torch.randn(CLASSES, 3, 32, 32)[labels], "labels": labels}


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
    rows: int = GENERATED_ROWS,
    steps: int = 100,
    interval: int = 10,
    batch_size: int = 64,
    width: int = 64,
    stages: int = 4,
    precision: str = FP32,
    seed: int = 7,
) -> Task:
    """The task: `steps` optimizer steps; the learning rate follows a cosine to zero.

    rows: images. width, stages: 64 and 4 make a ResNet-50; smaller ones are for trying out. precision: fp32, or bf16
    for autocast. Raises CaptureError."""
    torch.manual_seed(seed)
    model = ResNet((3, 4, 6, 3)[:stages], width)
    return Task(
        model=model,
        loss=computed_in(precision, loss),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4),
        dataset=generate(rows),
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
    rows: int = GENERATED_ROWS,
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

    rows: images. width: 64 is VGG-11; smaller ones are for trying out. precision: fp32, or bf16 for autocast. Raises
    CaptureError."""
    torch.manual_seed(seed)
    model = VGG(width, batch_norm, dropout)
    return Task(
        model=model,
        loss=computed_in(precision, loss),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
        dataset=generate(rows),
        batch_size=batch_size,
        steps=steps,
        interval=interval,
        seed=seed,
        schedule=lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps),
    )
