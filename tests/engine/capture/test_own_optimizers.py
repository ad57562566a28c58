"""Optimizers of the user's own, trained beside PyTorch through all steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.training.job import Job
from torch import Tensor, optim

from tests.engine.capture.later_steps import Net, followed, task_of


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


class Belief(optim.Optimizer):
    """AdaBelief, with a count of its own for every parameter."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "eps": 1e-6})

    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                state, grad = self.state[p], p.grad.detach()
                if not state:
                    state.update(step=0, m=torch.zeros_like(p.detach()), s=torch.zeros_like(p.detach()))
                state["step"] += 1
                m, s = state["m"], state["s"]
                m.mul_(one).add_(grad, alpha=1 - one)
                s.mul_(two).addcmul_(grad - m, grad - m, value=1 - two).add_(group["eps"])
                size = group["lr"] / (1 - one ** state["step"])
                scale = math.sqrt(1 - two ** state["step"])
                with torch.no_grad():
                    p.addcdiv_(m, s.sqrt() / scale + 1e-8, value=-size)


class Lookahead(optim.Optimizer):
    """Slow weights around a fast optimizer, moved every five steps."""

    def __init__(self, base: optim.Optimizer) -> None:
        self.base, self.param_groups, self.defaults = base, base.param_groups, base.defaults
        self.count = 0
        super().__init__(base.param_groups, base.defaults)
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        self.base.step()
        self.count += 1
        if self.count % 5 == 0:
            for slow, p in zip(self.slow, (p for group in self.param_groups for p in group["params"]), strict=True):
                slow.add_(p - slow, alpha=0.5)
                p.copy_(slow)


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
    "AdaBelief": lambda p: Belief(p),
    "Lookahead": lambda p: Lookahead(optim.SGD(p, lr=0.05)),
    "SGD and more": lambda p: Accelerated(p, lr=0.05, momentum=0.9),
}


def _loss(m: Net, batch: dict[str, Tensor]) -> Tensor:
    return (m(batch["x"]) - 1).square().mean() + 0.01 * m.b(batch["x"]).sum()


@pytest.mark.slow_but("None-Lion", "0.1-Lookahead")
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("clipped", [None, 0.1])
def test_an_own_optimizer_is_what_pytorch_trains(name: str, clipped: float | None) -> None:
    def make() -> object:
        net = Net()
        return task_of(net, _loss, optimizer=OWN[name](net.parameters()), max_grad_norm=clipped, micro_batches=2)

    followed(make)


@pytest.mark.parametrize("name", ["Lion", "AdaBelief"])
def test_an_own_optimizer_follows_the_schedule(name: str) -> None:
    def make() -> object:
        net = Net()
        optimizer = OWN[name](net.parameters())
        return task_of(net, _loss, optimizer=optimizer, schedule=lambda step: min(1.0, (step + 1) / 20))

    followed(make)


class Uneven(Belief):
    """Leaves every third parameter out at every other step, so that its count is another one."""

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.taken = 0

    def step(self, closure: object = None) -> None:
        self.taken += 1
        (group,) = self.param_groups
        params = group["params"]
        group["params"] = [p for place, p in enumerate(params) if place % 3 or self.taken % 2]
        super().step()
        group["params"] = params


@pytest.mark.slow_cases("Uneven")
@pytest.mark.parametrize("kind", [Belief, Uneven])
def test_counts_of_many_parameters_are_one_number_where_they_are_the_same(kind: Any) -> None:
    """By themselves they would be more numbers than a step has columns for."""

    def make() -> object:
        net = Net(lambda n, x: n.a(x) + torch.stack(list(n.many)).sum(0))
        net.many = torch.nn.ParameterList(torch.full((4,), place / 100) for place in range(30))
        return task_of(
            net,
            lambda m, b: (m(b["x"]) - 1).square().mean() + sum(p.square().sum() for p in m.many),
            optimizer=kind([*net.many, net.a.weight]),
            steps=8,
            interval=8,
        )

    names = followed(make).program.schedule_names
    assert sum(name.startswith("number/") for name in names) < 16


def test_an_optimizer_that_changes_its_rate_by_itself_is_refused() -> None:
    class Decaying(Lion):
        def step(self, closure: object = None) -> None:
            super().step()
            self.param_groups[0]["lr"] *= 0.9

    net = Net()
    task = task_of(net, _loss, optimizer=Decaying(net.parameters()), schedule=lambda step: 1 / (step + 1))
    with pytest.raises(CaptureError, match=r"a step changes optimizer.param_groups\[0\].lr: change it by the"):
        Job.from_task(task)
