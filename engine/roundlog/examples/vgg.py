"""VGG-11 for images of 32x32 pixels, trained on CIFAR-10 by SGD with momentum.

Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (2015), configuration A; as
usual for CIFAR, three linear layers of 512 features and about ten million parameters in all.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from roundlog.capture import Task, load_checkpoint, portable
from roundlog.examples import cifar10
from roundlog.examples.cifar10 import CLASSES
from roundlog.examples.precision import FP32, computed_in

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

    data: folder of CIFAR-10's python files; None: generated images. rows: so many of them; None: all, or 1024
    generated. checkpoint: safetensors file to fine-tune from. width: 64 is VGG-11; smaller ones are for trying out.
    precision: fp32, or bf16 for autocast. Raises CaptureError."""
    torch.manual_seed(seed)
    model = VGG(width, batch_norm, dropout)
    if checkpoint is not None:
        load_checkpoint(model, checkpoint)
    return Task(
        model=model,
        loss=computed_in(precision, cifar10.loss),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4),
        dataset=cifar10.load(data, rows),
        batch_size=batch_size,
        steps=steps,
        interval=interval,
        seed=seed,
        schedule=lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps),
    )
