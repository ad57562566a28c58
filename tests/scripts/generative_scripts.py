"""Generative models

Numbers that a script counts up by itself (a weight that is annealed, a step) have to be known from the step alone:
take the schedule, or a buffer that the step counts up."""

from __future__ import annotations

import math

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F

from tests.scripts.script_corpus import refused, script
from tests.scripts.script_parts import task


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mu, logvar = self.encode(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        apart = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
        return F.mse_loss(self.decode(z), x), apart


@script("A VAE", source="PyTorch's example of a VAE")
def vae() -> Task:
    return task(Vae(), lambda m, batch: sum(m(batch["x"])))


@script(
    "KL annealing by a number of Python",
    source="beta-VAEs, and VAEs for text",
    outcome=refused("numbers={'model.step': lambda step: ...}", rewrite="kl_annealing_by_buffer"),
)
def kl_annealing() -> Task:
    class Annealed(Vae):
        step = 0

        def forward(self, x: Tensor) -> Tensor:
            self.step += 1
            beta = min(1.0, self.step / 10)
            error, apart = super().forward(x)
            return error + beta * apart

    return task(Annealed(), lambda m, batch: m(batch["x"]))


@script("KL annealing by a buffer", source="the same, with the step as state of the model")
def kl_annealing_by_buffer() -> Task:
    class Annealed(Vae):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("step", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.step += 1
            beta = (self.step / 10).clamp(max=1.0)
            error, apart = super().forward(x)
            return error + beta * apart

    return task(Annealed(), lambda m, batch: m(batch["x"]))


class Quantizer(nn.Module):
    """A codebook of 5 vectors of 4, moved by averages over time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(5, 4))
        self.register_buffer("count", torch.ones(5))
        self.register_buffer("total", self.codes.clone())

    def nearest(self, z: Tensor) -> Tensor:
        return torch.cdist(z, self.codes).argmin(1)

    def move(self, z: Tensor, chosen: Tensor) -> None:
        hot = F.one_hot(chosen, 5).float()
        self.count.mul_(0.9).add_(hot.sum(0), alpha=0.1)
        self.total.mul_(0.9).add_(hot.t() @ z, alpha=0.1)
        self.codes.copy_(self.total / (self.count[:, None] + 1e-5))


def autoencoder(quantizer: nn.Module) -> nn.Module:
    return nn.ModuleDict({"encode": nn.Linear(6, 4), "quantize": quantizer, "decode": nn.Linear(4, 6)})


def coded(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    z = m["encode"](batch["x"])
    q = m["quantize"](z)
    return F.mse_loss(m["decode"](z + (q - z).detach()), batch["x"]) + 0.25 * F.mse_loss(z, q.detach())


@script("A VQ-VAE that resets dead codes by torch.where", source="VQ-VAE (van den Oord et al. 2017, appendix A)")
def vq_vae_resets() -> Task:
    class Codes(Quantizer):
        def forward(self, z: Tensor) -> Tensor:
            chosen = self.nearest(z)
            q = F.embedding(chosen, self.codes)
            with torch.no_grad():
                self.move(z, chosen)
                fresh = z[torch.randint(len(z), (5,))]
                self.codes.copy_(torch.where((self.count < 0.95)[:, None], fresh, self.codes))
            return q

    return task(autoencoder(Codes()), coded)


def game(**more: nn.Module) -> nn.Module:
    g = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
    d = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    return nn.ModuleDict({"g": g, "d": d, **more})


@script("DCGAN: two optimizers in turn", source="PyTorch's tutorial on DCGAN")
def dcgan() -> Task:
    model = game()
    says = F.binary_cross_entropy_with_logits

    def discriminator(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        real, fake = m["d"](batch["x"]), m["d"](m["g"](torch.randn(8, 4)).detach())
        return says(real, torch.ones_like(real)) + says(fake, torch.zeros_like(fake))

    def generator(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        fake = m["d"](m["g"](torch.randn(8, 4)))
        return says(fake, torch.ones_like(fake))

    return task(
        model,
        [discriminator, generator],
        optimizer=[torch.optim.Adam(model[name].parameters(), lr=2e-4, betas=(0.5, 0.999)) for name in ("d", "g")],
    )


@script("WGAN-GP: a critic with a penalty on its gradient", source="WGAN-GP (Gulrajani et al. 2017)")
def wgan_gp() -> Task:
    model = game()

    def critic(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        x, fake, share = batch["x"], m["g"](torch.randn(8, 4)).detach(), torch.rand(8, 1)
        between = (share * x + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(m["d"](between).sum(), between, create_graph=True)
        return m["d"](fake).mean() - m["d"](x).mean() + 10 * (slope.norm(2, dim=1) - 1).square().mean()

    return task(
        model,
        {"critic": critic, "generator": lambda m, batch: -m["d"](m["g"](torch.randn(8, 4))).mean()},
        optimizer={
            "critic": torch.optim.RMSprop(model["d"].parameters(), lr=1e-3),
            "generator": torch.optim.RMSprop(model["g"].parameters(), lr=1e-3),
        },
    )


@script(
    "A critic of several steps: optimizer.step() inside the loss",
    source="WGAN (Arjovsky et al. 2017), five steps of the critic",
)
def inner_steps() -> Task:
    model = game()
    inner = torch.optim.RMSprop(model["d"].parameters(), lr=1e-3)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        for _ in range(2):
            inner.zero_grad()
            (m["d"](m["g"](torch.randn(8, 4)).detach()).mean() - m["d"](batch["x"]).mean()).backward()
            inner.step()
        return -m["d"](m["g"](torch.randn(8, 4))).mean()

    return task(model, loss, optimizer=torch.optim.RMSprop(model["g"].parameters(), lr=1e-3))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, 16), nn.SiLU(), nn.Linear(16, 6))
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None].float() * torch.exp(-math.log(1e4) * torch.arange(4) / 4)
        return self.net(torch.cat([x, angle.sin(), angle.cos()], dim=1))


@script("Denoising diffusion", source="DDPM (Ho et al. 2020)")
def diffusion() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        t, noise = torch.randint(0, 50, (8,)), torch.randn_like(batch["x"])
        kept = m.kept[t][:, None]
        return F.mse_loss(m(kept.sqrt() * batch["x"] + (1 - kept).sqrt() * noise, t), noise)

    return task(Denoiser(), loss)
