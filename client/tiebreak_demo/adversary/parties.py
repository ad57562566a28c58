"""Dishonest parties, for the demo and the tests. Each is an honest role whose context has one replaced part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from roundlog.execution import CPU, Batches, StepExecutor
from roundlog.program import first_store
from roundlog.training import Job
from tiebreak.contract.enums import Side
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.trainer_role import TrainerRole

from tiebreak_demo.adversary.dishonest_logs import forge, spoiling
from tiebreak_demo.adversary.dishonest_queues import FabricatingQueue, ResigningQueue
from tiebreak_demo.adversary.engines import CopyingEngine, execution_of, lying
from tiebreak_demo.adversary.tampering import Lie, hiding, tampered


class PoisonedBatches(Batches):
    """The prescribed batches, with wrong labels in one step.

    Labels are the last int64 field of the data set."""

    def __init__(self, job: Job, step: int) -> None:
        super().__init__(job.dataset, job.spec)
        self.step = step
        self._labels = max(i for i, field in enumerate(job.dataset.values()) if field.dtype == torch.int64)
        self._classes = int(list(job.dataset.values())[self._labels][:].max()) + 1

    def load(self, step: int, device: torch.device = CPU) -> Sequence[torch.Tensor]:
        fields = list(super().load(step, device))
        if step == self.step:
            fields[self._labels] = (fields[self._labels] + 1) % self._classes
        return fields


def poisoning_trainer(context: RoleContext, job: int, *, poisoned_step: int) -> TrainerRole:
    """A trainer that trains one step on wrong labels, and is honest otherwise."""
    execution = execution_of(batches=lambda posted: PoisonedBatches(posted, poisoned_step))
    return TrainerRole(lying(context, execution), job)


def fabricating_trainer(context: RoleContext, job: int) -> TrainerRole:
    """A trainer that claims a root with nothing below it but its last leaf."""
    return TrainerRole(replace(context, make_queue=FabricatingQueue), job)


def log_forging_trainer(context: RoleContext, job: int) -> TrainerRole:
    """A trainer that trains honestly, but publishes a log with up and down swapped in every decision."""
    return TrainerRole(replace(context, store=spoiling(context.store, forge)), job)


def tampering_trainer(context: RoleContext, job: int, *, lies: Sequence[Lie]) -> TrainerRole:
    """A trainer that trains with lies, and defends them to the last move."""
    return TrainerRole(lying(context, execution_of(_with(lies)), Side.TRAINER), job)


def tampering_auditor(context: RoleContext, job: int, *, lies: Sequence[Lie]) -> AuditorRole:
    """An auditor that audits with lies, and defends them to the last move. It does not use the trainer's log."""
    return AuditorRole(lying(context, execution_of(_with(lies)), Side.CHALLENGER), job, use_log=False)


def lying_auditor(context: RoleContext, job: int, *, first_wrong_step: int) -> AuditorRole:
    """An auditor that challenges with a state that its step has not stored, and with all that would follow from it."""

    def executor(posted: Job) -> StepExecutor:
        lie = Lie(step=first_wrong_step, operator=first_store(posted.program), only_stored=True)
        return _with([lie])(posted)

    return AuditorRole(lying(context, execution_of(executor), Side.CHALLENGER), job, use_log=False)


def lazy_auditor(context: RoleContext, job: int, *, whispered: Path) -> AuditorRole:
    """An auditor in a job with blind audits that repeats nothing: it seals and opens what the trainer has whispered to
    it. It does not appeal either, since that would be work. whispered: directory of the trainer's run."""
    engine = CopyingEngine(options=context.engine.options, cache_bytes=context.engine.cache_bytes, whispered=whispered)
    return AuditorRole(replace(context, engine=engine, make_queue=ResigningQueue), job)


def _with(lies: Sequence[Lie]) -> Callable[[Job], StepExecutor]:
    return lambda posted: tampered(posted.program, posted.spec.f32_format, lies)


def hiding_trainer(context: RoleContext, job: int) -> TrainerRole:
    """A trainer that hides that its run stops."""
    execution = execution_of(lambda posted: hiding(posted.program, posted.spec.f32_format))
    return TrainerRole(lying(context, execution, Side.TRAINER), job)
