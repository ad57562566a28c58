"""Options of runs, which never change a bit of the results, the execution that they select, and validation: the loss
of a job's own program on rows that it does not train on.

A validation executes the program up to its loss, which stores nothing. So it changes no state, and as random numbers
depend on seed, step and operator alone, none of theirs either."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch

from roundlog.arithmetic import retry_disturbed
from roundlog.data import as_field
from roundlog.execution import (
    Batches,
    Executor,
    IndexRangeError,
    MicrobatchExecutor,
    NonFiniteError,
    StepExecutor,
    micro_batches_of,
)
from roundlog.execution.batches import LazyBatch
from roundlog.operators import StepInputs
from roundlog.program import Node, Program, TensorType
from roundlog.rounding.policies import without_log
from roundlog.storage import StorageError, load_tensors, reading
from roundlog.training.job import Job
from roundlog.training.run_cost import run_bytes


class ValidationError(ValueError):
    """A validation that cannot be made. The message is one sentence that says what to do."""


def program_up_to_loss(program: Program) -> Program:
    """The operators of a program that its loss depends on, and the loss. It has the same slots, and stores none."""
    loss = max(index for index, node in enumerate(program.nodes) if node.op == "loss")
    needed = {loss}
    for index in range(loss, -1, -1):
        if index in needed:
            needed.update(program.nodes[index].inputs)
    kept = sorted(needed)
    place = {old: new for new, old in enumerate(kept)}
    nodes = tuple(_moved(program.nodes[old], place) for old in kept)
    return replace(program, nodes=nodes)


def draws_numbers(program: Program) -> bool:
    """Whether the loss of a program depends on random numbers, as with dropout."""
    return any(node.op == "uniform" for node in program_up_to_loss(program).nodes)


class Validation:
    """The loss on a validation set, every so many steps."""

    def __init__(
        self,
        job: Job,
        rows: Mapping[str, torch.Tensor],
        every: int,
        on_loss: Callable[[int, float], None] | None = None,
    ) -> None:
        """rows: field name -> [rows, ...], with the fields of the job's dataset. Rows behind the last whole batch are
        left out. every: steps between two validations; there is one before the first step and one after the last, too.
        on_loss: called with the steps done and the loss. Raises ValidationError."""
        if every < 1:
            raise ValidationError(f"a validation every {every} steps is none: give 1 or more")
        self.rows = len(next(iter(rows.values()), ())) // job.spec.batch_size * job.spec.batch_size
        """Rows that are used."""
        if self.rows == 0:
            raise ValidationError(f"the validation set has less than one batch of {job.spec.batch_size} rows: add some")
        self._job = job
        self._fields = [as_field(rows[name]) for name in job.program.data_names]
        self._every = every
        self._on_loss = on_loss
        self._executor = Executor(program_up_to_loss(job.program), job.spec.f32_format)

    def is_due(self, step: int) -> bool:
        """Whether there is a validation before this step, or after the last one."""
        return step % self._every == 0 or step == self._job.spec.steps

    def loss(self, step: int, states: Sequence[torch.Tensor], device: torch.device) -> float:
        """The mean loss of all batches of the set, of a state after `step` steps; NaN if one is not finite. Learning
        rates and random numbers, where a loss depends on them, are those of step `step`, or of the last one.

        Raises ValidationError for an index out of range in the set."""
        size, spec = self._job.spec.batch_size, self._job.spec
        at = min(step, spec.steps - 1)
        losses: list[Fraction] = []
        try:
            for first in range(0, self.rows, size):
                inputs = StepInputs(
                    states=states,
                    data=LazyBatch(self._fields, torch.arange(first, first + size), device),
                    schedule=self._job.schedule[at].to(device),
                    seed=spec.seed,
                    step=at,
                    device=device,
                )
                losses.append(Fraction(self._batch_loss(inputs)))
            mean = float(sum(losses) / len(losses))
        except NonFiniteError:
            mean = math.nan
        except IndexRangeError as error:
            raise ValidationError(f"the validation set does not fit the job's program: {error}") from error
        if self._on_loss is not None:
            self._on_loss(step, mean)
        return mean

    def _batch_loss(self, inputs: StepInputs) -> float:
        rounding = without_log(self._job.spec)
        return retry_disturbed(lambda: self._executor.run_part(inputs, rounding, None).loss, rounding.start_again)


def read_validation_rows(path: Path, job: Job, max_memory: int) -> dict[str, torch.Tensor]:
    """The rows of a safetensors file with the fields, dtypes and row shapes of the job's dataset, and any number of
    rows. The file is not trusted. Raises ValidationError, StorageError."""
    row_types = {
        name: TensorType(tuple(field.shape[1:]), job.program.data[name].dtype) for name, field in job.dataset.items()
    }
    row_bytes = sum(kind.nbytes for kind in row_types.values())
    with reading(path) as file:
        head = file.read(8)
        size = file.seek(0, 2)
    if len(head) < 8:
        raise StorageError(path, "is shorter than the 8 bytes that a safetensors file starts with")
    data_bytes = size - 8 - struct.unpack("<Q", head)[0]
    # The bytes behind the header of a whole file tell the number of rows. `load_tensors` checks all of it.
    rows = max(data_bytes, 0) // row_bytes if row_bytes else 0
    if rows == 0:
        raise ValidationError(f"{path} has no whole row of the job's fields ({', '.join(row_types)}): give some rows")
    need = run_bytes(job.program, job.spec) + rows * row_bytes
    if need > max_memory:
        raise ValidationError(
            f"the run and the validation set need up to {need} bytes of memory, more than the {max_memory} allowed: "
            "give fewer rows, or raise the limit"
        )
    expected = {name: TensorType((rows, *kind.shape), kind.dtype) for name, kind in row_types.items()}
    return load_tensors(path, expected)


def _moved(node: Node, place: Mapping[int, int]) -> Node:
    return replace(node, inputs=tuple(place[value] for value in node.inputs))


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
    batches: Batches


def prescribed(job: Job, micro_batches: int, run_dir: Path) -> Execution:
    """The execution that the spec prescribes: the committed program on the committed data, with every batch cut into
    `micro_batches` parts. run_dir: directory for slices that micro-batches keep on disk.

    Raises ProgramError if a batch has fewer samples than parts, OSError."""
    executor: StepExecutor
    if len(micro_batches_of(job.program, micro_batches)) == 1:
        executor = Executor(job.program, job.spec.f32_format)
    else:
        executor = MicrobatchExecutor(job.program, micro_batches, run_dir, job.spec.f32_format)
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
