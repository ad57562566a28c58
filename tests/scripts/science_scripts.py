"""Graphs, signals and equations

Edges and weights of a graph that all steps share are buffers. Integer buffers, `index_add_`, `scatter` and
gradients of the input are followed. Fourier transforms and factors of matrices are not: write them out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F

from tests.scripts.script_corpus import refused, script
from tests.scripts.script_parts import task

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
"""Of a graph of six nodes, from the first row to the second."""


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edge_index", EDGES)
        self.lift, self.head = nn.Linear(1, 4), nn.Linear(4, 3)


@script("Graph attention by scatter_reduce", source="GAT (Velickovic et al. 2018), as in torch_scatter")
def gat() -> Task:
    class Net(Graph):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            h, (source, goal) = self.lift(x[:, :, None]), self.edge_index
            score = F.leaky_relu(self.score(torch.cat([h[:, source], h[:, goal]], -1)).squeeze(-1), 0.2)
            place = goal.expand_as(score)
            top = torch.zeros(len(x), 6).scatter_reduce(1, place, score, "amax", include_self=False)
            weight = (score - top.gather(1, place)).exp()
            total = torch.zeros(len(x), 6).scatter_add(1, place, weight).gather(1, place)
            near = torch.zeros_like(h).index_add(1, goal, h[:, source] * (weight / total)[..., None])
            return self.head(F.elu(near).mean(1))

    return task(Net())


@script("Hessians, and derivatives in forward mode", source="PyTorch's tutorial on Jacobians and Hessians")
def hessians() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        x, one = batch["x"], batch["x"][0]
        curved = torch.func.vmap(torch.func.hessian(lambda x: m(x).sum()))(x)
        slopes = torch.autograd.functional.jacobian(m, one, strategy="forward-mode", vectorize=True)
        y, along = torch.func.linearize(m, x)
        penalty = curved.square().sum() + (slopes * torch.func.jacfwd(m)(one)).sum() + along(x).square().mean()
        return F.cross_entropy(y, batch["y"]) + 1e-3 * penalty

    return task(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), loss)


@script(
    "A Fourier neural operator",
    source="FNO (Li et al. 2021): complex weights as two real ones",
    outcome=refused("a Fourier transform is two products", rewrite="fno_by_products"),
)
def fno() -> Task:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.skip, self.out = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 4, 1), nn.Conv1d(4, 1, 1)
            self.weight = nn.Parameter(torch.randn(4, 4, 3, 2) / 8)

        def forward(self, x: Tensor) -> Tensor:
            h = self.lift(x[:, None])
            modes = torch.fft.rfft(h)
            mixed = torch.einsum("bim,iom->bom", modes[..., :3], torch.view_as_complex(self.weight))
            smooth = torch.fft.irfft(F.pad(mixed, (0, modes.shape[-1] - 3)), n=h.shape[-1])
            return self.out(F.gelu(smooth + self.skip(h)))[:, 0]

    return task(Net(), lambda m, batch: F.mse_loss(m(batch["x"]), batch["x"].roll(1, 1)), {"x": torch.randn(32, 16)})


def waves_of(length: int, frequencies: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines: f32[length, frequencies] each."""
    angles = 2 * torch.pi * torch.outer(torch.arange(length), torch.arange(frequencies)).double() / length
    return angles.cos().float(), angles.sin().float()


