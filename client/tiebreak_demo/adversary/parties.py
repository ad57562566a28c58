"""Dishonest parties, for the demo and the tests. Each is an honest role whose context has one replaced part:
a store that publishes another log than the trainer has written, or keeps back what it says it publishes; or a queue, an
engine or batches of other files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from roundlog.execution import CPU, Batches, StepExecutor
from roundlog.log import Decision, Entries, LogReader, LogWriter
from roundlog.operators import Inexact, operator
from roundlog.program import Program, first_store
from roundlog.training import Job, log_header, log_path
from tiebreak.contract.enums import Side
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.store import Store

from tiebreak_demo.adversary.dishonest_queues import FabricatingQueue, ResigningQueue
from tiebreak_demo.adversary.engines import CopyingEngine, execution_of, lying
from tiebreak_demo.adversary.tampering import Lie, hiding, tampered


def spoiling(store: Store, spoil: Callable[[Path], None]) -> Store:
    """A store that publishes a changed copy in place of a log. spoil: changes the files of the copy."""
    return cast(Store, _SpoilingStore(store, spoil))


class _SpoilingStore:
    def __init__(self, store: Store, spoil: Callable[[Path], None]) -> None:
        self._store, self._spoil = store, spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_directory(self, path: Path) -> str:
        return self._store.add_directory(self._spoiled(path))

    def address_of_directory(self, path: Path) -> str:
        return self._store.address_of_directory(self._spoiled(path))

    def _spoiled(self, path: Path) -> Path:
        if path.name == "log":
            copy = path.with_name("spoiled-log")
            if not copy.exists():
                shutil.copytree(path, copy)
                self._spoil(copy)
            path = copy
        return path


def forge(log_dir: Path) -> None:
    """Swaps up and down in every decision of a log. Inexact operators without a decision get one for their first
    element, because a small step may have no ambiguous element."""
    job = Job.read(log_dir.parent.parent / "job")
    sizes = [node.type.numel for node in job.program.nodes]
    invented = {
        index: Entries(np.zeros(1, np.int64), np.full(1, Decision.UP, np.uint8), np.zeros(0, np.uint32))
        for index, node in enumerate(job.program.nodes)
        if sizes[index] and isinstance(operator(node.op), Inexact)
    }
    for interval in range(job.spec.intervals):
        header, path = log_header(job, interval), log_path(log_dir, interval)
        honest = path.rename(path.with_suffix(".honest"))
        with LogReader(honest, header, sizes) as reader, LogWriter(path, header) as writer:
            for step in range(header.first_step, header.first_step + header.steps):
                turned = {index: _turned(entries) for index, entries in reader.step(step).items()}
                writer.append(step, {**invented, **turned})
        honest.unlink()


def _turned(entries: Entries) -> Entries:
    decisions = entries.decisions.copy()
    two_sided = decisions != int(Decision.VALUE)
    decisions[two_sided] = int(Decision.UP) + int(Decision.DOWN) - decisions[two_sided]
    return Entries(entries.indices, decisions.astype(np.uint8), entries.values)


def withholding(store: Store, *, log: bool = True, model: bool = True) -> Store:
    """A store that names the right addresses of a log, of a model or of both, and does not publish them."""
    return cast(Store, _WithholdingStore(store, log, model))


class _WithholdingStore:
    def __init__(self, store: Store, log: bool, model: bool) -> None:
        self._store, self._log, self._model = store, log, model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_directory(self, path: Path) -> str:
        return self._store.address_of_directory(path) if self._log else self._store.add_directory(path)

    def add_file(self, path: Path) -> str:
        return self._store.address_of_file(path) if self._model else self._store.add_file(path)


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


def weight_lie(program: Program, step: int) -> Lie:
    """The lie of a generation job's provider whose model has one other weight: of the matrix in the middle of the
    model, the element in the middle, by one ulp, from a step on."""
    matrices = [
        q
        for q, node in enumerate(program.nodes)
        if node.op == "state" and len(node.type.shape) == 2 and read_slot(program, q).startswith("parameter/")
    ]
    operator = matrices[len(matrices) // 2]
    return Lie(step=step, operator=operator, element=program.nodes[operator].type.numel // 2)


def read_slot(program: Program, operator: int) -> str:
    """Name of the slot that a `state` operator reads."""
    slot = program.nodes[operator].attributes["slot"]
    assert isinstance(slot, int)
    return program.state_names[slot]


def other_weight_trainer(context: RoleContext, job: int, *, step: int) -> TrainerRole:
    """A trainer whose model has one weight that is one ulp off, from a step on. It stays in its state."""

    def executor(posted: Job) -> StepExecutor:
        return _with([weight_lie(posted.program, step)])(posted)

    return TrainerRole(lying(context, execution_of(executor), Side.TRAINER), job)


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
