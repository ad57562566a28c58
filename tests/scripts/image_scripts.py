"""Images

Images are a field of floats, or of bytes that the step scales. What is drawn, is drawn by `torch` for every row."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F

from tests.scripts.script_corpus import refused, script
from tests.scripts.script_parts import images, task


@script("A CNN with dropout", source="PyTorch's example on MNIST")
def cnn() -> Task:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3)
            self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
            self.fc1, self.fc2 = nn.Linear(32, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.conv2(F.relu(self.conv1(x))))
            x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
            x = self.fc2(self.dropout2(F.relu(self.fc1(x))))
            return F.log_softmax(x, dim=1)

    model = Net()
    return task(
        model,
        lambda m, batch: F.nll_loss(m(batch["x"]), batch["y"]),
        images(),
        optimizer=torch.optim.Adadelta(model.parameters(), lr=1.0),
    )


class BasicBlock(nn.Module):
    def __init__(self, planes: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(planes, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential(nn.Conv2d(planes, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


@script("Residual blocks with BatchNorm", source="torchvision's ResNet")
def resnet() -> Task:
    model = nn.Sequential(
        BasicBlock(3, 6), BasicBlock(6, 8, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    return task(
        model, dataset=images(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    )


def classifier() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4))


@script("Random flips and crops in the step", source="a habit of GPU-side augmentation, as in kornia")
def flips_and_crops() -> Task:
    def augment(x: Tensor) -> Tensor:
        rows, _, height, width = x.shape
        flip = torch.rand(rows) < 0.5
        x = torch.where(flip[:, None, None, None], x.flip(-1), x)
        top, left = torch.randint(0, 5, (2, rows))
        down = (top[:, None] + torch.arange(height))[:, None, :, None]
        right = (left[:, None] + torch.arange(width))[:, None, None, :]
        padded = F.pad(x, (2, 2, 2, 2))
        return padded[torch.arange(rows)[:, None, None, None], torch.arange(3)[None, :, None, None], down, right]

    return task(classifier(), lambda m, batch: F.cross_entropy(m(augment(batch["x"])), batch["y"]), images())


@script(
    "random.random() in the step",
    source="a habit of training loops",
    outcome=refused("decide by torch.where", rewrite="flips_and_crops"),
)
def flip_by_random() -> Task:
    def augment(x: Tensor) -> Tensor:
        return x.flip(-1) if random.random() < 0.5 else x

    model = classifier()
    return task(
        model,
        lambda m, batch: F.cross_entropy(m(augment(batch["x"])), batch["y"]),
        images(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


@script("MixUp with numpy", source="the code of the MixUp paper (Zhang et al. 2018)")
def mixup_by_numpy() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        share = np.random.beta(0.4, 0.4)
        other = torch.randperm(len(batch["x"]))
        y = m(share * batch["x"] + (1 - share) * batch["x"][other])
        return share * F.cross_entropy(y, batch["y"]) + (1 - share) * F.cross_entropy(y, batch["y"][other])

    model = classifier()
    return task(model, loss, images(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@script("CutMix by a mask", source="CutMix, with the box as a mask")
def cutmix() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        other, place = torch.randperm(8), torch.arange(8)
        top, left = torch.randint(0, 5, (2,))
        inside = ((place >= top) & (place < top + 4))[:, None] & ((place >= left) & (place < left + 4))
        y = m(torch.where(inside, batch["x"][other], batch["x"]))
        share = inside.float().mean()
        return (1 - share) * F.cross_entropy(y, batch["y"]) + share * F.cross_entropy(y, batch["y"][other])

    model = classifier()
    return task(model, loss, images(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def transformed(sample: Callable[[Tensor, Tensor], Tensor]) -> Task:
    """sample: of images [N, C, H, W] and a grid [N, H, W, 2]."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Tanh(), nn.Linear(8, 6))
            self.head = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
            with torch.no_grad():
                self.place[3].bias += torch.tensor([0.9, 0.1, 0.0, -0.1, 0.9, 0.0])

        def forward(self, x: Tensor) -> Tensor:
            grid = F.affine_grid(self.place(x).view(-1, 2, 3), list(x.shape), align_corners=False)
            return self.head(sample(x, grid))

    model = Net()
    return task(model, dataset=images(), optimizer=torch.optim.SGD(model.parameters(), lr=0.01))


@script(
    "A spatial transformer",
    source="PyTorch's tutorial (Jaderberg et al. 2015)",
    outcome=refused("read the four pixels around each position", rewrite="transformer_by_gather"),
)
def spatial_transformer() -> Task:
    return transformed(lambda x, grid: F.grid_sample(x, grid, align_corners=False))


@script("A spatial transformer by gather", source="the same; pixels outside of an image are zero")
def transformer_by_gather() -> Task:
    def sample(x: Tensor, grid: Tensor) -> Tensor:
        channels, height, width = x.shape[1:]
        place = ((grid + 1) * torch.tensor([width, height]) - 1) / 2
        total = torch.zeros_like(x)
        for corner in torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]):
            at = place.detach().floor() + corner
            across, down = (1 - (place - at).abs()).unbind(-1)
            column, row = at.unbind(-1)
            inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long().flatten(1)
            pixels = x.flatten(2).gather(2, index[:, None].expand(-1, channels, -1)).view_as(x)
            total = total + torch.where(inside, across * down, 0.0)[:, None] * pixels
        return total

    return transformed(sample)
