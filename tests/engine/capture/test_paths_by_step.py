"""Steps that decide by their values and by numbers of Python that steps change, at once, beside plain PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor, optim

from tests.engine.capture.later_steps import Net, task_of
from tests.engine.capture.random_branches import trained_both_ways

Forward = Callable[[Net, Tensor], Tensor]


def _anneals(net: Net, x: Tensor) -> Tensor:
    h, beta = net.a(x), min(1.0, net.n / 10)
    return net.b(h) * beta if h.mean() > 0 else h + net.b(x) * (1 - beta)


def _asks_at_some_steps(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    if net.n % 3:
        return net.b(h)
    return net.b(h) * 2 if h.mean() > 0 else h + net.b(x)


def _other_numbers_on_each_path(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    h = h * 0.9**net.n + net.b(x) if x.mean() > 0 else h * (1 / net.n) + net.b(h) * 0.9**net.n
    return h * (1.0 / net.n) if h.mean() * 0.9**net.n > 0.05 else h


def _threshold_that_falls(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.b(h) if h.abs().mean() > 1.0 / net.n else h * 2 + net.b(x)


def _rows_by_a_count(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    return h[h > 0].sum() * min(0.1, net.n / 50) + net.b(x)


def _other_rows_at_every_second_step(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    if net.n % 2:
        return net.b(net.drop(h[x[:, 0] > 0])).sum() * torch.ones(2) * 0.02
    return net.b(net.drop(h))


def _draws_by_both(net: Net, x: Tensor) -> Tensor:
    h = net.a(x) + net.b(x)
    if net.n % 2:
        return h * torch.rand(4)
    return h * torch.rand(4, 4) + torch.randn(4, 1) if x.mean() > 0 else h * random.random()


def _writes_by_both(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    if net.n > 2 and (x.mean() > 0 or net.n % 2):
        h = h + net.centre
    net.centre.mul_(0.9).add_(h.detach().mean(0))
    return h + net.b(x)


def _replaces_on_a_path(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    if x.mean() > 0:
        net.x = h.detach().mean(0)
    return h * min(1.0, net.n / 10) + net.x


def _replaces_late_on_a_path(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    if net.n == 3 and x.mean() < 9:
        net.x = h.detach().mean(0) + 5
    return h + net.x if net.n > 5 else h


def _explores(net: Net, x: Tensor) -> Tensor:
    h, epsilon = net.a(x) + net.b(x), max(0.2, 0.9 - net.n / 20)
    return h * 2 if random.random() < epsilon else h * np.random.beta(0.5, 2.0)


def _compares_numbers_of_values(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    rows = (h.sum(1) > 0).sum().item()
    if rows > net.n // 8 and h.mean().item() <= 9.0 / net.n and net.n / 3 >= x.mean().item():
        h = h * random.gammavariate(2.0, 0.5)
    return h + net.b(x)


FOLLOWED = (
    _explores,
    _compares_numbers_of_values,
    _anneals,
    _asks_at_some_steps,
    _other_numbers_on_each_path,
    _threshold_that_falls,
    _rows_by_a_count,
    _other_rows_at_every_second_step,
    _draws_by_both,
    _writes_by_both,
    _replaces_on_a_path,
    _replaces_late_on_a_path,
)


def _task(forward: Forward, optimizer: Callable[..., optim.Optimizer] = optim.SGD) -> Task:
    model = Net(forward)
    model.x = torch.zeros(4)
    model.register_buffer("centre", torch.zeros(4))
    task = task_of(model, optimizer=optimizer(model.parameters(), lr=0.05), steps=24, interval=24)
    torch.manual_seed(6)
    task.dataset["x"].copy_(torch.randn(8, 4) + 0.5 * torch.randn(8, 1))
    return task


@pytest.mark.slow_but(
    "_writes_by_both", "_draws_by_both", "_asks_at_some_steps", "_replaces_on_a_path", "_anneals", "_rows_by_a_count"
)
@pytest.mark.parametrize("forward", FOLLOWED)
def test_both_at_once(forward: Forward) -> None:
    assert trained_both_ways(lambda: _task(forward), 24).apart < 1e-5


class Careful(optim.Optimizer):
    """Corrects its bias by a count of its own, and shrinks a parameter whose gradient is large."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state.update(mean=torch.zeros_like(p), step=0)
            state["step"] += 1
            state["mean"].mul_(0.9).add_(p.grad)
            p.sub_(self.param_groups[0]["lr"] * state["mean"] / (1 - 0.9 ** state["step"]))
            if p.ndim == 2 and p.grad.norm() > 0.1:
                p.mul_(0.99)


@pytest.mark.slow_cases("_anneals")
@pytest.mark.parametrize("forward", [_anneals, lambda n, x: n.a(x) + n.b(x)])
def test_an_optimizer_of_ones_own_that_decides_by_values(forward: Forward) -> None:
    assert trained_both_ways(lambda: _task(forward, Careful), 24).apart < 1e-5


def _begins_on_a_path(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    if x.mean() > 0:
        net.later = h.detach().mean(0)
    return h if net.later is None else h + net.later


def _a_word_on_a_path(net: Net, x: Tensor) -> Tensor:
    if x.mean() > 0 and net.n == 1:
        net.later = "warm"
    return net.b(net.a(x)) if net.later == "warm" else net.a(x) + net.b(x)


def _counts_on_a_path(net: Net, x: Tensor) -> Tensor:
    if x.mean() > 0:
        net.held[0] += 1
    return net.a(x) * (1 + net.held[0]) * min(1.0, net.n / 10)


@pytest.mark.parametrize(
    ("forward", "sentence"),
    [
        (
            _begins_on_a_path,
            "a step changes model.later by values that it computes",
        ),
        (_a_word_on_a_path, "a step changes model.later by values that it computes"),
        (_counts_on_a_path, r"the step uses model.held\[0\], a number of Python that steps compute from their values"),
    ],
)
def test_what_a_value_decides_about_later_steps_is_refused(forward: Forward, sentence: str) -> None:
    task = _task(forward)
    task.model.later, task.model.held = None, [0]
    with pytest.raises(CaptureError, match=sentence):
        Job.from_task(task)


def test_a_comparison_with_a_number_that_changes_is_exact() -> None:
    """0.1 is none of FP32, whose nearest number is larger: neither number may be taken for it."""

    def forward(net: Net, x: Tensor) -> Tensor:
        above = net.centre.sum().item()
        factors = (above > net.tenth, above >= net.tenth, above < net.tenth, above <= net.tenth)
        net.tenth = 0.1 if net.n % 2 else float(torch.tensor(0.1).double())
        h = net.a(x) + net.b(x)
        for place, holds in enumerate(factors):
            h = h * (2.0 + place) if holds else h
        return h

    def make() -> Task:
        task = _task(forward)
        task.model.tenth = 0.1
        task.model.centre[0] = 0.1
        return task

    assert trained_both_ways(make, 6).apart < 1e-5


def test_an_index_outside_of_its_axis_stops_no_step_that_does_not_take_it() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        net.centre.add_(1.0)
        row = net.centre[:1].long()
        return net.b(x) + net.a(x) * (net.a.weight[row] if net.n < 4 else 2.0)

    assert trained_both_ways(lambda: _task(forward), 24).apart < 1e-5
