"""Habits of training loops

Prints, logs, counters and checks may stay in a step, as long as nothing that is trained is computed from them."""

from __future__ import annotations

import tempfile
import time

import numpy as np
import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F

from tests.scripts.script_corpus import refused, script
from tests.scripts.script_parts import entropy, mlp, task


@script("Printing loss.item() and an accuracy", source="PyTorch's Quickstart")
def printing() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        y = m(batch["x"])
        found, right = F.cross_entropy(y, batch["y"]), (y.argmax(1) == batch["y"]).float().mean()
        print(f"loss: {found.item():>7f}, accuracy: {100 * right.item():.1f} %")
        return found

    return task(mlp(), loss)


@script(
    "A training loop pasted whole",
    source="PyTorch's Quickstart, with the optimizer's step in the loss",
    outcome=refused("return the loss, and leave out backward(), optimizer.step()", rewrite="printing"),
)
def whole_loop() -> Task:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        found = entropy(m, batch)
        found.backward()
        optimizer.step()
        return found

    return task(model, loss, optimizer=optimizer)


@script(
    "A part of a loss that has gone backward",
    source="accumulation by hand: (loss / 4).backward(), and the loss for the log",
    outcome=refused("the loss function calls backward()", advice="Accumulate by `micro_batches=4`."),
)
def backward_of_a_part() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        found = entropy(m, batch)
        (found / 4).backward()
        return found

    return task(mlp(), loss)


@script(
    "A running mean of losses",
    source="PyTorch's tutorial on training a classifier: running_loss += loss.item()",
    outcome=refused("a step changes loss.count, from 2 to 3", rewrite="running_loss_as_tensor"),
)
def running_loss() -> Task:
    running, count = 0.0, 0

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        nonlocal running, count
        found = entropy(m, batch)
        running, count = running + found.item(), count + 1
        if count % 2 == 0:
            print(f"[{count}] {running / 2:.3f}")
            running = 0.0
        return found

    return task(mlp(), loss)


@script("A running mean of losses as a tensor", source="the same, with the mean as state")
def running_loss_as_tensor() -> Task:
    running = torch.zeros(())

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        found = entropy(m, batch)
        running.mul_(0.9).add_(found.detach(), alpha=0.1)
        print(f"{running.item():.3f}")
        return found

    return task(mlp(), loss)


class SummaryWriter:
    """In the place of torch.utils.tensorboard's, which needs another package: takes what that takes."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile("w")  # noqa: SIM115

    def add_scalar(self, tag: str, value: object, step: int) -> None:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().numpy()
        elif not np.isscalar(value):
            raise NotImplementedError(f"Got {type(value)}, but numpy array or torch tensor are expected.")
        self.file.write(f"{time.time()} {tag} {value} {step}\n")


@script(
    "A writer for TensorBoard that is given loss.item()",
    source="many training loops",
    outcome=refused(
        "every loss stands in the run's history.jsonl",
        advice="Leave the writer out, or feed it from history.jsonl afterwards (pandas.read_json(lines=True)).",
    ),
)
def tensorboard_item() -> Task:
    writer, step = SummaryWriter(), 0

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        nonlocal step
        found = entropy(m, batch)
        writer.add_scalar("loss/train", found.item(), step)
        step += 1
        return found

    return task(mlp(), loss)


@script(
    "An assert, and an error for losses that are not finite",
    source="fairseq, and debugging since",
    outcome=refused(
        "control flow depends on values",
        advice="Look at the data before the first step; a run stops by itself at a loss that is not finite.",
    ),
)
def checks() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        found = entropy(m, batch)
        assert batch["y"].max() < 3
        if not torch.isfinite(found):
            raise FloatingPointError(f"loss is {found}")
        return found

    return task(mlp(), loss)


@script("model.train() and an evaluation in the step", source="training loops that validate every step")
def evaluation() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        m.eval()
        with torch.no_grad():
            print("before:", entropy(m, batch).item())
        m.train()
        return entropy(m, batch)

    return task(nn.Sequential(nn.Dropout(0.1), mlp()), loss)


@script(
    "A seed set in the step",
    source="reproducibility, PyTorch forums",
    outcome=refused("seed", advice="Leave it out: the seed of the task is enough."),
)
def seed_in_step() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(0)
        return entropy(m, {**batch, "x": batch["x"] + 0.1 * torch.randn(8, 6)})

    return task(mlp(), loss)


@script("An adversarial step on the input", source="FGSM, as in PyTorch's tutorial on adversarial examples")
def fgsm() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        x = batch["x"].clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(m(x), batch["y"]), x)
        return 0.5 * entropy(m, batch) + 0.5 * F.cross_entropy(m(batch["x"] + 0.1 * slope.sign()), batch["y"])

    return task(mlp(), loss)
