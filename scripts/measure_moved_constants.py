"""Share of wrong constants that the comparison of a captured step with PyTorch's notices, where numbers are BF16.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/measure_moved_constants.py [--by 0.01] [--only WORD]

Small tasks of many kinds are captured, with parameters in BF16 or under an autocast. In the program of each, one number
at a time is made larger by a relative 0.01: a constant of numbers, all of its elements, or a column of the schedule, at
all steps. A program that capture would have made so, by a wrong rule, has to be refused by `confirm_same`. Zeros and
infinities are left as they are. Printed is a line for each number, and the count at the end.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from roundlog.capture import Captured, CaptureError, Task, capture
from roundlog.training.sameness import confirm_same
from torch import Tensor, nn, optim
from torch.nn import functional as F


class Lion(optim.Optimizer):
    """Signs of means of gradients (Chen et al. 2023)."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * 0.1).add_((mean * 0.9 + p.grad * 0.1).sign(), alpha=-group["lr"])
                mean.mul_(0.99).add_(p.grad, alpha=0.01)


def bounded(x: Tensor) -> Tensor:
    return torch.where(x > 1.7, 1.7 + 0.1 * x, F.leaky_relu(x.clamp(-2.5, 4.0), 0.03))


def shares(x: Tensor) -> Tensor:
    return x / (x.abs().sum(-1, keepdim=True) + 1e-6) + x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def attention(x: Tensor) -> Tensor:
    q, k, v = x.unflatten(-1, (2, 3, 4)).unbind(-2)
    return F.scaled_dot_product_attention(q, k, v, scale=0.37).repeat(1, 1, 3).flatten(1)


def smooth(y: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(y, target, label_smoothing=0.1) + F.smooth_l1_loss(y[:, 0], target.float(), beta=0.7)


def task(layer: Any, make: Any, short: bool = True, loss: Any = F.cross_entropy, **more: Any) -> Task:
    """short: whether parameters are BF16; otherwise, an autocast is active."""
    torch.manual_seed(0)
    own, function = (layer, nn.Identity()) if isinstance(layer, nn.Module) else (nn.Identity(), layer)
    model = nn.Sequential(nn.Linear(8, 24), own, nn.Linear(24, 3)).to(torch.bfloat16 if short else torch.float32)

    def of_batch(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not short):
            y = model[2](function(model[1](model[0](batch["x"].to(model[0].weight.dtype)))))
            found: Tensor = loss(y.float(), batch["y"])
        return found

    given = {"dataset": {"x": torch.randn(20, 8), "y": torch.arange(20) % 3}, **more}
    optimizer = make(model.parameters())
    return Task(model=model, loss=of_batch, optimizer=optimizer, batch_size=5, steps=4, interval=2, seed=1, **given)


AMSGRAD = partial(optim.Adam, lr=0.003, weight_decay=0.05, amsgrad=True)
TASKS: dict[str, Callable[[], Task]] = {
    "SGD, nesterov": lambda: task(nn.GELU("tanh"), lambda p: optim.SGD(p, 0.03, 0.9, 0.0, 0.01, True)),
    "SGD, scheduled": lambda: task(
        nn.Softplus(0.5, 3.0), lambda p: optim.SGD(p, 0.1, 0.8, 0.3), schedule=lambda n: 0.9**n
    ),
    "AdamW": lambda: task(nn.LayerNorm(24), partial(optim.AdamW, lr=0.01)),
    "Adam, clipped": lambda: task(nn.GroupNorm(4, 24, eps=1e-4), AMSGRAD, max_grad_norm=0.3),
    "Lion": lambda: task(nn.ELU(0.6), lambda p: Lion(p, {"lr": 0.01})),
    "bounds": lambda: task(bounded, partial(optim.SGD, lr=0.05)),
    "sums": lambda: task(shares, partial(optim.AdamW, lr=0.01, weight_decay=0.0)),
    "SGD, decayed": lambda: task(nn.SiLU(), partial(optim.SGD, lr=0.05, weight_decay=0.02)),
    "batch norm": lambda: task(nn.BatchNorm1d(24), partial(optim.SGD, lr=0.1, momentum=0.9)),
    "autocast, dropout": lambda: task(nn.Sequential(nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(24)), optim.AdamW, False),
    "autocast, bounds": lambda: task(bounded, partial(optim.RMSprop, lr=0.01, momentum=0.5), False),
    "autocast, sums": lambda: task(shares, partial(optim.Adagrad, lr=0.02), False, smooth),
    "autocast, attention": lambda: task(attention, partial(optim.Adam, lr=0.003), False, max_grad_norm=0.5),
    "autocast, Lion": lambda: task(nn.Hardswish(), lambda p: Lion(p, {"lr": 0.003}), False, smooth),
}


def moved(captured: Captured, by: float) -> Iterator[tuple[str, Captured]]:
    """What is moved, and the captured task with it moved."""
    program = captured.program
    for index, node in enumerate(program.nodes):
        if node.op != "constant" or not node.type.dtype.is_float:
            continue
        words = torch.tensor(node.attributes["bits"]).to(getattr(torch, f"uint{8 * node.type.dtype.itemsize}"))
        numbers = words.view(node.type.dtype.torch_dtype)
        larger = torch.where(numbers.isfinite(), numbers * (1 + by), numbers).to(numbers.dtype).view(words.dtype)
        if not torch.equal(larger, words):
            changed = replace(node, attributes={**node.attributes, "bits": tuple(larger.tolist())})
            nodes = (*program.nodes[:index], changed, *program.nodes[index + 1 :])
            lines = ", ".join(sorted({one.source.rpartition("/")[2] for one in nodes if index in one.inputs}))
            yield f"{float(numbers[0]):.6g} of {lines}", replace(captured, program=replace(program, nodes=nodes))
    for slot in sorted({int(node.attributes["slot"]) for node in program.nodes if node.op == "schedule"}):
        schedule = captured.schedule.clone()
        schedule[:, slot] *= 1 + by
        yield f"column {program.schedule_names[slot]}", replace(captured, schedule=schedule)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", type=float, default=0.01, help="relative distance")
    parser.add_argument("--only", default="", help="tasks whose name has this word")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    noticed = whole = 0
    for name in (name for name in TASKS if options.only in name):
        captured = capture(TASKS[name])
        confirm_same(captured)
        for what, other in moved(captured, options.by):
            try:
                confirm_same(other)
                said = "NOT NOTICED"
            except CaptureError as error:
                said, noticed = str(error)[:90], noticed + 1
            whole += 1
            print(f"{name}: {what}: {said}", flush=True)
    print(f"{noticed} of {whole} noticed")


if __name__ == "__main__":
    main()
