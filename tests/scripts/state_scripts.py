"""Layers with state, hooks and wrappers

Parametrizations, hooks, checkpoints and functions of autograd are followed. What wraps a model is looked through,
or has to be taken off: the engine has its own ways to several processors."""

from __future__ import annotations

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from tests.scripts.script_corpus import refused, script
from tests.scripts.script_parts import mlp, task


@script("Spectral norm", source="SN-GAN (Miyato et al. 2018)")
def spectral_norm() -> Task:
    model = mlp()
    model[0] = parametrizations.spectral_norm(model[0])
    return task(model)


@script("Weight norm", source="WaveNet, and speech models since")
def weight_norm() -> Task:
    model = mlp()
    model[0], model[2] = parametrizations.weight_norm(model[0]), nn.utils.weight_norm(model[2])
    return task(model)


@script(
    "Orthogonal weights",
    source="PyTorch's tutorial on parametrizations",
    outcome=refused("aten._linalg_solve_ex", rewrite="reflections"),
)
def orthogonal() -> Task:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0] = parametrizations.orthogonal(model[0], orthogonal_map="cayley")
    return task(model)


@script("Orthogonal weights as a product of reflections", source="the same; Householder 1958")
def reflections() -> Task:
    class Reflections(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            turned = torch.eye(len(weight))
            for v in F.normalize(weight, dim=1):
                turned = turned - 2 * torch.outer(turned @ v, v)
            return turned

    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    parametrize.register_parametrization(model[0], "weight", Reflections())
    return task(model)


@script("Activations computed again", source="torch.utils.checkpoint")
def checkpointing() -> Task:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.1)) for _ in range(3))
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    return task(Net())


@script("A function of autograd", source="PyTorch's tutorial on custom functions: a straight-through estimator")
def custom_function() -> Task:
    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return torch.sign(x)

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return gradient * (x.abs() <= 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(Sign.apply(self.one(x)))

    return task(Net())


@script("Hooks that read activations and scale gradients", source="feature extraction, PyTorch forums")
def hooks() -> Task:
    model, seen = mlp(), {}
    model[1].register_forward_hook(lambda module, args, output: seen.__setitem__("h", output))
    model[2].register_full_backward_hook(lambda module, given, got: (given[0] * 0.5,))
    model[0].weight.register_hook(lambda gradient: gradient * 0.1)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(m(batch["x"]), batch["y"]) + 1e-2 * seen["h"].square().mean()

    return task(model, loss)


@script("A compiled model", source="torch.compile, one line of many scripts")
def compiled() -> Task:
    return task(torch.compile(mlp()))


@script("nn.DataParallel around the model", source="PyTorch's tutorial on DataParallel")
def data_parallel() -> Task:
    return task(nn.DataParallel(mlp()))


@script("A scripted layer", source="torch.jit.script, for speed")
def scripted() -> Task:
    model = mlp()
    model[0] = torch.jit.script(model[0])
    return task(model)


@script("Fake-quantized weights", source="quantization-aware training")
def fake_quantized() -> Task:
    class Quantized(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scale = (self.weight.detach().abs().max() / 127).clamp(min=1e-8)
            weight = torch.fake_quantize_per_tensor_affine(
                self.weight, scale, torch.zeros(1, dtype=torch.int32), -128, 127
            )
            return F.linear(x, weight, self.bias)

    return task(nn.Sequential(Quantized(6, 16), nn.ReLU(), Quantized(16, 3)))


@script("A layer that is made at the first call", source="lazy modules of PyTorch")
def lazy() -> Task:
    model = nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(3))
    model(torch.zeros(1, 6))
    return task(model)


@script("A buffer of running statistics", source="the same, with a buffer from the start")
def statistics() -> Task:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return self.net(x - self.mean)

    return task(Net())


@script("Old pruning by assigning .data", source="lottery tickets, as in early repositories")
def pruning_by_data() -> Task:
    class Pruned(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.weight.data = self.weight.data * self.mask
            return F.linear(x, self.weight, self.bias)

    model = mlp()
    model[0] = Pruned(6, 16)
    model[0].register_buffer("mask", (torch.rand(16, 6) < 0.5).float())
    return task(model)


@script("Pruning by a mask", source="torch.nn.utils.prune")
def pruning() -> Task:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    return task(model)
