"""Data

A job has all rows from the start, as fields of equal length; the order of the batches is the job's own. What is
computed from whole batches stands in `of_batch`, or in the loss."""

from __future__ import annotations

import numpy as np
import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.scripts.script_corpus import refused, script
from tests.scripts.script_parts import entropy, rows, task


def linear() -> nn.Module:
    return nn.Linear(6, 3)


@script(
    "A DataLoader as the data set",
    source="every training loop",
    outcome=refused("the dataset is a DataLoader", rewrite="fields"),
)
def loader() -> Task:
    data, model = rows(), linear()
    return task(
        model,
        dataset=DataLoader(TensorDataset(data["x"], data["y"]), batch_size=8, shuffle=True),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


@script("A Dataset read once into fields", source="the same: every row of the Dataset, stacked")
def fields() -> Task:
    data, model = rows(), linear()
    dataset = TensorDataset(data["x"], data["y"])
    x, y = next(iter(DataLoader(dataset, batch_size=len(dataset))))
    return task(model, dataset={"x": x, "y": y}, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@script(
    "Batches taken from an iterator in the loss",
    source="a second data set, as in semi-supervised training: next(iter(loader))",
    outcome=refused("a step changes loss.unlabelled._sampler_iter", rewrite="second_data"),
)
def iterator() -> Task:
    data, model = rows(), linear()
    unlabelled = iter(DataLoader(torch.randn(32, 6), batch_size=8))

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return entropy(m, batch) + 0.1 * m(next(unlabelled)).softmax(1).max(1).values.mean()

    return task(model, loss, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@script("A second data set as a field", source="the same, with as many rows as the first")
def second_data() -> Task:
    data, model = {**rows(), "unlabelled": torch.randn(32, 6)}, linear()

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return entropy(m, batch) + 0.1 * m(batch["unlabelled"]).softmax(1).max(1).values.mean()

    return task(model, loss, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@script(
    "The whole data set in the loss",
    source="full-batch terms, kernels against all rows",
    outcome=refused("reads the dataset field", rewrite="rows_as_buffer"),
)
def whole_data() -> Task:
    data, model = rows(), linear()

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return entropy(m, batch) + 0.1 * m(data["x"]).mean().square()

    return task(model, loss, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@script("Rows for all steps in a buffer", source="the same: a copy that is part of the model")
def rows_as_buffer() -> Task:
    data, model = rows(), linear()
    model.register_buffer("rows", data["x"].clone())

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return entropy(m, batch) + 0.1 * m(m.rows).mean().square()

    return task(model, loss, data, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@script("Images kept in bytes, scaled in the step", source="CIFAR-10 and MNIST as they are stored")
def bytes_as_images() -> Task:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    mean, std = torch.tensor([0.49, 0.48, 0.45]), torch.tensor([0.25, 0.24, 0.26])

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        x = batch["x"].float().div(255).sub(mean[:, None, None]).div(std[:, None, None])
        return F.cross_entropy(m(x), batch["y"])

    return task(
        model,
        loss,
        {"x": torch.randint(256, (32, 3, 8, 8), dtype=torch.uint8), "y": np.arange(32) % 4},
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


@script("A loss divided by the words of the whole batch", source="num_items_in_batch of Hugging Face")
def of_batch() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        each = F.cross_entropy(m(batch["x"]), batch["y"], reduction="none")
        return (each * (batch["y"] > 0)).sum() / batch["words"]

    model = linear()
    return task(
        model,
        loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        of_batch=lambda batch: {"words": (batch["y"] > 0).sum().clamp(min=1)},
        accumulate="sum",
        micro_batches=2,
    )
