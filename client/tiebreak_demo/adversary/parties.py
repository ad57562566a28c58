"""Dishonest parties, for the demo and the tests. Each is an honest role whose context has another engine, other batches
or another queue, which drops orders of the role."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from roundlog.program import Program, first_store
from roundlog.training import Job
from tiebreak.contract.enums import Side
from tiebreak.contract.game import VerificationGame
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.transactions.sender import Sender

from tiebreak_demo.adversary.engines import (
    ChangedBatches,
    CopyingEngine,
    Lie,
    MakeExecution,
    execution_of,
    lying,
    tampered,
)

_MOVES = {
    *("inTurn", "bisect", "openLevel", "openOperator", "proveStore", "postChunk"),
    *("proveElement", "disputeSum", "openPartials", "proveSegment"),
}


class SilentQueue(TransactionQueue):
    """A queue that sends only the first `moves` moves, and all other orders."""

    def __init__(self, contract: VerificationGame, sender: Sender, *, moves: int = 0) -> None:
        super().__init__(contract, sender)
        self.moves = moves

    def put(self, order: Order) -> bool:
        if order.call.function in _MOVES:
            if self.moves == 0:
                return False
            self.moves -= 1
        return super().put(order)


class ResigningQueue(TransactionQueue):
    """A queue that makes no appeals."""

    def put(self, order: Order) -> bool:
        return order.call.function != "appeal" and super().put(order)


def silenced(context: RoleContext, *, moves: int = 0) -> RoleContext:
    """Return the context of a party that falls silent after its first `moves` moves."""
    return replace(context, make_queue=lambda contract, sender: SilentQueue(contract, sender, moves=moves))


def poisoned_batches(job: Job, step: int) -> ChangedBatches:
    """Return the prescribed batches with wrong labels in one step. Labels: the last int64 field of the data set."""
    fields = list(job.dataset.values())
    labels = max(i for i, field in enumerate(fields) if field.dtype == torch.int64)
    classes = int(fields[labels][:].max()) + 1

    def poison(batch: list[torch.Tensor]) -> None:
        batch[labels] = (batch[labels] + 1) % classes

    return ChangedBatches(job, step, poison)


def poisoning_trainer(context: RoleContext, job: int, *, poisoned_step: int) -> TrainerRole:
    """Return a trainer that trains one step on wrong labels, and is honest otherwise."""
    execution = execution_of(batches=lambda posted: poisoned_batches(posted, poisoned_step))
    return TrainerRole(lying(context, execution), job)


def weight_lie(program: Program, step: int) -> Lie:
    """Return the lie of a generation job's provider whose model has one other weight: of the matrix in the middle of
    the model, the element in the middle, by one ulp, from a step on."""
    matrices = [
        q
        for q, node in enumerate(program.nodes)
        if node.op == "state" and len(node.type.shape) == 2 and read_slot(program, q).startswith("parameter/")
    ]
    operator = matrices[len(matrices) // 2]
    return Lie(step=step, operator=operator, element=program.nodes[operator].type.numel // 2)


def read_slot(program: Program, operator: int) -> str:
    """Return the name of the slot that a `state` operator reads."""
    slot = program.nodes[operator].attributes["slot"]
    assert isinstance(slot, int)
    return program.state_names[slot]


def other_weight_trainer(context: RoleContext, job: int, *, step: int) -> TrainerRole:
    """Return a trainer whose model has one weight that is one ulp off, from a step on. It stays in its state."""
    execution = _telling(lambda program: [weight_lie(program, step)])
    return TrainerRole(lying(context, execution, Side.TRAINER), job)


def tampering_trainer(context: RoleContext, job: int, *, lies: Sequence[Lie]) -> TrainerRole:
    """Return a trainer that trains with lies, and defends them to the last move."""
    return TrainerRole(lying(context, _telling(lambda program: lies), Side.TRAINER), job)


def tampering_auditor(context: RoleContext, job: int, *, lies: Sequence[Lie]) -> AuditorRole:
    """Return an auditor that audits with lies, and defends them to the last move. It does not use the trainer's log."""
    return AuditorRole(lying(context, _telling(lambda program: lies), Side.CHALLENGER), job, use_log=False)


def lying_auditor(context: RoleContext, job: int, *, first_wrong_step: int) -> AuditorRole:
    """Return an auditor that challenges with a state that its step has not stored, and with all that would follow."""

    def lies(program: Program) -> list[Lie]:
        return [Lie(step=first_wrong_step, operator=first_store(program), only_stored=True)]

    return AuditorRole(lying(context, _telling(lies), Side.CHALLENGER), job, use_log=False)


def lazy_auditor(context: RoleContext, job: int, *, whispered: Path) -> AuditorRole:
    """Return an auditor in a job with blind audits that repeats nothing: it seals and opens the run of the trainer, in
    the directory `whispered`. It does not appeal either, since that would be work."""
    engine = CopyingEngine(options=context.engine.options, whispered=whispered)
    return AuditorRole(replace(context, engine=engine, make_queue=ResigningQueue), job)


def _telling(lies: Callable[[Program], Sequence[Lie]]) -> MakeExecution:
    """Return the execution that tells these lies about a job's program."""
    return execution_of(lambda posted: tampered(posted.program, posted.spec.f32_format, lies(posted.program)))
