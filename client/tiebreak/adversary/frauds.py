"""What a trainer or a challenger can lie about in one step, one kind after the other.

All else follows from it, so that it can be defended. Each knows beforehand where it can first be seen, which is where a
game about it has to end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from roundlog.execution import Batches, BatchSource, Executor, StepExecutor, StepResult
from roundlog.execution.batches import CPU
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.rounding import Rounding
from roundlog.training.job import Job

from tiebreak.adversary.engines import MakeExecution, execution_of, lying, prescribed_batches, prescribed_executor
from tiebreak.adversary.tampering import Lie, tampered
from tiebreak.chain.records import Side
from tiebreak.roles.auditor import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.trainer import TrainerRole


class Kind(StrEnum):
    """What somebody can lie about."""

    GRADIENT = "one element of a gradient, by one ulp"
    STORED = "an optimizer slot holds what was not computed"
    LOADED = "an optimizer slot is read as what it does not hold"
    ROW = "a row of the data that is not its turn"
    RATE = "the learning rate"
    ROUNDING = "one rounding decision, in the log as well"
    MASK = "one random number of a dropout mask"
    FUNCTION = "one exponential of a softmax, by one ulp"
    PROGRAM = "another program than the posted one"


@dataclass(frozen=True, kw_only=True)
class Fraud:
    """operator, element: the first operator whose output is not what the posted program gives in `step` (counted from
    0), and the lowest such element; if a state slot holds something else than what was computed, the operator that
    stores it, and the element of the slot. right, claimed: that element as bits, as it is and as it is told."""

    kind: Kind
    step: int
    operator: int
    element: int
    right: int
    claimed: int

    def executor(self, job: Job) -> StepExecutor:
        """Executes the job's steps."""
        return prescribed_executor(job)

    def batches(self, job: Job) -> BatchSource:
        """Gives the data that they are executed on."""
        return prescribed_batches(job)

    @property
    def execution(self) -> MakeExecution:
        """The execution for `RunOptions`."""
        return execution_of(self.executor, self.batches)


class BentElement(Fraud):
    """One element of an operator's output is another number."""

    def executor(self, job: Job) -> StepExecutor:
        lie = Lie(
            step=self.step,
            operator=self.operator,
            element=self.element,
            claimed=self.claimed,
            only_stored=self.kind is Kind.STORED,
            logged=self.kind is Kind.ROUNDING,
        )
        return tampered(job.program, job.spec.rounding_bits, [lie])


@dataclass(frozen=True, kw_only=True)
class AnotherRow(Fraud):
    """One sample of a step's batch is a row of the data set that is not its turn."""

    position: int
    row: int

    def batches(self, job: Job) -> BatchSource:
        return _SwappedBatches(job, self)


class _SwappedBatches(Batches):
    def __init__(self, job: Job, fraud: AnotherRow) -> None:
        super().__init__(job.dataset, job.spec)
        self._fraud = fraud

    def load(self, step: int, device: torch.device = CPU) -> Sequence[torch.Tensor]:
        fields = list(super().load(step, device))
        if step == self._fraud.step:
            for field, rows in zip(fields, self.dataset.values(), strict=True):
                field[self._fraud.position] = rows[self._fraud.row]
        return fields


@dataclass(frozen=True, kw_only=True)
class AnotherProgram(Fraud):
    """From `step` on, steps are executed by another program with the same number of operators."""

    program: Program

    def executor(self, job: Job) -> StepExecutor:
        return _SwitchingExecutor(prescribed_executor(job), self)


class _SwitchingExecutor:
    """Executes one program before a step, and another from there on (implements `StepExecutor`)."""

    def __init__(self, posted: StepExecutor, fraud: AnotherProgram) -> None:
        self.program, self.bits = posted.program, posted.bits
        self._posted, self._first = posted, fraud.step
        self._other = Executor(fraud.program, posted.bits)

    def run(
        self, inputs: StepInputs, rounding: Rounding, observe: Callable[[int, torch.Tensor], None] | None = None
    ) -> StepResult:
        executor = self._posted if inputs.step < self._first else self._other
        return executor.run(inputs, rounding, observe)


def fraudulent_trainer(context: RoleContext, job: int, fraud: Fraud) -> TrainerRole:
    """Trains with a fraud in one step, claims what comes of it, and defends that."""
    return TrainerRole(lying(context, fraud.execution, Side.TRAINER), job)


def fraudulent_challenger(context: RoleContext, job: int, fraud: Fraud) -> AuditorRole:
    """Audits with a fraud in one step, challenges with what comes of it, and defends that."""
    return AuditorRole(lying(context, fraud.execution, Side.CHALLENGER), job, use_log=False)
