"""Statements of random training scripts, by what is unusual in them. Braces stand for numbers that are drawn."""

HEAD = """
import functools
import random
import numpy as np
import torch
from torch import nn
from torch.distributions import Beta, Dirichlet, Gamma
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class Backend:
    scale = 1.5


@functools.cache
def backend(kind):
    return Backend()


class Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return x @ layer.weight.t()

    @staticmethod
    def backward(ctx, g):
        return g @ ctx.layer.weight, None

"""

PLAIN = [
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

WRITES = [
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

STATE = [
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
    "self.n += 1\nh = h * 0.9**self.n",
    "h = h * random.random()",
    "h = h + np.random.rand()",
    "self.l{i}.weight.data.clamp_(-0.3, 0.3)",
    "with torch.no_grad():\n    self.l{i}.weight.mul_(0.99)",
    "self.l{i}.weight.data = F.normalize(self.l{i}.weight.data)",
    "with torch.no_grad():\n    self.frozen.mul_(0.9).add_(self.w, alpha=0.1)\nh = h + x @ self.frozen",
]

REACH = [
    "h = h @ self.refs[0]",
    "h = h + self.get(x)",
    "h.register_hook(lambda g: g * self.l{i}.weight.mean())",
    "h.register_hook(lambda g: g.clamp(-0.05, 0.05))",
    "h = checkpoint(self.block, h, use_reentrant={d} == 0)",
    "h = checkpoint(lambda t: self.drop(torch.tanh(self.l{i}(t))), h, use_reentrant=False)",
    "h = self.drop(h)",
    "h = h + torch.rand(6) * 0.1",
    "h = h + 0.1 * torch.bernoulli(torch.sigmoid(h.detach()))",
]

CONDITIONS = [
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

NEVER = "if h.abs().max() > 1e6:\n    h = torch.log(h - 1e7) / 0"
"""An if whose values are not finite, and that is not taken."""

INIT = [
    "self.l1.weight = self.l0.weight",
    "self.l0.weight.register_hook(lambda g: g * 0.5)",
    "self.l2.register_forward_hook(lambda m, i, o: o * 0.9)",
    "self.l2.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.7,))",
    "self.l0.register_forward_pre_hook(lambda m, i: (i[0] + 0.1,))",
    "self.register_buffer('shared', self.w.data)",
    "self.l2.weight.requires_grad_(False)",
    "torch.nn.utils.parametrizations.weight_norm(self.l2)",
]

LOSSES = [
    "return model(batch['x']).square().mean()",
    "return model(batch['x']).square().mean() + 0.1 * sum(p.square().sum() for p in weights)",
    "y = model(batch['x'])\nwith torch.no_grad():\n    for t, p in zip(teacher, weights):\n"
    "        t.mul_(0.9).add_(p, alpha=0.1)\nreturn (y * teacher[0].mean()).square().mean()",
    "return F.mse_loss(model(batch['x']), batch['x'])",
    "y = model(batch['x'])\nmoving.mul_(0.9).add_(y.detach().mean())\nreturn (y - moving).square().mean()",
    "y = model(batch['x'])\nfound = y.square().mean()\nif found.item() > 0.3:\n    found = found.sqrt()\n"
    "if not torch.isfinite(found):\n    return found.detach() * 0 + 0 * weights[0].sum()\nreturn found",
]

OUT = [
    "o = torch.zeros_like(h)\nwith torch.no_grad():\n    torch.mul(h, 2.0, out=o)\nh = h + o",
    "o = torch.zeros(2, 6)\nwith torch.no_grad():\n    torch.sum(h, dim=0, out=o[{d}])\nh = h + o.sum(0)",
    "o = torch.zeros_like(h).t()\nwith torch.no_grad():\n    torch.tanh(h.t(), out=o)\nh = h + o.t()",
    "o = torch.zeros(6)\nwith torch.no_grad():\n    F.normalize(h[{d}], dim=0, out=o)\nh = h * o",
    "o = torch.zeros_like(h)\nwith torch.no_grad():\n    torch.mm(h, self.w, out=o)\n"
    "    torch.cumsum(o, {d}, out=o)\nh = h + 0.1 * o",
    "v, p = torch.zeros(6), torch.zeros(6, dtype=torch.int64)\nwith torch.no_grad():\n"
    "    torch.max(h, 0, out=(v, p))\nh = h + v + 0.1 * p",
    "with torch.no_grad():\n    torch.add(self.buf, h.mean(0), alpha=0.1, out=self.buf)\nh = h + self.buf",
    "o = torch.zeros(0)\nwith torch.no_grad():\n    torch.mul(h, 0.5, out=o)\nh = h + o",
]

LAZY = [
    "h = h + torch._efficientzerotensor((6,))",
    "h = h * torch.sgn(self.w[{d}]) + self.w[{d}]",
    "h = h + torch.complex(h, x).conj().imag",
    "z = torch.complex(h, x).conj()\nh = h + 0.5 * (z * z.imag).real",
    "z = torch.view_as_complex(h.reshape(-1, 3, 2)).conj()\n"
    "h = h + torch.view_as_real(z.resolve_conj()).reshape(h.shape)",
]

SIGNALS = [
    "z = torch.polar(torch.sigmoid(h), x)\nh = h + torch.view_as_real(z[{d}:, :3]).mean()",
    "z = torch.view_as_complex(h.reshape(-1, 3, 2)) * torch.polar(torch.ones(3), torch.arange(3.0))\n"
    "h = h + 0.1 * torch.view_as_real(z).flatten(1)",
]

QUANTIZED = [
    "h = h + torch.fake_quantize_per_tensor_affine(h, 0.05, {k}, -8, 7)",
]

KNOWN = [
    "h = h + h[:, self.mask].sum(1, keepdim=True)",
    "h = h + torch.zeros(8, 6).index_add(0, self.edges[1], h.repeat(4, 1)[self.edges[0]])[: h.shape[0]]",
    "h = h[:, self.order.long()]",
    "h = h * self.wide.float()",
    "h = h * self.level",
    "h = h * torch.view_as_real(self.turn).sum(-1)",
    "if self.flag:\n    h = torch.tanh(h)",
    "h = h + h[:, : int(self.mask.sum())].mean(1, keepdim=True)",
    "self.mask.logical_not_()\nh = torch.where(self.mask, h, 0.5 * h)",
    "self.steps += self.edges[0, 1]\nh = h / (1 + self.steps)",
]

NEEDED = {
    "self.mask": "self.register_buffer('mask', torch.arange(6) % 2 == 0)",
    "self.edges": "self.register_buffer('edges', torch.tensor([[0, 1, 3, 2], [1, 0, 2, 5]]))",
    "self.order": "self.register_buffer('order', torch.tensor([3, 1, 0, 5, 2, 4], dtype=torch.int32))",
    "self.wide": "self.register_buffer('wide', torch.linspace(0.5, 1.0, 6, dtype=torch.float64))",
    "self.level": "self.register_buffer('level', torch.tensor(0.7, dtype=torch.float64))",
    "self.turn": "self.register_buffer('turn', torch.polar(torch.ones(6), torch.arange(6.0)))",
    "self.flag": "self.register_buffer('flag', torch.tensor(True))",
}
"""What a statement names -> where it comes from."""

TYPES = [
    "h = h * backend(type(h)).scale",
    "import einops\nh = einops.rearrange(h, '(a b) (c d) -> (b a) (d c)', a=2, c=2)",
    "import einops\nh = h + einops.reduce(h, 'b f -> f', 'mean')",
]

DRAWS = [
    "h = h * Beta(0.4, 0.4).sample()",
    "share = Beta(2.0, 1.5).sample((h.shape[0], 1))\nh = share * h + (1 - share) * h[torch.randperm(h.shape[0])]",
    "h = h * Dirichlet(torch.ones(6)).sample()",
    "h = h + 0.1 * Gamma(0.5 + torch.arange(6.0), 2.0).sample()",
    "h = h + 0.1 * torch.randn(6)",
    "h = torch.lerp(h, h.flip(0), torch.empty(1).uniform_(0.2, 0.8))",
    "h = h + h[torch.multinomial(torch.ones(h.shape[0]), 1)]",
    "h = h + 0.1 * torch.randint(0, 5, (6,))",
]

MADE = [
    "self.w.data.mul_(torch.rand(()))",
    "nn.init.trunc_normal_(self.l0.weight, std=0.4)",
    "self.a = torch.linspace(0, 1, 6).exp() * torch.randn(())",
]
"""Statements of `__init__` that draw and compute, as the task may have it portable."""

NORMED = [
    "nn.utils.spectral_norm(self.l{i})",
    "nn.utils.parametrizations.spectral_norm(self.l{i}, n_power_iterations=2)",
]
TWICE = ["h = self.l{i}(torch.tanh(self.l{i}(h)))"]

JUDGING = [
    "return F.softplus(-model.judge(batch['x'])).mean() + F.softplus(model.judge(model(batch['x']).detach())).mean()",
    "y = model(batch['x']).detach().requires_grad_()\n"
    "(g,) = torch.autograd.grad(model.judge(y).sum(), y, create_graph=True)\n"
    "return model.judge(y).mean() - model.judge(batch['x']).mean() + g.square().mean()",
]
JUDGED = [
    "return F.softplus(-model.judge(model(batch['x']))).mean()",
    "return model(batch['x']).square().mean() - 0.1 * model.judge(model(batch['x'])).mean()",
]
"""Losses of two networks that are trained in turn."""
