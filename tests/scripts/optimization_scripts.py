"""Optimizers, schedules and precision

An optimizer is one of `torch.optim`. Clipping and accumulation are arguments of `Task`, and so is the schedule."""

from __future__ import annotations

import math

import torch
from roundlog import Task
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.scripts.script_corpus import Outcome, refused, script
from tests.scripts.script_parts import entropy, mlp, task


@script("Gradients accumulated over four parts", source="gradient_accumulation_steps of Hugging Face")
def accumulation() -> Task:
    return task(mlp(), micro_batches=4)


@script("Gradients clipped by their norm", source="a habit of training loops")
def clipping() -> Task:
    model = mlp()
    return task(model, optimizer=torch.optim.RMSprop(model.parameters(), lr=1e-3), max_grad_norm=1.0)


@script("Warmup and a cosine", source="get_cosine_schedule_with_warmup of Hugging Face")
def warmup_cosine() -> Task:
    def factor(step: int) -> float:
        return step / 2 if step < 2 else 0.5 * (1 + math.cos(math.pi * (step - 2) / 2))

    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return task(model, optimizer=optimizer, schedule=schedule)


@script("StepLR, once an epoch", source="PyTorch's example on MNIST, whose scheduler is stepped once an epoch")
def step_lr() -> Task:
    model, steps_per_epoch = mlp(), 32 // 8
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1 * steps_per_epoch, gamma=0.7)
    return task(model, optimizer=optimizer, schedule=schedule, steps=8)


@script("ReduceLROnPlateau", source="a habit from Keras", outcome=refused("ReduceLROnPlateau", rewrite="step_lr"))
def plateau() -> Task:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return task(model, optimizer=optimizer, schedule=schedule)


@script(
    "An average of the weights over time",
    source="PyTorch's swa_utils, stepped after the optimizer",
    outcome=refused("decide by torch.where", rewrite="ema"),
)
def averaged_model() -> Task:
    model = mlp()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        average.update_parameters(m)  # of the step before
        return entropy(m, batch)

    return task(model, loss)


@script("An average of the weights by hand", source="the EMA class of many diffusion repositories")
def ema() -> Task:
    model = mlp()
    shadow = {name: parameter.clone().detach() for name, parameter in model.named_parameters()}

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            for name, parameter in m.named_parameters():
                shadow[name] = 0.99 * shadow[name] + 0.01 * parameter
        return entropy(m, batch)

    return task(model, loss)


