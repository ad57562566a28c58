"""Random training scripts that choose rows and elements by masks: losses over what a mask marks, experts that take
their rows, writes by masks, pairs. The generator knows nothing of capture; what it writes is ordinary PyTorch.

Masks may mark nothing or everything, and what they do not mark may hold infinities and NaN."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from roundlog.capture import Task

_ROWS = [
    "x[:, {k}] > {c}",
    "x[:, {k}] > {c}",
    "y >= 0",
    "y != -100",
    "(y >= 0) & (x[:, {k}] > {c})",
    "h[:, {k}].detach() > {c}",
    "~(t[:, {k}] > {c})",
]
_LIMITS = ["-99.0", "-0.7", "0.0", "0.3", "0.9", "99.0"]

_UNMARKED = [
    "h = torch.where(m[:, None], h, float('nan'))",
    "h = torch.where(m[:, None], h, float('inf'))",
    "t = torch.where(m[:, None], t, float('nan'))",
    "y = torch.where(m, y, -77)",
    "h = h * 1.0",
    "h = torch.tanh(h)",
]

_REDUCED = [
    "{v}.mean()",
    "{v}.sum()",
    "{v}.square().sum() / {v}.shape[0]",
    "{v}.sum() / {v}.numel()",
    "{v}.mean(0).square().sum()",
    "{v}.sum(-1).square().mean()",
    "{v}.var()",
    "{v}.std(unbiased=False)",
    "{v}.var(0).sum()",
    "{v}.norm()",
    "{v}.amax(0).sum()",
    "{v}.max()",
    "{v}.amin()",
    "{v}.logsumexp(0).sum()",
    "{v}.exp().sum().log()",
    "{v}.abs().mean() + {v}.mean(-1).mean()",
    "F.normalize({v}, dim=-1).sum()",
    "({v} @ {v}.T).tanh().mean()",
    "({v} @ {v}.T).softmax(-1).square().sum()",
    "{v}.flatten().square().mean()",
    "{v}.view(-1, 2, 3).amax(-1).mean()",
    "{v}.reshape(-1, 3)[:, 0].sum()",
]

_VALUES = [
    "h[m]",
    "h[m]",
    "self.l1(h[m])",
    "torch.tanh(self.l1(h)[m]) * t[m]",
    "F.layer_norm(h[m], (6,), self.gain)",
    "h[m.nonzero().squeeze(1)]",
    "h[torch.where(m)[0]] + t[torch.where(m)[0]]",
    "torch.cat([h[m], t[n] * 0.5])",
    "h[m][n[m]]",
    "(h[m] - h[m].mean(0))",
    "h[m].masked_fill(t[m] > 0, 0.5)",
    "F.gelu(h[m]).flip(1)",
    "self.l1(F.embedding(y.clamp(0, 4)[m], self.table))",
    "torch.where(t[m] > 0, h[m], 0.1 * h[m])",
]

_LOSSES = [
    "F.cross_entropy(self.head(h)[m], y.clamp(min=0)[m], reduction={r})",
    "F.cross_entropy(self.head(h[m]), y[m], reduction={r})",
    "F.cross_entropy(self.head(h)[y >= 0], y[y >= 0], label_smoothing=0.1)",
    "F.nll_loss(self.head(h).log_softmax(-1)[y >= 0], y[y >= 0], reduction={r})",
    "-self.head(h[y >= 0]).log_softmax(-1).gather(1, y[y >= 0, None]).mean()",
    "F.mse_loss(h[m], t[m], reduction={r})",
    "F.l1_loss(h[m], t[m], reduction={r})",
    "F.smooth_l1_loss(h[e], t[e], reduction={r})",
    "F.binary_cross_entropy_with_logits(h[e], (t[e] > 0.5).float(), reduction={r})",
    "F.binary_cross_entropy(h[m].sigmoid(), (t[m] > 0).float())",
    "F.kl_div(h[m].log_softmax(-1), t[m].softmax(-1), reduction='batchmean')",
    "F.l1_loss(h[m], t[m], reduction='none').sum() / m.sum()",
    "F.smooth_l1_loss(h[m], t[m], reduction='sum') / m.sum().clamp(min=1)",
    "h[e].mean()",
    "h[e].square().sum()",
    "torch.masked_select(h, e).sum()",
    "h.view(-1, 2, 3)[t.view(-1, 2, 3)[..., 1] > {c}].square().mean()",
    "h.view(-1, 2, 3)[t.view(-1, 2, 3) > {c}].sum()",
    "h[:, x[0] > {c}].square().sum()",
    "(self.head(h[y >= 0]).argmax(-1) == y[y >= 0]).float().mean() * h.mean()",
    "sum(h[y == c].sum(0).square().mean() for c in range(3))",
]

_STATEMENTS = [
    "out = torch.zeros_like(h)\nout[m] = self.l1(h[m])\nloss = loss + out.square().mean()",
    "out = h * 0.5\nout[m] = h[m] * t[m]\nloss = loss + out.square().mean()",
    "out = torch.zeros_like(h)\nindex = m.nonzero().squeeze(-1)\nout[index] = self.l1(h[index])\n"
    "loss = loss + out.mean()",
    "out = h.clone()\nout[m] = self.gain\nout[n] += 1.0\nloss = loss + out.square().mean()",
    "out = torch.zeros_like(h)\nweight, chosen = self.head(h).softmax(-1).topk(2, dim=-1)\n"
    "for number in range(2):\n    row, place = torch.where(chosen == number)\n"
    "    out.index_add_(0, row, self.l1(h[row]) * weight[row, place, None])\nloss = loss + out.square().mean()",
    "share, best = self.head(h).softmax(-1).max(-1)\nout = torch.zeros_like(h)\nfor number in range(3):\n"
    "    own = best == number\n    out[own] = torch.tanh(self.l1(h[own])) * share[own, None]\n"
    "loss = loss + out.square().mean()",
    "apart = (h[:, None] - h[None]).square().sum(-1)\nsame = y[:, None] == y[None]\n"
    "loss = loss + 0.1 * apart[same].mean() + F.relu(1.0 - apart[~same]).sum()",
    "out = h[m]\nout = out * 2.0\nout[:, 0] = 0.5\nout[:, 1:3] += 1.0\nloss = loss + out.square().sum()",
    "out = torch.zeros(len(h), 6).masked_scatter(e, h[e] * 2.0)\nloss = loss + out.square().mean()",
    "first, second = h[m].chunk(2, dim=1)\nloss = loss + (first * second).sum()",
    "out = torch.zeros(5, 6).index_add(0, y.clamp(min=0)[m], h[m])\nloss = loss + out.square().mean()",
    "rows = h[m]\nloss = loss + (rows[:, 0] * torch.arange(rows.shape[0])).sum()",
]


@dataclass(frozen=True)
class ChoosingTraining:
    """A script, and the task that it makes."""

    source: str
    options: dict[str, Any]

    def task(self) -> Task:
        """A fresh task: nothing of it is shared with former ones."""
        torch.manual_seed(0)
        space: dict[str, Any] = {}
        exec(compile(self.source, "script.py", "exec"), space)
        model = space["Net"]()
        torch.manual_seed(1)
        labels = torch.where(torch.rand(24) < 0.3, -100, torch.randint(5, (24,)))
        return Task(
            model=model,
            loss=lambda m, batch: m(batch["x"], batch["y"], batch["t"]),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
            dataset={"x": torch.randn(24, 6), "y": labels, "t": torch.randn(24, 6)},
            batch_size=6,
            steps=3,
            interval=1,
            seed=5,
            **self.options,
        )


def choosing_training(seed: int) -> ChoosingTraining:
    """The script with this number."""
    rng = Random(seed)
    lines = [f"m = {_filled(rng.choice(_ROWS), rng)}", f"n = {_filled(rng.choice(_ROWS), rng)}"]
    lines.append(_filled("e = t > {c}", rng))
    lines.append(rng.choice(_UNMARKED))
    lines.append("loss = 0.01 * self.l0(x).square().mean()")
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(3)
        if kind == 0:
            value = rng.choice(_VALUES)
            lines.append(f"loss = loss + {rng.choice(_REDUCED).replace('{v}', f'({value})')}")
        elif kind == 1:
            lines.append(f"loss = loss + {_filled(rng.choice(_LOSSES), rng)}")
        else:
            lines.append(rng.choice(_STATEMENTS))
    body = "\n".join(" " * 8 + line for part in lines for line in part.splitlines())
    source = f"""
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l0, self.l1, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        self.gain, self.table = nn.Parameter(torch.rand(6) + 0.5), nn.Parameter(torch.randn(5, 6) * 0.3)

    def forward(self, x, y, t):
        h = torch.tanh(self.l0(x))
{body}
        return loss
"""
    options = rng.choice([{}, {}, {"micro_batches": 2}])
    return ChoosingTraining(source, options)


def _filled(text: str, rng: Random) -> str:
    text = text.replace("{k}", str(rng.randrange(6))).replace("{c}", rng.choice(_LIMITS))
    return text.replace("{r}", rng.choice(["'mean'", "'sum'"]))
