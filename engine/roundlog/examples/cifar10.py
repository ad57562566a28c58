"""CIFAR-10: 32x32 colour images of ten classes (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
2009), or generated images of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from roundlog.capture import CaptureError
from roundlog.examples import cifar10_files
from roundlog.examples.cifar10_files import CLASSES

GENERATED_ROWS = 1024

# Mean and deviation of the training set's pixels in 0..1, by colour: the figures that everybody uses.
MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2470, 0.2435, 0.2616)


def load(folder: Path | None, rows: int | None) -> dict[str, torch.Tensor]:
    """Images f32[rows, 3, 32, 32], each colour of mean 0 and deviation 1, and classes i64[rows].

    folder: holds data_batch_1 to data_batch_5; None: generated images, a faint one of its own for each class, under
    noise. rows: so many from the first on; None: all of the files', or 1024 generated ones. Raises CaptureError."""
    if rows is not None and rows < 1:
        raise CaptureError(f"{rows} rows make no dataset: ask for at least one")
    if folder is None:
        count = rows or GENERATED_ROWS
        labels = torch.randint(0, CLASSES, (count,))
        return {"images": torch.randn(count, 3, 32, 32) + torch.randn(CLASSES, 3, 32, 32)[labels], "labels": labels}
    pixels, classes = cifar10_files.read(folder)
    if rows is not None and rows > len(classes):
        raise CaptureError(f"{folder} has {len(classes)} images, not {rows}: ask for fewer rows")
    images = torch.from_numpy(pixels[:rows]).reshape(-1, 3, 32, 32).to(torch.float32)
    images.div_(255).sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(DEVIATION).view(3, 1, 1))
    return {"images": images, "labels": torch.from_numpy(classes[:rows])}


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of a batch."""
    return F.cross_entropy(model(batch["images"]), batch["labels"])