@script("LoRA by hand", source="LoRA (Hu et al. 2021), as in minLoRA")
def lora() -> Task:
    class LoRA(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.02)
            self.b = nn.Parameter(torch.zeros(base.out_features, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + F.dropout(x, 0.1, self.training) @ self.a.t() @ self.b.t() * 2.0

    model = mlp()
    model[0], model[2] = LoRA(model[0]), LoRA(model[2])
    return task(model)


@script("autocast in BF16", source="PyTorch's recipe on automatic mixed precision")
def autocast() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return entropy(m, batch)

    return task(mlp(), loss)


@script(
    "autocast in FP16",
    source="PyTorch's recipe on automatic mixed precision, with a GradScaler",
    outcome=refused("torch.autocast computes in float16", rewrite="autocast"),
)
def autocast_in_fp16() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return entropy(m, batch)

    return task(mlp(), loss)


@script("A model in BF16", source="fine-tuning scripts: model.to(torch.bfloat16), with the loss in FP32")
def model_in_bf16() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(m(batch["x"].to(torch.bfloat16)).float(), batch["y"])

    return task(mlp().to(torch.bfloat16), loss)


@script(
    "autocast switched on for the whole script",
    source="notebooks: torch.set_autocast_enabled, or an __enter__ that has no end",
    outcome=refused("torch.autocast is left on outside of the loss", rewrite="autocast"),
)
def autocast_left_on() -> Task:
    torch.set_autocast_enabled("cpu", True)
    return task(mlp())


@script("Parts of an activation written in place under autocast", source="gates, rotary embeddings and token shifts")
def parts_in_place() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = m[0](batch["x"])
            h[:, ::2] *= 0.7
            z = h.clone()
            z[:, 8:] += h[:, :8]
            z.view(8, 4, 4).transpose(1, 2)[1::2, 1:3, ::3] -= 0.25
            z.t()[3:5].mul_(h.t()[:2])
            z.narrow(1, 6, 2).select(0, 1).add_(1.0)
            return F.cross_entropy(m[2](m[1](z)).float(), batch["y"])

    return task(mlp(), loss)


@script("Elements that a mask chooses, written under autocast", source="clipping and masking, PyTorch forums")
def masks_in_place() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h, chosen = m[0](batch["x"]), batch["y"] > 0
            h[h > 0.5] = 0.5
            h[h < -0.5] = -0.5
            h[chosen, 0] = 0.0
            h[:, h[0].detach() < 0] = h.detach().mean()
            h[chosen] = torch.sigmoid(h).detach().mean(0)
            h.masked_fill_(h == 0, 0.1)
            y = m[2](h)
            return F.cross_entropy(y.float(), torch.where(chosen, batch["y"], -100)) + F.cross_entropy(y, batch["y"])

    return task(mlp(), loss)


@script(
    "A model in BF16 whose updates are rounded away",
    source="fine-tuning scripts with norms that begin at 1, and a rate of 6e-4",
    outcome=Outcome(
        warning="none of the 1 trained parameters changes in the first 3 step(s): keep the weights in FP32"
    ),
)
def standstill_in_bf16() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(m(batch["x"].bfloat16()).float(), batch["y"])

    model = nn.Linear(6, 3, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    return task(model, loss, optimizer=torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.0))


@script(
    "A model in float64",
    source="scientific models: torch.set_default_dtype(torch.float64)",
    outcome=refused(
        "float64: convert the model with .float()", advice="Every operator of an FP32 model is rounded once, from FP64."
    ),
)
def float64() -> Task:
    return task(mlp().double(), lambda m, batch: F.cross_entropy(m(batch["x"].double()), batch["y"]))


@script(
    "LBFGS with a closure", source="PyTorch's example on time sequences", outcome=refused("LBFGS", rewrite="clipping")
)
def lbfgs() -> Task:
    model = mlp()
    return task(model, optimizer=torch.optim.LBFGS(model.parameters(), lr=0.8))


@script("An optimizer around another, as SAM is written", source="davda54/sam (Foret et al. 2021)")
def sam() -> Task:
    class SAM(torch.optim.Optimizer):
        def __init__(self, params: object, base: type, **options: float) -> None:
            super().__init__(params, {"rho": 0.05, **options})
            self.base = base(self.param_groups, **options)

        def step(self, closure: object = None) -> None:
            self.base.step()

    model = mlp()
    return task(model, optimizer=SAM(model.parameters(), torch.optim.SGD, lr=0.1))


@script("MAML: an inner step of gradient descent", source="MAML (Finn et al. 2017), by torch.func")
def maml() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        weights = dict(m.named_parameters())
        inner = F.cross_entropy(m(batch["x"][:4]), batch["y"][:4])
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {name: w - 0.1 * s for (name, w), s in zip(weights.items(), slopes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(m, fast, (batch["x"][4:],)), batch["y"][4:])

    return task(mlp(), loss)


@script("An optimizer of one's own", source="Lion (Chen et al. 2023), as in lucidrains' lion-pytorch")
def lion() -> Task:
    class Lion(torch.optim.Optimizer):
        def __init__(self, params: object, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: object = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                    p.add_(torch.sign(average * 0.9 + p.grad * 0.1), alpha=-group["lr"])
                    average.mul_(0.99).add_(p.grad, alpha=0.01)

    model = mlp()
    return task(model, optimizer=Lion(model.parameters(), lr=1e-4))


def experts() -> nn.Module:
    return nn.ModuleDict({"one": mlp(), "two": mlp()})


@script(
    "Adam, and a layer that some batches leave out",
    source="layers chosen by an if on the batch",
    outcome=refused("decide by torch.where", rewrite="layer_by_where"),
)
def layer_by_if() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return entropy(m["one"] if batch["x"].mean() > 0 else m["two"], batch)

    return task(experts(), loss)


@script("Adam, and both layers computed", source="the same by torch.where: every parameter has a gradient, or zeros")
def layer_by_where() -> Task:
    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        y = torch.where(batch["x"].mean() > 0, m["one"](batch["x"]), m["two"](batch["x"]))
        return F.cross_entropy(y, batch["y"])

    return task(experts(), loss)
