"""Optimizers of the user's own, trained beside PyTorch through all steps."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor, nn, optim

from tests.scripts.script_training import captured_job, losses_by_program, losses_by_pytorch

STEPS = 20


class Lion(optim.Optimizer):
    def __init__(self, params: Any, lr: float = 0.01, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if len(self.state[p]) == 0:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
                average = self.state[p]["exp_avg"]
                p.mul_(1 - group["lr"] * 0.01)
                p.add_(torch.sign(average * group["beta"] + p.grad * (1 - group["beta"])), alpha=-group["lr"])
                average.mul_(0.99).add_(p.grad, alpha=0.01)


class Adamax(optim.Optimizer):
    """torch.optim.Adamax, which is captured no more: state from the beginning, and a count in a tensor."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})
        for p in self.param_groups[0]["params"]:
            self.state[p] = {name: torch.zeros_like(p) for name in ("mean", "largest")}
        self.count = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        self.count.add_(1)
        for p in self.param_groups[0]["params"]:
            mean, largest = self.state[p].values()
            mean.lerp_(p.grad, 0.1)
            largest.copy_(torch.maximum(0.999 * largest, p.grad.abs() + 1e-8))
            p.sub_(self.param_groups[0]["lr"] / (1 - 0.9**self.count) * mean / largest)


class Accelerated(optim.SGD):
    """A step of PyTorch's, and one of its own."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.999)


OWN = {
    "Lion": lambda p: Lion(p),
    "Adamax": lambda p: Adamax(p),
    "SGD and more": lambda p: Accelerated(p, lr=0.05, momentum=0.9),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)


def task_of(model: Net, optimizer: optim.Optimizer, **more: Any) -> Task:
    torch.manual_seed(5)
    data, run = {"x": torch.randn(8, 4)}, {"batch_size": 4, "steps": STEPS, "interval": STEPS, "seed": 3}
    return Task(model=model, loss=_loss, optimizer=optimizer, dataset=data, **run, **more)


def _loss(m: Net, batch: dict[str, Tensor]) -> Tensor:
    return (m(batch["x"]) - 1).square().mean() + 0.01 * m.b(batch["x"]).sum()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clipped"), [("Lion", 0.1), ("Adamax", None), ("SGD and more", None)])
def test_an_own_optimizer_is_what_pytorch_trains(name: str, clipped: float | None) -> None:
    def make() -> Task:
        net = Net()
        return task_of(net, optimizer=OWN[name](net.parameters()), max_grad_norm=clipped, micro_batches=2)

    job, captured = captured_job(make)
    ours, drawn = losses_by_program(job, captured, STEPS)
    assert ours == pytest.approx(losses_by_pytorch(make(), drawn), rel=2e-5)


def test_a_count_of_an_optimizers_own_is_refused_by_its_name() -> None:
    class Counting(Lion):
        def step(self, closure: object = None) -> None:
            super().step()
            for p in self.param_groups[0]["params"]:
                self.state[p]["step"] = self.state[p].get("step", 0) + 1
                with torch.no_grad():
                    p.mul_(1 - 0.1 / self.state[p]["step"])

    def make() -> Task:
        net = Net()
        return task_of(net, optimizer=Counting(net.parameters()))

    with pytest.raises(
        CaptureError, match=re.escape("a step changes optimizer.state[model.a.weight]['step'], from 2 to")
    ):
        Job.from_task(make)


def test_an_optimizer_that_changes_its_rate_by_itself_is_refused() -> None:
    class Decaying(Lion):
        def step(self, closure: object = None) -> None:
            super().step()
            self.param_groups[0]["lr"] *= 0.9

    for schedule in (lambda step: 1 / (step + 1)), (lambda step: 1.0):
        net = Net()
        task = task_of(net, optimizer=Decaying(net.parameters()), schedule=schedule)
        with pytest.raises(CaptureError, match=r"does not begin with zeros|a step changes optimizer.param_groups"):
            Job.from_task(lambda task=task: task)
