"""Every optimizer with every option, six steps, against PyTorch's own in FP64 and in FP32."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.training.job import Job
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.engine.capture.calls import refused
from tests.engine.tasks import classify, small_task
from tests.engine.trainings import train_by_program, train_by_pytorch

STEPS = 6

Options = dict[str, Any]

DECAY: Options = {"weight_decay": 0.1}
UP: Options = {"maximize": True}

OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], Options]] = {
    "SGD, dampening": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, **DECAY}),
    "SGD, Nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, **UP}),
    "Adam, decoupled": (optim.Adam, {"decoupled_weight_decay": True, **DECAY}),
    "AdamW, amsgrad": (optim.AdamW, {"amsgrad": True, "betas": (0.5, 0.6), **DECAY, **UP}),
    "NAdam, options": (optim.NAdam, {**DECAY, "momentum_decay": 0.1, "decoupled_weight_decay": True, **UP}),
    "RMSprop, all": (optim.RMSprop, {"momentum": 0.8, "centered": True, "alpha": 0.7, **DECAY, **UP}),
    "Adagrad, options": (optim.Adagrad, {"initial_accumulator_value": 0.3, "lr_decay": 0.2, **DECAY, **UP}),
    "Adadelta, options": (optim.Adadelta, {"rho": 0.7, **DECAY, **UP}),
}


class Net(nn.Module):
    """Parameters of every rank from 0 to 4, wide and tall matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(4, 3)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = torch.tanh(self.conv(torch.tanh(self.first(x)).reshape(-1, 1, 4, 4)))
        return self.last(image.sum(2)[:, 0]) * self.scale


def task_of(kind: type[optim.Optimizer], options: Options) -> Task:
    torch.manual_seed(8)
    model = Net()
    data, run = {"x": torch.randn(24, 8), "y": torch.randint(0, 3, (24,))}, {"steps": STEPS, "interval": STEPS}
    return small_task(model, classify, data, optimizer=kind(model.parameters(), **options), batch_size=8, seed=2, **run)


def assert_trains_as(task: Task, make: Callable[[], Task]) -> None:
    ours = train_by_program(Job.from_task(lambda: task), STEPS)
    exact = train_by_pytorch(make(), STEPS, torch.float64)
    plain = train_by_pytorch(make(), STEPS, torch.float32)
    moved = 0.0
    for name, tensor in exact.items():
        start = dict(task.model.named_parameters())[name.removeprefix("parameter/")].detach()
        moved += float((tensor - start).abs().sum())
        size = float((tensor - start).abs().max()) + float(start.abs().max()) * 1e-2
        error = float((ours[name] - tensor).abs().max())
        # Not much worse than PyTorch in FP32, whose error an optimizer may blow up as well.
        assert error <= 1e-4 * size + 4 * float((plain[name] - tensor).abs().max()), (name, error, size)
    assert moved > 1e-2


@pytest.mark.slow_but("AdamW, amsgrad")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_trains_as_pytorchs(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    assert_trains_as(task_of(kind, options), lambda: task_of(kind, options))


def noted(*args: object) -> None:
    """A hook."""


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_of_optimizers_are_refused_by_name(when: str) -> None:
    task = task_of(optim.SGD, {"lr": 0.1})
    handle = getattr(task.optimizer, f"register_step_{when}_hook")(noted)
    with pytest.raises(CaptureError, match=rf"^the hook noted of SGD.register_step_{when}_hook .*remove it by its"):
        capture(lambda: task)
    handle.remove()
    capture(lambda: task)
    register = {"pre": register_optimizer_step_pre_hook, "post": register_optimizer_step_post_hook}[when]
    shared = register(noted)
    try:
        with pytest.raises(CaptureError, match=rf"^the hook noted of register_optimizer_step_{when}_hook "):
            capture(lambda: task)
    finally:
        shared.remove()


class Own(optim.Adam):
    """Adam, or nearly so: who knows."""


class Wrapper:
    """A wrapper as libraries put it around an optimizer."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda p: Own(p), "Own is not supported"),
        (lambda p: Wrapper(optim.SGD(p, lr=0.1)), "Wrapper is not supported"),
        (lambda p: optim.LBFGS(p), "LBFGS is not supported"),
        (lambda p: optim.Muon([q for q in p if q.ndim == 2]), "Muon is not supported"),
        (lambda p: optim.RAdam(p), "RAdam is not supported"),
        (lambda p: optim.SparseAdam(p), "SparseAdam is not supported"),
    ],
)
def test_other_optimizers_are_refused_by_name(make, name: str) -> None:
    model = nn.Linear(6, 2)
    refused(model, f"^the optimizer {name}: use one of torch.optim.SGD, ", optimizer=make(model.parameters()))


class Plain(optim.Optimizer):
    """An optimizer of the user's own. One that trains beside PyTorch is among the scripts of tests/scripts."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.sub_(self.param_groups[0]["lr"] * p.grad)


def test_a_count_of_an_optimizers_own_is_refused_by_its_name() -> None:
    class Counting(Plain):
        @torch.no_grad()
        def step(self, closure: object = None) -> None:
            super().step()
            for p in self.param_groups[0]["params"]:
                self.state[p]["step"] = self.state[p].get("step", 0) + 1
                p.mul_(1 - 0.1 / self.state[p]["step"])

    words = re.escape("a step changes optimizer.state[model.scale]['step'], from 2 to")
    with pytest.raises(CaptureError, match=words):
        Job.from_task(lambda: task_of(Counting, {}))


def test_an_optimizer_that_changes_its_rate_by_itself_is_refused() -> None:
    class Decaying(Plain):
        def step(self, closure: object = None) -> None:
            super().step()
            self.param_groups[0]["lr"] *= 0.9

    for schedule in (lambda step: 1 / (step + 1)), (lambda step: 1.0):
        with pytest.raises(CaptureError, match="the optimizer changes its learning rate: give a schedule"):
            Job.from_task(lambda schedule=schedule: replace(task_of(Decaying, {}), schedule=schedule))
