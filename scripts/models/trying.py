"""The trial of one kind in a process of its own: built, trained by plain PyTorch, captured, and executed."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from roundlog.capture import CaptureError, Task
from roundlog.examples.baseline import PlainTraining
from roundlog.randomness import batch_rows
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.trainer import Trainer
from torch import nn

from models.inputs import BATCH, Inputs, candidates, learn, loss_of
from models.kinds import Kind
from models.settings import SETTINGS
from models.shrinking import SCALES, config_class, shrunken

STEPS = 2
MOST_PARAMETERS = 3_000_000


class NotTried(Exception):
    """A kind that cannot be tried here: the message says why."""


def attempt(
    kind: Kind, directory: Path, told: Callable[[Mapping[str, Any]], None], autocast: bool = False
) -> dict[str, Any]:
    """A row of the table. told: what is known so far, should the process die; the job is left in `directory`.
    autocast: the model that is tried in FP32 otherwise, on the same inputs, under autocast in BF16."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.use_deterministic_algorithms(True)
    row: dict[str, Any] = {"name": kind.name, "family": kind.family, "class": kind.cls}
    told(row | {"outcome": "not tried", "why": "the process died while the model was built"})
    try:
        model, inputs = build(kind)
    except NotTried as error:
        return row | {"outcome": "not tried", "why": str(error)}
    inputs = replace(inputs, autocast=autocast)
    row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    row["loss"] = inputs.loss
    told(row | {"outcome": "not tried", "why": "the process died in plain PyTorch"})
    started = time.monotonic()
    try:
        losses, job = capture(model, inputs, lambda why: told(row | {"outcome": "failed", "why": why}))
    except NotTried as error:
        return row | {"outcome": "not tried", "why": str(error)}
    except CaptureError as error:
        row["why"] = _line(error)
        try:
            losses, job = capture(model.eval(), inputs, lambda why: told(row | {"outcome": "refused"}))
        except (CaptureError, NotTried):
            return row | {"outcome": "refused"}
        row["mode"] = "eval"
    except Exception as error:
        return row | {"outcome": "failed", "why": f"{type(error).__name__}: {_line(error)}"}
    row["operators"] = len(job.program.nodes)
    row["seconds"] = round(time.monotonic() - started, 1)
    told(row | {"outcome": "failed", "why": "the process died in the first machine's run"})
    job.write(directory / "job")
    row |= execute(directory, "first")
    if "root" in row and not any(node.op == "uniform" for node in job.program.nodes):
        row["losses"] = [losses[0], row["program loss"]]
    row.pop("program loss", None)
    return row | ({"outcome": "captured"} if "root" in row else {"outcome": "stopped"})


def capture(model: nn.Module, inputs: Inputs, told: Callable[[str], None]) -> tuple[list[float], Job]:
    """(losses of plain PyTorch, the job). Raises NotTried where PyTorch itself does not come to the same bits twice."""
    try:
        runs = [train(task_of(model, inputs)) for _ in range(2)]
    except Exception as error:
        raise NotTried(f"PyTorch does not train it deterministically: {_line(error)}") from error
    if not _same(*(states for _, states in runs)):
        raise NotTried("PyTorch's two runs end in different states")
    told("the process died in the capture")
    return runs[0][0], Job.from_task(lambda: task_of(model, inputs))


def execute(directory: Path, run: str) -> dict[str, Any]:
    """The job in a directory trained: its root, or why it stopped."""
    losses: list[float] = []
    try:
        job = Job.read(directory / "job")
        result = Trainer(job, directory / run, RunOptions(on_step=lambda event: losses.append(float(event.loss)))).run()
    except Exception as error:
        return {"why": _line(error)}
    return {"root": result.checkpoint_root.hex(), "program loss": losses[0]}


def build(kind: Kind) -> tuple[nn.Module, Inputs]:
    """A small model and inputs with which it trains. Raises NotTried."""
    first_error = ""
    for scale in SCALES:
        try:
            config = shrunken(config_class(kind.name), scale, SETTINGS.get(kind.name))
            torch.manual_seed(0)
            with torch.device("meta"):
                size = sum(p.numel() for p in _class(kind)(config).parameters())
            if size > MOST_PARAMETERS:
                raise NotTried(f"its smallest configuration here has {size:,} parameters")
            model = _class(kind)(config).float().train()
        except Exception as error:
            first_error = first_error or f"cannot be built small: {_line(error)}"
            continue
        try:
            return model, _inputs(kind, model, config)
        except NotTried as error:
            first_error = first_error if first_error.startswith("no inputs") else str(error)
    raise NotTried(first_error)


def _class(kind: Kind) -> Any:
    return getattr(transformers, kind.cls)


def _inputs(kind: Kind, model: nn.Module, config: Any) -> Inputs:
    """The first candidates with which a step gives finite gradients."""
    first_error = ""
    for _ in range(3):
        again = False
        torch.manual_seed(1)
        for inputs in candidates(kind, model, config):
            try:
                copied = copy.deepcopy(model)
                batch = {name: x[:BATCH] for name, x in inputs.fields.items()}
                loss = loss_of(inputs)(copied, batch)
                loss.backward()
                if loss.ndim == 0 and bool(loss.isfinite()):
                    return inputs
                raise ValueError(f"the loss is {loss}")
            except Exception as error:
                first_error = first_error or _line(error)
                if learn(model, str(error)):
                    again = True
                    break
        if not again:
            break
    raise NotTried(f"no inputs were found that it takes: {first_error}")


def task_of(model: nn.Module, inputs: Inputs) -> Task:
    """A task of a copy of the model, equal each time."""
    model = copy.deepcopy(model)
    return Task(
        model=model,
        loss=loss_of(inputs),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        dataset=inputs.fields,
        batch_size=BATCH,
        steps=STEPS,
        interval=STEPS,
        seed=0,
    )


def train(task: Task) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and last state of plain PyTorch, on the batches of the task's job."""
    torch.manual_seed(2)
    training = PlainTraining(task)
    losses = []
    for step in range(task.steps):
        rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
        losses.append(training.step(step, {name: x[rows] for name, x in task.dataset.items()}))
    return losses, {name: x.detach().clone() for name, x in training.model.state_dict().items()}


def _same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """True if two states agree to the bit."""
    return all(x.numpy().tobytes() == b[name].numpy().tobytes() for name, x in a.items())


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:400]
