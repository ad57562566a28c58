"""Frauds: the lies that a trainer or a challenger can tell about one step, by kind.

Everything after the lie follows from it, so that it can be defended. A fraud names the first element that shows it,
where a game about it has to end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from roundlog.execution import CPU, Batches, BatchSource, Executor, StepExecutor, StepResult
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.rounding import Rounding
from roundlog.training import Job
from tiebreak.contract.enums import Side
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.trainer_role import TrainerRole

from tiebreak_demo.adversary.chains import LyingChain
from tiebreak_demo.adversary.engines import MakeExecution, execution_of, lying, prescribed_batches, prescribed_executor
from tiebreak_demo.adversary.tampering import Lie, tampered


class FraudKind(StrEnum):
    """The kind of a fraud, by its subject."""

    GRADIENT = "one element of a gradient, by one ulp"
    STORED = "an optimizer slot holds what was not computed"
    LOADED = "an optimizer slot is read as what it does not hold"
    ROW = "a row of the data that is not its turn"
    RATE = "the learning rate"
    ROUNDING = "one rounding decision, in the log as well"
    MASK = "one random number of a dropout mask"
    FUNCTION = "one exponential of a softmax, by one ulp"
    PROGRAM = "another program than the posted one"
    ACTIVATION = "one BF16 activation, by one ulp"
    CONVERSION = "one weight as it is converted to BF16, by one ulp"
    MASTER = "one FP32 weight as it is updated, by one ulp"
    ACCUMULATOR = "one accumulator of a tensor core, by one ulp"
    LAST_ROUNDING = "the last rounding of a tensor core's product, toward zero"
    GROUP_ORDER = "two groups of a tensor core's product, in the other order"
    FP32_SUMS = "a tensor core's product by sums in FP32, to nearest"


@dataclass(frozen=True, kw_only=True)
class Fraud:
    """A fraud in one step. operator, element: the first operator whose output differs from that of the posted program
    in `step` (counted from 0), and the lowest such element. If a state slot differs from the computed value, they are
    the operator that stores it and the element of the slot. right, claimed: the bits of that element, right and
    claimed."""

    kind: FraudKind
    step: int
    operator: int
    element: int
    right: int
    claimed: int
    chain: LyingChain | None = None
    """The rule by which the liar about a product of tensor cores goes on; None for other lies."""

    def executor(self, job: Job) -> StepExecutor:
        """The executor of the job's steps."""
        return prescribed_executor(job)

    def batches(self, job: Job) -> BatchSource:
        """The source of the batches."""
        return prescribed_batches(job)

    @property
    def execution(self) -> MakeExecution:
        """The `execution` of `RunOptions`."""
        return execution_of(self.executor, self.batches)


class BentElement(Fraud):
    """A fraud in which one element of an operator's output is another number."""

    def executor(self, job: Job) -> StepExecutor:
        lie = Lie(
            step=self.step,
            operator=self.operator,
            element=self.element,
            claimed=self.claimed,
            only_stored=self.kind is FraudKind.STORED,
            logged=self.kind is FraudKind.ROUNDING,
        )
        return tampered(job.program, job.spec.f32_format, [lie])


@dataclass(frozen=True, kw_only=True)
class AnotherRow(Fraud):
    """A fraud in which one sample of a step's batch is another row of the data set than the prescribed one."""

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
    """A fraud in which all steps from `step` on are executed by another program with the same number of operators."""

    program: Program

    def executor(self, job: Job) -> StepExecutor:
        return _SwitchingExecutor(prescribed_executor(job), self)


class _SwitchingExecutor:
    """An executor of one program before a step, and of another from there on (implements `StepExecutor`)."""

    def __init__(self, posted: StepExecutor, fraud: AnotherProgram) -> None:
        self.program, self.f32_format = posted.program, posted.f32_format
        self._posted, self._first = posted, fraud.step
        self._other = Executor(fraud.program, posted.f32_format)

    def run(
        self, inputs: StepInputs, rounding: Rounding, observe: Callable[[int, torch.Tensor], None] | None = None
    ) -> StepResult:
        executor = self._posted if inputs.step < self._first else self._other
        return executor.run(inputs, rounding, observe)


def fraudulent_trainer(context: RoleContext, job: int, fraud: Fraud) -> TrainerRole:
    """A trainer that trains with a fraud in one step, claims the result and defends it."""
    return TrainerRole(lying(context, fraud.execution, Side.TRAINER, fraud.chain), job)


def fraudulent_challenger(context: RoleContext, job: int, fraud: Fraud) -> AuditorRole:
    """An auditor that audits with a fraud in one step, challenges with the result and defends it."""
    return AuditorRole(lying(context, fraud.execution, Side.CHALLENGER, fraud.chain), job, use_log=False)
