"""Can PyTorch's own joint export stand in for our capture? Every script of tests/scripts that we capture is given to
`torch._functorch.aot_autograd.aot_export_module` (forward and backward in one graph), and what it gives is run beside
the script for some steps.

    .venv/bin/python scripts/try_joint_export.py [--steps 3] [--only NAME]

Prints a line for each script and a table of outcomes:

right        the graph has the script's losses and gradients in every step
wrong        it has others in some step, without a word
refused      PyTorch raises
no use       the task has several optimizers, or micro-batches, which a graph of one loss does not show

The optimizer stays PyTorch's own here: the graph has none, and a job would have to trace it besides.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from roundlog import Task
from roundlog.randomness import batch_rows
from torch import nn
from torch._functorch.aot_autograd import aot_export_module

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

TOLERANCE = 1e-5
"""Relative; of gradients, to the largest element."""


class Step(nn.Module):
    """A model with its loss, as a module whose output is the loss."""

    def __init__(self, task: Task, names: list[str]) -> None:
        super().__init__()
        self.model, self._loss, self._names = task.model, task.loss, names

    def forward(self, *fields: torch.Tensor) -> tuple[torch.Tensor]:
        return (self._loss(self.model, dict(zip(self._names, fields, strict=True))),)  # type: ignore[operator]


def batch_of(task: Task, step: int) -> dict[str, torch.Tensor]:
    return task.batch(torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows)))


def differs(found: torch.Tensor, expected: torch.Tensor) -> bool:
    largest = expected.detach().abs().max().item() if expected.numel() else 0.0
    return not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * largest, equal_nan=True)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def outcome(task: Task, steps: int) -> tuple[str, str]:
    """(outcome, the reason in some words)."""
    if isinstance(task.optimizer, (list, tuple, dict)) or task.micro_batches > 1:
        return "no use", ""
    batch = batch_of(task, 0)
    module = Step(task, list(batch))
    try:
        graph, signature = aot_export_module(module, tuple(batch.values()), trace_joint=True, output_loss_index=0)
    except Exception as error:
        return "refused", f"{type(error).__name__}: {str(error).strip().splitlines()[0][:110]}" if str(error) else ""
    backward = signature.backward_signature
    assert backward is not None
    # `backward.loss_output` names the first output, which is a buffer's new value where there are any (torch 2.13).
    loss_output = signature.user_outputs[0]
    (returned,) = graph.graph.output_node().args
    for step in range(steps):
        batch = batch_of(task, step)
        tensors: dict[str, torch.Tensor] = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        state = [tensors[name].detach().clone() for name in (*signature.parameters, *signature.buffers)]
        seed_all(step)
        try:
            results = dict(zip(map(str, returned), graph(*state, *batch.values()), strict=True))
        except Exception as error:
            return "wrong", f"step {step}: {type(error).__name__}: {str(error).strip().splitlines()[0][:90]}"
        seed_all(step)
        task.optimizer.zero_grad()
        (loss,) = module(*batch.values())
        loss.backward()
        if differs(results[loss_output], loss):
            return "wrong", f"step {step}: the loss is {loss.item():g}, in the graph {results[loss_output].item():g}"
        gradients: dict[str, torch.Tensor] = {}
        first_names: dict[int, str] = {}
        for place, name in backward.gradients_to_parameters.items():
            first = first_names.setdefault(id(tensors[name]), name)  # a tied tensor's gradient comes in parts
            gradients[first] = gradients[first] + results[place] if first in gradients else results[place]
        for name, gradient in gradients.items():
            expected = tensors[name].grad
            if expected is not None and differs(gradient, expected):
                return "wrong", f"step {step}: the gradient of {name}"
        task.optimizer.step()
    return "right", ""


def main() -> None:
    from tests.scripts.script_corpus import corpus

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", metavar="NAME")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for name, script in corpus().items():
        if script.outcome.sentence or options.only not in (None, name):
            continue
        try:
            found, why = outcome(script.task(), options.steps)
        except ModuleNotFoundError as missing:
            found, why = "not tried", f"needs {missing.name}"
        counts[found] += 1
        print(f"{name}: {found} {why}", flush=True)
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))


if __name__ == "__main__":
    main()
