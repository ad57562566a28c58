"""Steps in BF16 that call other kernels than the traced one, or read what came before: tables that are kept, branches,
several optimizers, and losses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from roundlog.capture import CaptureError, capture
from roundlog.capture.captured import CallTrail, KernelCall
from roundlog.training.sameness import confirm_same
from torch import Tensor, nn, optim
from torch.nn import functional as F

from tests.engine.running.short_steps import is_noticed, net, task_of, under_autocast


class WithTable(nn.Module):
    """A net that makes a table in its first step, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 24), nn.Linear(24, 3)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.table is None:
            self.table = torch.outer(torch.arange(5), torch.arange(24)).float().cos()
        return self.last(h * self.table)


def test_constants_that_only_the_first_step_computes_are_no_difference() -> None:
    task = task_of(WithTable(), under_autocast)
    captured = capture(task)
    assert not is_noticed(task, captured)
    nodes = list(captured.program.nodes)
    (place,) = (index for index, node in enumerate(nodes) if node.op == "cos")
    nodes[place] = replace(nodes[place], op="sin")
    assert is_noticed(task, replace(captured, program=replace(captured.program, nodes=tuple(nodes))))


class WithChoices(nn.Module):
    """A net with two ifs by values that call the same kernel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        is_positive, is_not = x[0, 0] > 0, x[0, 0] <= 0
        if is_positive:
            h = h * 2
        if is_not:
            h = h * 3
        return self.last(h)


def test_paths_that_call_the_same_kernels_are_told_apart_by_their_numbers() -> None:
    task = task_of(WithChoices(), under_autocast)
    captured = capture(task)
    assert len({trail.calls for trail in captured.origin.trails}) < len(captured.origin.trails)
    assert not is_noticed(task, captured)


class Adversarial(nn.Module):
    """A generator and its critic."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.made, self.critic = nn.Linear(8, 8), nn.Linear(8, 1)


@pytest.mark.parametrize("decides", [False, True])
def test_losses_of_two_optimizers_in_turn_are_compared(decides: bool) -> None:
    """The second loss reads what the first optimizer has made of the critic, which is another on every path."""

    def of_critic(model: Adversarial, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = batch["x"]
            if decides and x[0, 0] > 0:
                x = x * 2
            real, fake = model.critic(x), model.critic(model.made(batch["x"]).detach())
        return F.softplus(-real.float()).mean() + F.softplus(fake.float()).mean()

    def of_maker(model: Adversarial, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fake = model.critic(model.made(batch["x"]))
        return F.softplus(-fake.float()).mean()

    model = Adversarial()
    optimizers = [optim.AdamW(part.parameters(), lr=0.05) for part in (model.critic, model.made)]
    task = task_of(model, [of_critic, of_maker], optimizers)
    captured = capture(task)
    assert confirm_same(task, captured).kernels > 100


class WithRotation(nn.Module):
    """A net that makes tables in its first step, of constants or of a buffer, beside kernels of the same kinds, and a
    mean that has no value before."""

    def __init__(self, of_buffer: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 24), nn.Linear(24, 3)
        self.register_buffer("rates", 1.0 / 10 ** (torch.arange(24) / 24))
        self.of_buffer = of_buffer
        self.table: Tensor | None = None
        self.mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.table is None:
            angles = torch.outer(torch.arange(5).float(), self.rates) if self.of_buffer else torch.arange(24).float()
            self.table = angles.cos()
        h = (h.float().cos() * self.table).sin()
        if self.of_buffer:
            mean = h.detach().mean(0)
            self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean
            h = h - self.mean
        return self.last(h)


@pytest.mark.parametrize("of_buffer", [False, True])
def test_what_the_first_step_leaves_is_read_by_the_next(of_buffer: bool) -> None:
    task = task_of(WithRotation(of_buffer), under_autocast)
    captured = capture(task)
    assert not is_noticed(task, captured)
    nodes = list(captured.program.nodes)
    place = max(index for index, node in enumerate(nodes) if node.op == "cos")
    nodes[place] = replace(nodes[place], op="sin")
    assert is_noticed(task, replace(captured, program=replace(captured.program, nodes=tuple(nodes))))


def test_calls_that_a_step_leaves_out_are_found_among_many_of_their_kind() -> None:
    """Without trying all choices of what is left out: there are 2^60."""
    cast, cos, last = (KernelCall(name, (torch.float32,), (torch.float32,)) for name in ("cast", "cos", "last"))
    trail = CallTrail((*[cast] * 60, cos, cast, last), {(60, 0): 7, (61, 0): 8, (62, 0): 9}, frozenset(range(60)))
    left = trail.followed_by((*[cast] * 3, cos, cast, last))
    assert left is not None and left.places == {(3, 0): 7, (4, 0): 8, (5, 0): 9}
    assert trail.followed_by((*[cast] * 60, cos, last)) is None
    assert trail.followed_by((*[cast] * 61, cos, cast, last)) is None


def test_a_loss_that_is_not_the_users_is_noticed() -> None:
    """Gradients and what the optimizer makes of them are right."""
    task = task_of(net(), under_autocast)
    captured = capture(task)
    nodes = list(captured.program.nodes)
    (place,) = (index for index, node in enumerate(nodes) if node.op == "loss")
    other = next(i for i, node in enumerate(nodes) if node.op == "schedule" and node.type == nodes[place].type)
    nodes[place] = replace(nodes[place], inputs=(other,))
    with pytest.raises(CaptureError, match="at step 0 the loss gives other numbers than PyTorch's"):
        confirm_same(task, replace(captured, program=replace(captured.program, nodes=tuple(nodes))))
