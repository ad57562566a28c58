"""Parties that break the rules, for the demo and the tests: each is an honest one but for a single thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from roundlog.commitments import node_hash
from roundlog.execution.batches import Batches
from roundlog.execution.executor import Executor
from roundlog.log import LogReader, LogWriter
from roundlog.log.entries import Decision, Entries
from roundlog.operators import Inexact, operator
from roundlog.program import first_store
from roundlog.training import job as engine
from roundlog.training.trainer import log_header, log_path

from tiebreak.adversary.tampering import CunningEvidence, Lie, TamperedExecutor
from tiebreak.chain.game import Call
from tiebreak.chain.records import Children, Side
from tiebreak.roles.auditor import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.desk import Desk, Order
from tiebreak.roles.evidence import Evidence
from tiebreak.roles.trainer import TrainerRole


class PoisonedBatches(Batches):
    """The prescribed batches, but in one step every label is another one.

    Labels are the last int64 field of the data set."""

    def __init__(self, job: engine.Job, step: int) -> None:
        super().__init__(job.dataset, job.spec)
        self.step = step
        self._labels = max(i for i, field in enumerate(job.dataset.values()) if field.dtype == torch.int64)
        self._classes = int(list(job.dataset.values())[self._labels].max()) + 1

    def load(self, step: int) -> list[torch.Tensor]:
        fields = super().load(step)
        if step == self.step:
            fields[self._labels] = (fields[self._labels] + 1) % self._classes
        return fields


class PoisoningTrainer(TrainerRole):
    """Trains one step on wrong labels, and is honest about everything else."""

    def __init__(self, context: RoleContext, job: int, *, poisoned_step: int) -> None:
        super().__init__(context, job)
        self._poisoned_step = poisoned_step

    def batches(self, job: engine.Job) -> PoisonedBatches:
        return PoisonedBatches(job, self._poisoned_step)


class FabricatingTrainer(TrainerRole):
    """Claims a root with nothing below it but its last leaf, so that no other leaf can ever be opened."""

    def claim(self, evidence: Evidence) -> tuple[bytes, bytes, tuple[bytes, ...]]:
        _, final, honest_proof = super().claim(evidence)
        proof = tuple(sha256(b"made up" + sibling).digest() for sibling in honest_proof)
        node = sha256(b"\x00" + final).digest()
        index = len(evidence.claim) - 1
        for bit, sibling in enumerate(proof):
            node = node_hash(sibling, node) if index >> bit & 1 else node_hash(node, sibling)
        return node, final, proof


class LogForgingTrainer(TrainerRole):
    """Trains honestly, but publishes a log in which every decision between up and down is turned round, and which has
    one for the first element of every inexact operator that has none: a small step may have nothing in doubt."""

    def log_to_publish(self, log_dir: Path) -> Path:
        forged = log_dir.with_name("forged-log")
        forged.mkdir(exist_ok=True)
        job = engine.Job.read(log_dir.parent.parent / "job")
        sizes = [node.type.numel for node in job.program.nodes]
        invented = {
            index: Entries(np.zeros(1, np.int64), np.full(1, Decision.UP, np.uint8), np.zeros(0, np.uint32))
            for index, node in enumerate(job.program.nodes)
            if sizes[index] and isinstance(operator(node.op), Inexact)
        }
        for interval in range(job.spec.intervals):
            header = log_header(job, interval)
            with (
                LogReader(log_path(log_dir, interval), header, sizes) as reader,
                LogWriter(log_path(forged, interval), header) as writer,
            ):
                for step in range(header.first_step, header.first_step + header.steps):
                    turned = {index: _turned(entries) for index, entries in reader.step(step).items()}
                    writer.append(step, {**invented, **turned})
        return forged


def _turned(entries: Entries) -> Entries:
    decisions = entries.decisions.copy()
    two_sided = decisions != int(Decision.VALUE)
    decisions[two_sided] = int(Decision.UP) + int(Decision.DOWN) - decisions[two_sided]
    return Entries(entries.indices, decisions.astype(np.uint8), entries.values)


class TamperingTrainer(TrainerRole):
    """Trains with lies, and defends them to the last."""

    def __init__(self, context: RoleContext, job: int, *, lies: Sequence[Lie]) -> None:
        super().__init__(context, job)
        self._lies = tuple(lies)

    def executor(self, job: engine.Job) -> Executor:
        return TamperedExecutor(job.program, job.spec.rounding_bits, self._lies)

    def alter(self, evidence: Evidence) -> Evidence:
        return CunningEvidence(evidence, Side.TRAINER)


class TamperingAuditor(AuditorRole):
    """Audits with lies, and defends them to the last. It has no use for the trainer's log."""

    def __init__(self, context: RoleContext, job: int, *, lies: Sequence[Lie] = ()) -> None:
        super().__init__(context, job, use_log=False)
        self._lies = tuple(lies)

    def lies(self, job: engine.Job) -> Sequence[Lie]:
        return self._lies

    def executor(self, job: engine.Job) -> Executor:
        return TamperedExecutor(job.program, job.spec.rounding_bits, self.lies(job))

    def alter(self, evidence: Evidence) -> Evidence:
        return CunningEvidence(evidence, Side.CHALLENGER)


class LyingAuditor(TamperingAuditor):
    """Challenges with a state that one step has never stored, and with all that would follow from it."""

    def __init__(self, context: RoleContext, job: int, *, first_wrong_step: int) -> None:
        super().__init__(context, job)
        self._first_wrong_step = first_wrong_step

    def lies(self, job: engine.Job) -> Sequence[Lie]:
        return [Lie(step=self._first_wrong_step, operator=first_store(job.program), only_stored=True)]


class SilentDesk(Desk):
    """Sends everything but moves: of these only the first `moves`."""

    moves = 0

    def put(self, order: Order) -> bool:
        if order.call.function in _MOVES:
            if self.moves == 0:
                return False
            self.moves -= 1
        return super().put(order)


_MOVES = {
    *("bisect", "openLevel", "openOperator", "proveStore", "postChunk"),
    *("proveElement", "disputeSum", "openPartials", "proveSegment"),
}


class CheatingDesk(Desk):
    """Sends bisection moves with the halves swapped, which no hash supports."""

    def put(self, order: Order) -> bool:
        if order.call.function == "bisect":
            game, opened, below = order.call.arguments
            assert isinstance(opened, Children)
            swapped = Children(left=opened.right, right=opened.left)
            order = replace(order, call=Call.of("bisect", game, swapped, below))
        return super().put(order)


def silenced(context: RoleContext, *, moves: int = 0) -> RoleContext:
    """The context of a party that falls silent after its first moves."""
    desk = SilentDesk(context.contract, context.sender)
    desk.moves = moves
    return with_desk(context, desk)


def cheating(context: RoleContext) -> RoleContext:
    """The context of a party that lies about the children of its nodes."""
    return with_desk(context, CheatingDesk(context.contract, context.sender))


def with_desk(context: RoleContext, desk: Desk) -> RoleContext:
    """A context with another desk, which only a dishonest party has a use for. To be made last: every copy of a context
    has a desk of its own."""
    moved = replace(context)
    object.__setattr__(moved, "desk", desk)
    return moved
