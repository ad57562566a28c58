"""Steps in BF16 that call other kernels than the traced one, or read what came before: tables that are kept, branches,
several optimizers, and losses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from roundlog.capture import CaptureError, capture
from roundlog.training.sameness import confirm_same
from torch import Tensor, nn, optim
from torch.nn import functional as F

from tests.engine.running.short_steps import net, task_of, under_autocast


class Adversarial(nn.Module):
    """A generator and its critic."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.made, self.critic = nn.Linear(8, 8), nn.Linear(8, 1)


def test_losses_of_two_optimizers_in_turn_are_compared() -> None:
    """The second loss reads what the first optimizer has made of the critic."""

    def of_critic(model: Adversarial, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = batch["x"]
            real, fake = model.critic(x), model.critic(model.made(batch["x"]).detach())
        return F.softplus(-real.float()).mean() + F.softplus(fake.float()).mean()

    def of_maker(model: Adversarial, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fake = model.critic(model.made(batch["x"]))
        return F.softplus(-fake.float()).mean()

    model = Adversarial()
    optimizers = [optim.AdamW(part.parameters(), lr=0.05) for part in (model.critic, model.made)]
    task = task_of(model, [of_critic, of_maker], optimizers)
    captured = capture(lambda: task)
    assert confirm_same(captured).kernels > 100


def test_a_loss_that_is_not_the_users_is_noticed() -> None:
    """Gradients and what the optimizer makes of them are right."""
    task = task_of(net(), under_autocast)
    captured = capture(lambda: task)
    nodes = list(captured.program.nodes)
    (place,) = (index for index, node in enumerate(nodes) if node.op == "loss")
    other = next(i for i, node in enumerate(nodes) if node.op == "schedule" and node.type == nodes[place].type)
    nodes[place] = replace(nodes[place], inputs=(other,))
    with pytest.raises(CaptureError, match="at step 0 the loss gives other numbers than PyTorch's"):
        confirm_same(replace(captured, program=replace(captured.program, nodes=tuple(nodes))))
