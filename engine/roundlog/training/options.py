"""How a party runs a job: options that never change a bit of what comes out, and what executes the steps."""

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


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One step that was executed."""

    step: int
    """Counted from 0."""
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Execution:
    """What executes the steps of a job: a program's executor, and the data that it is given."""

    executor: StepExecutor
    batches: BatchSource


def prescribed(job: Job, micro_batches: int, run_dir: Path) -> Execution:
    """The execution that the spec prescribes: the committed program on the committed data, with every batch cut into so
    many parts. run_dir: where micro-batches keep what takes no memory.

    Raises ProgramError if a batch has fewer samples than parts, OSError."""
    executor: StepExecutor
    if len(micro_batches_of(job.program, micro_batches)) == 1:
        executor = Executor(job.program, job.spec.rounding_bits)
    else:
        executor = MicrobatchExecutor(job.program, micro_batches, run_dir, job.spec.rounding_bits)
    return Execution(executor, Batches(job.dataset, job.spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a party runs a job. None of it changes roots, logs or findings."""

    device: torch.device | str = "cpu"
    micro_batches: int = 1
    """Parts into which every batch is cut, to take less memory; for auditors, since a log is written in one piece."""
    keep_every: int = 1
    """Intervals between two checkpoints that are kept on disk; the last one always is."""
    on_step: Callable[[StepEvent], None] | None = None
    """Told of every step."""
    continue_after_stop: bool = False
    """Where a step stops, fabricate a state (`roundlog.training.fabricated_values`) and carry on from it, as a party
    has to that disputes what somebody claims of such a run."""
    execution: Callable[[Job, int, Path], Execution] = prescribed
    """Makes what executes the steps, of the job, the micro-batches and the run directory."""


DEFAULT_OPTIONS = RunOptions()
