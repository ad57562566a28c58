"""Random training scripts: small modules with writes through views, aliases, hooks, closures, Python state and
checkpointing. The generator knows nothing of capture; what it writes is ordinary PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from roundlog.capture import Task

_HEAD = """
import random
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

COUNTS = {"calls": 0}


class Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x @ layer.weight.t()

    @staticmethod
    def backward(ctx, g):
        return g @ ctx.layer.weight, None

"""

_PLAIN = [
    "h = torch.tanh(self.l{i}(h))",
    "h = h * 0.5 + x",
    "h = F.gelu(h) @ self.w",
    "h = F.layer_norm(h, (6,), self.gain)",
    "h = torch.where(h > 0, h, 0.1 * h)",
    "h = F.softmax(h, dim={d}) + h",
    "h = h.t().reshape(4, 6) if {d} else h.flip(1)",
    "h = torch.cat([h[:, :3], h[:, 3:] * 2.0], dim=1)",
    "h = h - h.mean({d}, keepdim=True)",
    "h = h / h.norm()",
    "h = Reads.apply(h, self.l{i})",
    "with torch.no_grad():\n    k = self.l{i}(h)\nh = h + k",
    "h = h + self.l{i}.weight[{d}] * self.l{i}.weight.sum(1)",
    "(g,) = torch.autograd.grad(h.square().sum(), h, create_graph=True)\nh = h + 0.1 * g",
]

_WRITES = [
    "c = h.clone()\nc[:, {k}].mul_(0.5)\nh = c",
    "c = h.clone()\nc.t()[{k}].add_(1.0)\nh = c",
    "c = h.clone()\nc[1:3] = c[0:2].clone()\nh = c",
    "c = h.clone()\nv = c.view(-1)\nv[::3] = 0.25\nh = c + v.view(4, 6)",
    "c = h.clone()\nc.diagonal().fill_(0.3)\nh = c",
    "c = h.clone()\nc.as_strided(({n},), (7,), {d}).add_(0.5)\nh = c",
    "c = h.clone()\nc.as_strided((2, 2), (6, 1), {k}).mul_(2.0)\nh = c",
    "c = h.clone()\nc.unsqueeze(0).squeeze(0).clamp_(-0.4, 0.4)\nh = c",
    "c = h.clone()\nc.masked_fill_(c > 0.5, 0.5)\nh = c",
    "c = h.clone()\na, b = c.chunk(2, {d1})\na.add_(b)\nh = c",
    "c = h.clone()\nc[torch.tensor([0, 2])] = 0.1\nh = c",
    "c = h.clone()\nc[{d}].copy_(x[{d}])\nh = c",
    "c = h.clone()\nc.transpose(0, 1).unfold(1, 2, 2)[{k}].zero_()\nh = c",
    "c = h.clone()\nr = c.reshape(2, 12)\nr[{d}, 2:5] += 1.0\nh = c.relu_()",
    "c = h.clone()\nc.expand(2, 4, 6)\nc.movedim(0, 1)[{k}].neg_()\nh = c",
    "c = h.clone()\nc[:, 1:5:2][1:].sub_(0.2)\nh = c",
    "c = h.clone()\nc.narrow(1, {d}, 2).exp_()\nh = c",
]

_STATE = [
    "self.buf.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)\nh = h + self.buf",
    "self.buf[{k}] = h.detach().sum()\nh = h * (1 + 0.01 * self.buf)",
    "self.buf = self.buf * 0.9 + h.detach().mean(0) * 0.1\nh = h + self.buf",
    "self.steps += 1\nh = h / (1 + self.steps)",
    "self.a = 0.5 * self.a + h.detach().mean(0)\nh = h + self.a",
    "self.a.add_(h.detach().mean(0))\nh = h + 0.1 * self.a",
    "h = h + self.kept['h']\nself.kept['h'] = h.detach() * 0.5",
    "h = h + self.list[0]\nself.list[0] = h.detach().tanh()",
    "self.last = h\nh = h * 1.0",
    "if self.cache is None:\n    self.cache = torch.arange(6).float().cos()\nh = h * self.cache",
    "if self.first is None:\n    self.first = h.detach().clone()\nh = h + self.first",
    "self.n += 1\nh = h * 1.0",
    "self.n += 1\nh = h * 0.9**self.n",
    "COUNTS['calls'] += 1\nh = h + COUNTS['calls'] * 0.1",
    "h = h * random.random()",
    "h = h + np.random.rand()",
    "self.l{i}.weight.data.clamp_(-0.3, 0.3)",
    "with torch.no_grad():\n    self.l{i}.weight.mul_(0.99)",
    "self.l{i}.weight.data = F.normalize(self.l{i}.weight.data)",
    "with torch.no_grad():\n    self.frozen.mul_(0.9).add_(self.w, alpha=0.1)\nh = h + x @ self.frozen",
]

_REACH = [
    "h = h @ self.refs[0]",
    "h = h + x @ self.alias",
    "h = h + (x @ self.alias_t) * 0.1",
    "h = h + self.get(x)",
    "h.register_hook(lambda g: g * self.l{i}.weight.mean())",
    "h.register_hook(lambda g: g.clamp(-0.05, 0.05))",
    "h = checkpoint(self.block, h, use_reentrant={d} == 0)",
    "h = checkpoint(lambda t: self.drop(torch.tanh(self.l{i}(t))), h, use_reentrant=False)",
    "h = self.drop(h)",
    "h = h + torch.rand(6) * 0.1",
    "h = h + 0.1 * torch.bernoulli(torch.sigmoid(h.detach()))",
]

_CONDITIONS = [
    "h.mean() > 0.05",
    "h[0].sum() > h[1].sum()",
    "torch.rand(()) < 0.5",
    "random.random() < 0.6",
    "np.random.randint(3) == {d}",
    "h.detach().abs().max().item() > 0.8",
    "(x > 1.2).any()",
    "not (h.std().item() < 0.4)",
    "self.buf.sum() + self.steps > 1",
    "torch.isfinite(h).all() and x.sum() > 0",
    "0.1 < x.std() < 1",
    "min(x.mean().item(), 0.1) < 0.05",
]

_NEVER = "if h.abs().max() > 1e6:\n    h = torch.log(h - 1e7) / 0"
"""An if whose values are not finite, and that is not taken."""

_INIT = [
    "self.l1.weight = nn.Parameter(self.l0.weight.data)",
    "self.l1.weight = self.l0.weight",
    "self.l0.weight.register_hook(lambda g: g * 0.5)",
    "self.l1.weight.register_post_accumulate_grad_hook(clamp_gradient)",
    "self.l2.register_forward_hook(lambda m, i, o: o * 0.9)",
    "self.l2.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.7,))",
    "self.l0.register_forward_pre_hook(lambda m, i: (i[0] + 0.1,))",
    "self.register_buffer('shared', self.w.data)",
    "self.l2.weight.requires_grad_(False)",
    "torch.nn.utils.parametrizations.weight_norm(self.l2)",
]

_LOSSES = [
    "return model(batch['x']).square().mean()",
    "return model(batch['x']).square().mean() + 0.1 * sum(p.square().sum() for p in weights)",
    "y = model(batch['x'])\nwith torch.no_grad():\n    for t, p in zip(teacher, weights):\n"
    "        t.mul_(0.9).add_(p, alpha=0.1)\nreturn (y * teacher[0].mean()).square().mean()",
    "return F.mse_loss(model(batch['x']), batch['x'])",
    "y = model(batch['x'])\nseen.append(y.detach())\nreturn y.abs().mean()",
    "y = model(batch['x'])\nmoving.mul_(0.9).add_(y.detach().mean())\nreturn (y - moving).square().mean()",
    "y = model(batch['x'])\nfound = y.square().mean()\nif found > 1.05 * moving:\n    moving.copy_(found.detach())\n"
    "    return found * 0.5\nreturn found",
    "y = model(batch['x'])\nfound = y.square().mean()\nif found.item() > 0.3:\n    found = found.sqrt()\n"
    "if not torch.isfinite(found):\n    return found.detach() * 0 + 0 * weights[0].sum()\nreturn found",
]


@dataclass(frozen=True)
class Training:
    """A training script and what its task is made of."""

    source: str

    def task(self) -> Task:
        """A fresh task: nothing of it is shared with former ones."""
        torch.manual_seed(0)
        space: dict[str, Any] = {}
        exec(compile(self.source, "script.py", "exec"), space)
        model, loss, optimizer, options = space["make"]()
        torch.manual_seed(1)
        return Task(
            model=model,
            loss=loss,
            optimizer=optimizer,
            dataset={"x": torch.randn(12, 6)},
            batch_size=4,
            steps=3,
            interval=1,
            seed=5,
            **options,
        )


def random_training(seed: int) -> Training:
    """The script with this number."""
    rng = Random(seed)
    statements = [rng.choice(_PLAIN)]
    for _ in range(rng.randint(1, 5)):
        statements.append(_statement(rng))
    if rng.random() < 0.4:
        statements.insert(rng.randint(0, len(statements)), _branch(rng, 2))
    body = "\n".join(_filled(statement, rng) for statement in statements)
    init = rng.sample(_INIT, rng.choice([0, 0, 1, 2]))
    optimizer = rng.choice(
        [
            "torch.optim.SGD(weights_of(model), lr=0.1)",
            "torch.optim.SGD(weights_of(model), lr=0.05, momentum=0.9, weight_decay=0.01)",
            "torch.optim.AdamW(weights_of(model), lr=0.01, eps=1e-3)",
            "torch.optim.Adam(weights_of(model), lr=0.01, eps=1e-3, weight_decay=0.1)",
        ]
    )
    options = rng.choice(
        [
            *("{}", "{}", "{'micro_batches': 2}", "{'max_grad_norm': 0.1}", "{'schedule': lambda s: 0.5**s}"),
            "{'schedule': torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}",
        ]
    )
    hook = rng.choice([""] * 12 + ["optimizer.register_step_pre_hook(lambda o, a, k: clamp_all(o))"])
    source = f"""{_HEAD}
