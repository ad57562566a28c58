"""How many of the scripts of tests/scripts do PyTorch's own tracers follow, and how many our capture?

    .venv/bin/python scripts/compare_tracers.py [--steps 3] [--only NAME]

Prints a line for each script and tracer, and a table of outcomes:

right        what the tracer gives has the script's losses and gradients in every step
wrong        it has others in some step, without a word
refused      an error is raised
no use       the task has several optimizers, or micro-batches, which the one graph of joint export does not show

Dynamo: `torch.compile(fullgraph=True)` with AOT autograd, eager kernels and the flags below; a second graph counts as
refused, since a job has one program for all steps. Joint export: `torch._functorch.aot_autograd.aot_export_module`
(forward and backward in one graph). Optimizers stay PyTorch's own with both. Capture: `Job.from_task`, which compares
steps with the user's own, and refuses where they differ.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from roundlog import Job, Task
from roundlog.capture import CaptureError
from roundlog.capture.real_steps.eager_steps import EagerTraining, batch_of
from torch import nn
from torch._functorch.aot_autograd import aot_export_module

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

TOLERANCE = 1e-5
"""Relative; of gradients and parameters, to the largest element."""

FLAGS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True, "error_on_recompile": True}
"""Settings of `torch._dynamo.config`."""

Outcome = tuple[str, str]
"""(outcome, the reason in some words)"""


class Step(nn.Module):
    """A model with its loss, as a module whose output is the loss."""

    def __init__(self, task: Task, names: list[str]) -> None:
        super().__init__()
        self.model, self._loss, self._names = task.model, task.loss, names

    def forward(self, *fields: torch.Tensor) -> tuple[torch.Tensor]:
        return (self._loss(self.model, dict(zip(self._names, fields, strict=True))),)  # type: ignore[operator]


def differs(found: torch.Tensor, expected: torch.Tensor) -> bool:
    found, expected = (x.to_dense() if x.layout != torch.strided else x for x in (found, expected))
    largest = expected.detach().abs().max().item() if expected.numel() else 0.0
    return not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * largest, equal_nan=True)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def by_dynamo(make: Callable[[], Task], steps: int) -> Outcome:
    torch._dynamo.reset()
    own, traced = make(), make()

    def compiled(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=False)  # type: ignore[no-any-return]

    losses = traced.loss
    if isinstance(losses, dict):
        losses = {name: compiled(loss) for name, loss in losses.items()}
    else:
        losses = [compiled(loss) for loss in losses] if isinstance(losses, (list, tuple)) else compiled(losses)  # type: ignore[arg-type]
    trainings = [EagerTraining(own), EagerTraining(replace(traced, loss=losses))]
    for step in range(1, steps + 1):  # in step 0 EagerTraining looks at all operators, which Dynamo does not follow
        found = []
        for training in trainings:
            seed_all(step)
            try:
                with torch._dynamo.config.patch(FLAGS):
                    found.append(training.step(step, batch_of(own, step)))
            except Exception as error:
                return "refused", f"step {step}: {_told(error)}"
        if differs(torch.tensor(found[1]), torch.tensor(found[0])):
            return "wrong", f"step {step}: the loss is {found[0]:g}, in the graph {found[1]:g}"
        for (name, one), other in zip(own.model.named_parameters(), traced.model.parameters(), strict=True):
            if differs(other, one):
                return "wrong", f"step {step}: the parameter {name}"
    return "right", ""


def by_joint_export(make: Callable[[], Task], steps: int) -> Outcome:
    task = make()
    if isinstance(task.optimizer, (list, tuple, dict)) or task.micro_batches > 1:
        return "no use", ""
    batch = batch_of(task, 0)
    module = Step(task, list(batch))
    try:
        graph, signature = aot_export_module(module, tuple(batch.values()), trace_joint=True, output_loss_index=0)
    except Exception as error:
        return "refused", _told(error)
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
            return "wrong", f"step {step}: {_told(error)}"
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


def by_capture(make: Callable[[], Task], steps: int) -> Outcome:
    try:
        Job.from_task(make)
    except CaptureError as error:
        return "refused", str(error)[:110]
    return "right", ""


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:110]}"


TRACERS = {"Dynamo": by_dynamo, "joint export": by_joint_export, "capture": by_capture}


def tried(tracer: Callable[[Callable[[], Task], int], Outcome], make: Callable[[], Task], steps: int) -> Outcome:
    autocast = torch.is_autocast_enabled("cpu")
    try:
        with torch.inference_mode(False), torch.enable_grad():  # whatever mode a tracer that failed has left
            return tracer(make, steps)
    except ModuleNotFoundError as missing:
        return "not tried", f"needs {missing.name}"
    except Exception as error:  # of the script's own steps, which PyTorch cannot take
        return "refused", _told(error)
    finally:
        torch.set_autocast_enabled("cpu", autocast)  # where a script leaves it on


def main() -> None:
    from tests.scripts.script_corpus import corpus

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", metavar="NAME")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: dict[str, Counter[str]] = {name: Counter() for name in TRACERS}
    for name, script in corpus().items():
        if options.only in (None, name):
            for tracer, function in TRACERS.items():
                found, why = tried(function, functools.partial(script.task), options.steps)
                counts[tracer][found] += 1
                print(f"{name}, {tracer}: {found} {why}", flush=True)
    for tracer, outcomes in counts.items():
        print(f"{tracer}: {', '.join(f'{count} {what}' for what, count in outcomes.most_common())}")


if __name__ == "__main__":
    main()
