"""A task trained both ways: by PyTorch, and by the program that was captured from it."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import torch
from roundlog.capture import Task
from roundlog.capture.captured import model_tensors
from roundlog.capture.tracing.warmed_task import tied
from roundlog.examples.baseline import PlainTraining
from roundlog.execution import Batches, Executor
from roundlog.execution.executor import StepResult
from roundlog.randomness import batch_rows
from roundlog.rounding import Recorder
from roundlog.storage import save_tensors
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, StepEvent
from roundlog.training.trainer import Trainer, TrainingResult
from torch import nn


def batch_of(task: Task, step: int) -> dict[str, torch.Tensor]:
    rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
    return {name: field[rows] for name, field in task.dataset.items()}


def named_state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in model_tensors(model).items()}


def run_of(model: nn.Module, where: Path, *, steps: int = 4) -> Path:
    """The directory of a run that has come to the values of a model, with what a state may hold beside them."""
    tensors = model_tensors(model)
    first = tied(tensors)
    states = {name: tensor for name, tensor in tensors.items() if first[name] == name}
    beside = {"slot/w/exp_avg": torch.ones(2), "attribute/model.seen[0]": torch.ones(1), "constant/0": torch.ones(3)}
    (where / "checkpoints").mkdir(parents=True, exist_ok=True)
    save_tensors(where / "checkpoints" / f"{steps:08d}.safetensors", {**states, **beside})
    return where


def train_by_pytorch(task: Task, steps: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Every parameter and buffer after so many steps by PyTorch itself."""
    plain = PlainTraining(task, dtype)
    for step in range(steps):
        plain.step(step, batch_of(task, step))
    return named_state(plain.model)


def steps_by_program(
    job: Job, steps: int, wanted: Collection[int] = ()
) -> Iterator[tuple[StepResult, dict[int, torch.Tensor]]]:
    """So many steps by the engine: what each gives, and the values of the wanted operators in it."""
    executor, batches = Executor(job.program), Batches(job.dataset, job.spec)
    states = list(job.initial.values())
    for step in range(steps):
        kept: dict[int, torch.Tensor] = {}

        def keep(index: int, value: torch.Tensor, kept: dict[int, torch.Tensor] = kept) -> None:
            if index in wanted:
                kept[index] = value.clone()

        inputs = job.inputs(batches, step, states)
        # Observed steps are run operator by operator.
        result = executor.run(inputs, Recorder(4), observe=keep if wanted else None)
        states = list(result.states)
        yield result, kept


def train_by_program(job: Job, steps: int) -> dict[str, torch.Tensor]:
    """The whole state after so many steps by the engine."""
    states = list(job.initial.values())
    for result, _ in steps_by_program(job, steps):
        states = result.states
    return dict(zip(job.program.state_names, states, strict=True))


def trained_and_audited(
    task: Task, directory: Path, on_step: Callable[[StepEvent], None] | None = None
) -> tuple[Job, TrainingResult]:
    """The task as a job, and what its trainer published, to whose root it was audited by the log, all of it verified,
    and without any log."""
    job = Job.from_task(lambda: task)
    result = Trainer(job, directory / "trainer", RunOptions(on_step=on_step)).run()
    audit = Auditor(job, directory / "auditor", log_dir=result.log_dir, verify_log=1.0).run()
    alone = Auditor(job, directory / "alone").run()
    assert audit.checkpoint_root == alone.checkpoint_root == result.checkpoint_root
    assert (audit.findings, audit.unreadable) == ([], [])
    return job, result