def clamp_gradient(parameter):
    parameter.grad.clamp_(-0.01, 0.01)


def clamp_all(optimizer):
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.grad is not None:
            parameter.grad.clamp_(-0.01, 0.01)


def weights_of(model):
    return [p for p in model.parameters() if p.requires_grad]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l0, self.l1, self.l2 = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.w = nn.Parameter(torch.randn(6, 6) * 0.3)
        self.gain = nn.Parameter(torch.ones(6))
        self.frozen = nn.Parameter(torch.randn(6, 6) * 0.3, requires_grad=False)
        self.drop = nn.Dropout(0.4)
        self.register_buffer("buf", torch.zeros(6))
        self.register_buffer("steps", torch.tensor(0))
        self.a, self.n, self.cache, self.first, self.last = torch.zeros(6), 0, None, None, None
        self.kept, self.list = {{"h": torch.zeros(4 // PARTS, 6)}}, [torch.zeros(4 // PARTS, 6)]
{_indented(init, 8)}
        self.refs, self.alias, self.alias_t = [self.w], self.w.data, self.w.data.t()
        w = self.w
        self.get = lambda x: x @ w

    def block(self, h):
        return torch.sigmoid(self.l0(h)) * self.gain

    def forward(self, x):
        h = self.l0(x)
{_indented([body], 8)}
        return h


def make():
    model = Net()
    weights = list(model.parameters())[:2]
    teacher = [p.detach().clone() for p in weights]
    seen, moving = [], torch.zeros(())

    def loss(model, batch):
{_indented([rng.choice(_LOSSES)], 8)}

    optimizer = {optimizer}
    {hook}
    return model, loss, optimizer, {options}
"""
    return Training(source.replace("PARTS", "2" if "micro_batches" in options else "1"))


def _statement(rng: Random) -> str:
    return rng.choice(rng.choice([_PLAIN, _WRITES, _WRITES, _STATE, _REACH]))


def _branch(rng: Random, depth: int) -> str:
    """An if by values, in which there may be others."""
    if rng.random() < 0.1:
        return _NEVER
    condition = rng.choice(_CONDITIONS)
    lines = [f"if {condition}:", _indented([_inside(rng, depth)], 4)]
    if rng.random() < 0.5:
        lines += ["else:", _indented([_inside(rng, depth)], 4)]
    if rng.random() < 0.2:
        lines += [f"if {condition}:", _indented([_inside(rng, 0)], 4)]
    return "\n".join(lines)


def _inside(rng: Random, depth: int) -> str:
    statements = [_statement(rng) for _ in range(rng.randint(1, 2))]
    if depth and rng.random() < 0.4:
        statements.append(_branch(rng, depth - 1))
    return "\n".join(statements)


def _filled(statement: str, rng: Random) -> str:
    numbers = {
        "i": rng.randrange(3),
        "d": rng.randrange(2),
        "d1": rng.randrange(2),
        "k": rng.randrange(3),
        "n": rng.randint(1, 3),
    }
    for name, number in numbers.items():
        statement = statement.replace("{" + name + "}", str(number))
    return statement


def _indented(statements: list[str], depth: int) -> str:
    lines = [line for statement in statements for line in statement.splitlines()]
    return "\n".join(" " * depth + line for line in lines)
