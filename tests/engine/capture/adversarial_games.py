"""Tasks with several optimizers, and the same trainings as scripts write them by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from roundlog.capture import Task
from torch import Tensor, nn
from torch.nn import functional as F

Batch = Mapping[str, Tensor]
Script = Callable[[Task, Callable[[int], Batch], int], list[float]]
"""Takes so many steps on a task's own model and optimizers, and gives the sum of the losses of each."""

NOISE = 4


def says(logits: Tensor, real: bool) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def networks(*, dropout: float = 0.3) -> nn.ModuleDict:
    torch.manual_seed(0)
    generator = nn.Sequential(
        nn.ConvTranspose2d(NOISE, 4, 4, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(1, 4, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Dropout(dropout),
        nn.Conv2d(4, 4, 4, 2, 1, bias=False),
        nn.BatchNorm2d(4),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(16, 1),
    )
    return nn.ModuleDict({"generator": generator, "discriminator": discriminator})


def task_of(model: nn.Module, **options: Any) -> Task:
    torch.manual_seed(1)
    given = {"dataset": {"x": torch.randn(24, 1, 8, 8)}, "batch_size": 8, "steps": 4, "interval": 2, "seed": 3}
    return Task(model=model, **{**given, **options})


class Dcgan:
    """The losses of PyTorch's DCGAN tutorial: images are made once, for both."""

    def __init__(self) -> None:
        self.fake: Tensor | None = None

    def discriminator(self, model: Any, batch: Batch) -> Tensor:
        real = says(model["discriminator"](batch["x"]), True)
        self.fake = model["generator"](torch.randn(len(batch["x"]), NOISE, 1, 1))
        return real + says(model["discriminator"](self.fake.detach()), False)

    def generator(self, model: Any, batch: Batch) -> Tensor:
        return says(model["discriminator"](self.fake), True)


def dcgan(**options: Any) -> Task:
    model, game = networks(), Dcgan()
    optimizers = [torch.optim.Adam(model[name].parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-4) for name in ORDER]
    return task_of(model, loss=[game.discriminator, game.generator], optimizer=optimizers, **options)


ORDER = ("discriminator", "generator")


def dcgan_by_hand(task: Task, batch_of: Callable[[int], Batch], steps: int) -> list[float]:
    """The loop of the tutorial."""
    model: Any = task.model
    netD, netG = model["discriminator"], model["generator"]
    optimizerD, optimizerG = task.optimizer  # type: ignore[misc]
    found = []
    for step in range(steps):
        data = batch_of(step)["x"]
        netD.zero_grad()
        errD_real = says(netD(data), True)
        errD_real.backward()
        fake = netG(torch.randn(len(data), NOISE, 1, 1, dtype=data.dtype))
        errD_fake = says(netD(fake.detach()), False)
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = says(netD(fake), True)
        errG.backward()
        optimizerG.step()
        found.append(float((errD_real + errD_fake + errG).detach()))
    return found


def penalized(model: Any, batch: Batch) -> Tensor:
    """The critic's loss of WGAN-GP (Gulrajani et al. 2017)."""
    critic, real = model["discriminator"], batch["x"]
    fake = model["generator"](torch.randn(len(real), NOISE, 1, 1, dtype=real.dtype)).detach()
    share = torch.rand(len(real), 1, 1, 1, dtype=real.dtype)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    return critic(fake).mean() - critic(real).mean() + 10 * penalty


def wgan(**options: Any) -> Task:
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    model = nn.ModuleDict({"generator": networks()["generator"], "discriminator": critic})

    def fools(model: Any, batch: Batch) -> Tensor:
        noise = torch.randn(len(batch["x"]), NOISE, 1, 1, dtype=batch["x"].dtype)
        return -model["discriminator"](model["generator"](noise)).mean()

    optimizers = [torch.optim.RMSprop(model[name].parameters(), lr=1e-3, eps=1e-4) for name in ORDER]
    return task_of(model, loss=[penalized, fools], optimizer=optimizers, **options)


class ActorCritic(nn.Module):
    """A trunk that the critic trains, and the actor reads without cutting it off."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.actor, self.critic = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.tanh(self.trunk(x))
        return self.actor(seen), self.critic(seen).squeeze(1)


def actor_critic(**options: Any) -> Task:
    model = ActorCritic()

    def value(model: nn.Module, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch["x"])[1], batch["reward"])

    def policy(model: nn.Module, batch: Batch) -> Tensor:
        logits, values = model(batch["x"])
        taken = F.log_softmax(logits, 1).gather(1, batch["action"][:, None]).squeeze(1)
        return -(taken * (batch["reward"] - values.detach())).mean()

    torch.manual_seed(1)
    rows = {"x": torch.randn(24, 6), "action": torch.randint(3, (24,)), "reward": torch.randn(24)}
    critic = torch.optim.SGD([*model.trunk.parameters(), *model.critic.parameters()], lr=0.2, momentum=0.9)
    return task_of(
        model,
        loss={"actor": policy, "critic": value},
        optimizer={"critic": critic, "actor": torch.optim.Adam(model.actor.parameters(), lr=1e-2, eps=1e-4)},
        dataset=rows,
        **options,
    )


def autoencoder(**options: Any) -> Task:
    """An autoencoder and an adversary of its code: with rates, clipping and micro-batches of all kinds."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "encoder": nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Dropout(0.2), nn.Tanh()),
            "decoder": nn.Linear(6, 64),
            "adversary": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)),
        }
    )

    def rebuilds(model: Any, batch: Batch) -> Tensor:
        code = model["encoder"](batch["x"])
        rebuilt = F.mse_loss(model["decoder"](code), batch["x"].flatten(1))
        return rebuilt + 0.1 * says(model["adversary"](code), True)

    def tells(model: Any, batch: Batch) -> Tensor:
        code = model["encoder"](batch["x"]).detach()
        return says(model["adversary"](torch.randn_like(code)), True) + says(model["adversary"](code), False)

    both = [*model["encoder"].parameters(), *model["decoder"].parameters()]
    first = torch.optim.AdamW(both, lr=1e-2, eps=1e-4, weight_decay=0.1)
    second = torch.optim.SGD(model["adversary"].parameters(), lr=0.2, momentum=0.9)
    given = {
        "loss": {"autoencoder": rebuilds, "adversary": tells},
        "optimizer": {"autoencoder": first, "adversary": second},
        "schedule": {
            "autoencoder": torch.optim.lr_scheduler.StepLR(first, 1, 0.5),
            "adversary": lambda step: 1 / (1 + step),
        },
        "max_grad_norm": {"autoencoder": 0.05, "adversary": None},
        "micro_batches": 2,
    }
    return task_of(model, **{**given, **options})


