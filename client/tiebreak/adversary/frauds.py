"""What a trainer or a challenger can lie about in one step, one kind after the other.

All else follows from it, so that it can be defended. Each knows beforehand where it can first be seen, which is where a
game about it has to end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from roundlog.execution.batches import Batches, BatchSource
from roundlog.execution.executor import Executor, StepResult
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.rounding import Rounding
from roundlog.training import job as engine

from tiebreak.adversary.parties import TamperingAuditor, TamperingTrainer, with_desk
from tiebreak.adversary.tampering import Lie, TamperedExecutor
from tiebreak.chain.errors import ChainError, ContractError
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.sender import Sender
from tiebreak.roles.context import RoleContext
from tiebreak.roles.desk import Desk, Order


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

    def executor(self, job: engine.Job) -> Executor:
        """What executes the job's steps."""
        return Executor(job.program, job.spec.rounding_bits)

    def batches(self, job: engine.Job) -> BatchSource:
        """What they are executed on."""
        return Batches(job.dataset, job.spec)


class BentElement(Fraud):
    """One element of an operator's output is another number."""

    def executor(self, job: engine.Job) -> Executor:
        lie = Lie(
            step=self.step,
            operator=self.operator,
            element=self.element,
            claimed=self.claimed,
            only_stored=self.kind is Kind.STORED,
            logged=self.kind is Kind.ROUNDING,
        )
        return TamperedExecutor(job.program, job.spec.rounding_bits, [lie])


@dataclass(frozen=True, kw_only=True)
class AnotherRow(Fraud):
    """One sample of a step's batch is a row of the data set that is not its turn."""

    position: int
    row: int

    def batches(self, job: engine.Job) -> BatchSource:
        return _SwappedBatches(job, self)


class _SwappedBatches(Batches):
    def __init__(self, job: engine.Job, fraud: AnotherRow) -> None:
        super().__init__(job.dataset, job.spec)
        self._fraud = fraud

    def load(self, step: int) -> list[torch.Tensor]:
        fields = super().load(step)
        if step == self._fraud.step:
            for field, rows in zip(fields, self.dataset.values(), strict=True):
                field[self._fraud.position] = rows[self._fraud.row]
        return fields


@dataclass(frozen=True, kw_only=True)
class AnotherProgram(Fraud):
    """From `step` on, steps are executed by another program with the same number of operators."""

    program: Program

    def executor(self, job: engine.Job) -> Executor:
        return _SwitchingExecutor(job.program, job.spec.rounding_bits, self)


class _SwitchingExecutor(Executor):
    def __init__(self, program: Program, bits: int, fraud: AnotherProgram) -> None:
        super().__init__(program, bits)
        self._first, self._other = fraud.step, Executor(fraud.program, bits)

    def run(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        observe: Callable[[int, torch.Tensor], None] | None = None,
        pass_on: Callable[[int, torch.Tensor], None] | None = None,
    ) -> StepResult:
        if inputs.step < self._first:
            return super().run(inputs, rounding, observe, pass_on)
        return self._other.run(inputs, rounding, observe, pass_on)


class FraudulentTrainer(TamperingTrainer):
    """Trains with a fraud in one step, claims what comes of it, and defends that."""

    def __init__(self, context: RoleContext, job: int, fraud: Fraud) -> None:
        super().__init__(context, job, lies=())
        self._fraud = fraud

    def batches(self, job: engine.Job) -> BatchSource:
        return self._fraud.batches(job)

    def executor(self, job: engine.Job) -> Executor:
        return self._fraud.executor(job)


class FraudulentChallenger(TamperingAuditor):
    """Audits with a fraud in one step, challenges with what comes of it, and defends that."""

    def __init__(self, context: RoleContext, job: int, fraud: Fraud) -> None:
        super().__init__(context, job)
        self._fraud = fraud

    def batches(self, job: engine.Job) -> BatchSource:
        return self._fraud.batches(job)

    def executor(self, job: engine.Job) -> Executor:
        return self._fraud.executor(job)


class RememberingDesk(Desk):
    """Keeps what the contract has said about proofs of elements that it refused."""

    def __init__(self, contract: VerificationGame, sender: Sender) -> None:
        super().__init__(contract, sender)
        self.refused: list[ContractError] = []

    @classmethod
    def at(cls, context: RoleContext) -> tuple[RoleContext, RememberingDesk]:
        """The same context with such a desk."""
        desk = cls(context.contract, context.sender)
        return with_desk(context, desk), desk

    def put(self, order: Order) -> bool:
        if order.call.function != "proveElement":
            return super().put(order)

        def failed(error: ChainError) -> None:
            if isinstance(error, ContractError):
                self.refused.append(error)
            order.failed(error)

        return super().put(replace(order, failed=failed))
