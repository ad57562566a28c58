"""Reinforcement learning

A job trains on rows that are there: what an environment gave is stored first, as actions, rewards and old
log-probabilities. Playing is done between jobs, with the weights that the last one gave."""

from __future__ import annotations

import copy

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from tests.scripts.script_corpus import refused, script
from tests.scripts.script_parts import task


def played() -> dict[str, Tensor]:
    return {
        "s": torch.randn(32, 6),
        "a": torch.randint(3, (32,)),
        "r": torch.randn(32),
        "next": torch.randn(32, 6),
        "done": torch.rand(32) < 0.1,
        "old": -torch.rand(32) - 0.5,
    }


def net(out: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, out))


@script("PPO's clipped loss", source="CleanRL's ppo.py")
def ppo() -> Task:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = net(), net(1)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        policy, value = Categorical(logits=m.actor(batch["s"])), m.critic(batch["s"]).view(-1)
        logratio = policy.log_prob(batch["a"]) - batch["old"]
        ratio, gain = logratio.exp(), (batch["r"] - value).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        pg = torch.max(-gain * ratio, -gain * torch.clamp(ratio, 0.8, 1.2)).mean()
        return pg - 0.01 * policy.entropy().mean() + 0.5 * 0.5 * ((value - batch["r"]) ** 2).mean()

    model = Agent()
    return task(
        model, loss, played(), optimizer=torch.optim.Adam(model.parameters(), lr=2.5e-4, eps=1e-5), max_grad_norm=0.5
    )


@script(
    "Q-learning whose target is copied every two steps",
    source="DQN (Mnih et al. 2015)",
    outcome=refused("a step changes loss.step, from 2 to 3", rewrite="dqn_by_where"),
)
def dqn_every_two() -> Task:
    model = net()
    target, step = copy.deepcopy(model), 0

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        nonlocal step
        if step % 2 == 0:
            target.load_state_dict(m.state_dict())
        step += 1
        with torch.no_grad():
            best = batch["r"] + 0.99 * target(batch["next"]).max(1).values
        return F.smooth_l1_loss(m(batch["s"]).gather(1, batch["a"][:, None]).squeeze(1), best)

    return task(model, loss, played())


@script("Q-learning whose target is copied by torch.where", source="DQN, with the step as state")
def dqn_by_where() -> Task:
    model = net()
    target, step = copy.deepcopy(model), torch.zeros((), dtype=torch.long)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            for old, new in zip(target.parameters(), m.parameters(), strict=True):
                old.copy_(torch.where(step % 2 == 0, new, old))
            step.add_(1)
            best = batch["r"] + 0.99 * target(batch["next"]).max(1).values
        return F.smooth_l1_loss(m(batch["s"]).gather(1, batch["a"][:, None]).squeeze(1), best)

    return task(model, loss, played())


@script("A target that explores by an epsilon that is stated", source="the same, with the numbers of all steps")
def epsilon_by_numbers() -> Task:
    model = net()
    target = copy.deepcopy(model)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        values = target(batch["next"]).detach()
        chosen = torch.where(torch.rand(()) < batch["epsilon"], values.mean(1), values.max(1).values)
        return F.smooth_l1_loss(m(batch["s"]).gather(1, batch["a"][:, None]).squeeze(1), batch["r"] + 0.99 * chosen)

    numbers = {"epsilon": lambda step: max(0.1, 0.9 - 0.2 * step)}
    return task(model, loss, played(), numbers=numbers)