def in_turn(task: Task, batch_of: Callable[[int], Batch], steps: int) -> list[float]:
    """Every optimizer cleared, its loss differentiated, itself stepped; one after the other."""
    keys: Any = task.optimizer if isinstance(task.optimizer, dict) else range(len(task.optimizer))  # type: ignore[arg-type]
    rates = {key: [group["lr"] for group in _of(task.optimizer, key).param_groups] for key in keys}
    found = []
    for step in range(steps):
        batch, total = batch_of(step), 0.0
        rows = task.batch_size // task.micro_batches
        for key in keys:
            optimizer, schedule, norm = (_of(one, key) for one in (task.optimizer, task.schedule, task.max_grad_norm))
            if not hasattr(schedule, "step"):
                for group, rate in zip(optimizer.param_groups, rates[key], strict=True):
                    group["lr"] = rate * schedule(step)
            optimizer.zero_grad()
            for first in range(0, task.batch_size, rows):
                part = {name: rows_of[first : first + rows] for name, rows_of in batch.items()}
                loss = _of(task.loss, key)(task.model, part) / task.micro_batches
                loss.backward()
                total += float(loss.detach())
            if norm is not None:
                torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], norm)
            optimizer.step()
            if hasattr(schedule, "step"):
                schedule.step()
        found.append(total)
    return found


def _of(several: Any, key: Any) -> Any:
    return several[key] if isinstance(several, (list, dict)) else several


def at_once(task: Task, batch_of: Callable[[int], Batch], steps: int) -> list[float]:
    """All losses before any optimizer takes its step: what a task with several does not mean."""
    found = []
    for step in range(steps):
        batch, losses = batch_of(step), []
        for loss, optimizer in zip(task.loss, task.optimizer, strict=True):  # type: ignore[arg-type]
            losses.append(loss(task.model, batch))
            own = [p for group in optimizer.param_groups for p in group["params"]]
            for parameter, gradient in zip(own, torch.autograd.grad(losses[-1], own, retain_graph=True), strict=True):
                parameter.grad = gradient
        for optimizer in task.optimizer:  # type: ignore[union-attr]
            optimizer.step()
        found.append(sum(float(loss.detach()) for loss in losses))
    return found


@dataclass(frozen=True, slots=True)
class Game:
    """A task, and the script that trains it."""

    task: Callable[..., Task]
    script: Script = in_turn
    options: dict[str, Any] = field(default_factory=dict)


GAMES = {
    "DCGAN": Game(dcgan, dcgan_by_hand),
    "WGAN with a gradient penalty": Game(wgan),
    "actor and critic": Game(actor_critic),
    "autoencoder and adversary": Game(autoencoder),
}


def turned(task: Task) -> Task:
    """The same with the optimizers in the other order."""
    return replace(task, optimizer=list(task.optimizer)[::-1], loss=list(task.loss)[::-1])  # type: ignore[arg-type]
