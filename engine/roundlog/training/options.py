"""Options of runs, which never change a bit of the results, and the execution that they select."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from roundlog.execution import (
    Batches,
    BatchSource,
    Executor,
    MicrobatchExecutor,
    StepExecutor,
    micro_batches_of,
)
from roundlog.training.job import Job
from roundlog.training.validation import Validation


@dataclass(frozen=True, slots=True)
class StepEvent:
    """A report of one executed step."""

    step: int
    """Counted from 0."""
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Execution:
    """The execution of a job's steps: a program's executor, and the source of its data."""

    executor: StepExecutor
    batches: BatchSource


def prescribed(job: Job, micro_batches: int, run_dir: Path) -> Execution:
    """The execution that the spec prescribes: the committed program on the committed data, with every batch cut into
    `micro_batches` parts. run_dir: directory for slices that micro-batches keep on disk.

    Raises ProgramError if a batch has fewer samples than parts, OSError."""
    executor: StepExecutor
    if len(micro_batches_of(job.program, micro_batches)) == 1:
        executor = Executor(job.program, job.spec.rounding_bits)
    else:
        executor = MicrobatchExecutor(job.program, micro_batches, run_dir, job.spec.rounding_bits)
    return Execution(executor, Batches(job.dataset, job.spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run. None of them changes roots, logs or findings."""

    device: torch.device | str = "cpu"
    micro_batches: int = 1
    """Parts into which every batch is cut, to take less memory."""
    keep_every: int = 1
    """Intervals between two checkpoints that are kept on disk; the last checkpoint is always kept."""
    on_step: Callable[[StepEvent], None] | None = None
    """Called after every step."""
    on_resume: Callable[[int], None] | None = None
    """Called once, before the first step, with the steps that earlier processes have done."""
    validation: Validation | None = None
    """Other rows, on which the loss is computed every so many steps and written into the history."""
    continue_after_stop: bool = False
    """Whether to continue after a step that stops, from a fabricated state (`roundlog.training.fabricated_values`). A
    party needs this to dispute a claim about such a run."""
    execution: Callable[[Job, int, Path], Execution] = prescribed
    """Makes the execution, from the job, the number of micro-batches and the run directory."""


DEFAULT_OPTIONS = RunOptions()