@script("A Fourier neural operator by products", source="the same, with its few frequencies as matrices")
def fno_by_products() -> Task:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.skip, self.out = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 4, 1), nn.Conv1d(4, 1, 1)
            self.weight = nn.Parameter(torch.randn(4, 4, 3, 2) / 8)
            cos, sin = waves_of(16, 3)
            self.register_buffer("cos", cos)
            self.register_buffer("sin", sin)
            # A frequency counts twice, since its mirror image is left out.
            self.register_buffer("share", torch.tensor([1.0, 2.0, 2.0]) / 16)

        def forward(self, x: Tensor) -> Tensor:
            h = self.lift(x[:, None])
            real, imaginary = h @ self.cos, -(h @ self.sin)
            a, b = self.weight.unbind(-1)
            mixed = torch.einsum("bim,iom->bom", real, a) - torch.einsum("bim,iom->bom", imaginary, b)
            turned = torch.einsum("bim,iom->bom", real, b) + torch.einsum("bim,iom->bom", imaginary, a)
            smooth = (mixed * self.share) @ self.cos.T - (turned * self.share) @ self.sin.T
            return self.out(F.gelu(smooth + self.skip(h)))[:, 0]

    return task(Net(), lambda m, batch: F.mse_loss(m(batch["x"]), batch["x"].roll(1, 1)), {"x": torch.randn(32, 16)})


def spectral(m: nn.Module, batch: dict[str, Tensor], spectrum: Callable[[Tensor], Tensor]) -> Tensor:
    ours, theirs = spectrum(m(batch["x"])), spectrum(batch["x"])
    apart = torch.linalg.norm(theirs - ours) / torch.linalg.norm(theirs)
    return apart + F.l1_loss(ours.log(), theirs.log())


def waves() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 4, 5, padding=2), nn.Tanh(), nn.Conv1d(4, 1, 1), nn.Flatten()
    )


@script("A loss over spectra by products", source="the same, with windows by unfold and the transform as matrices")
def stft_by_products() -> Task:
    cos, sin = waves_of(16, 9)
    window = torch.hann_window(16)

    def spectrum(x: Tensor) -> Tensor:
        frames = F.pad(x[:, None], (8, 8), mode="reflect")[:, 0].unfold(1, 16, 8) * window
        return ((frames @ cos).square() + (frames @ sin).square()).clamp(min=1e-8).sqrt()

    return task(waves(), lambda m, batch: spectral(m, batch, spectrum), {"x": torch.randn(32, 64)})


def kernel_of(x: Tensor, raw: Tensor) -> Tensor:
    """The kernel of rows, by three numbers: scale, length and noise."""
    scale, length, noise = F.softplus(raw)
    return scale * torch.exp(-torch.cdist(x, x).square() / (2 * length**2)) + noise * torch.eye(len(x))


def process(likelihood: Callable[[Tensor, Tensor], Tensor]) -> Task:
    """likelihood: of a kernel and of values."""

    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.raw = nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return likelihood(kernel_of(x, self.raw), y)

    model = Kernel()
    return task(
        model,
        lambda m, batch: m(batch["x"], batch["x"][:, 0].sin()),
        optimizer=torch.optim.Adam(model.parameters(), lr=0.1),
    )


@script(
    "A Gaussian process by Cholesky",
    source="GPyTorch's exact marginal likelihood",
    outcome=refused("factor a small matrix column by column", rewrite="cholesky_by_columns"),
)
def gaussian_process() -> Task:
    def likelihood(k: Tensor, y: Tensor) -> Tensor:
        factor = torch.linalg.cholesky(k)
        alpha = torch.cholesky_solve(y[:, None], factor)
        return 0.5 * (y @ alpha).squeeze() + factor.diagonal().log().sum()

    return process(likelihood)


@script("A Gaussian process by columns", source="the same; Golub and Van Loan, algorithm 4.2.1")
def cholesky_by_columns() -> Task:
    def likelihood(k: Tensor, y: Tensor) -> Tensor:
        total, logarithm = torch.zeros(()), torch.zeros(())
        while len(k):  # as often as there are rows
            column = k[:, 0] / k[0, 0].sqrt()
            first = y[0] / column[0]
            total, logarithm = total + first.square(), logarithm + column[0].log()
            k, y = k[1:, 1:] - torch.outer(column[1:], column[1:]), y[1:] - first * column[1:]
        return 0.5 * total + logarithm

    return process(likelihood)
