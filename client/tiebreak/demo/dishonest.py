"""Parties that break the rules, for the demo and the tests: each is an honest one but for a single thing."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from roundlog import job as engine
from roundlog.batches import Batches
from roundlog.commitments import node_hash
from roundlog.log import LogReader, LogWriter
from roundlog.log.entries import Decision, Entries
from roundlog.trainer import log_header, log_path

from tiebreak.chain.errors import ContractError
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.node import Receipt
from tiebreak.chain.records import Children, LeafOpening, NextRoot, Side
from tiebreak.roles.auditor import AuditorRole
from tiebreak.roles.evidence import Evidence
from tiebreak.roles.station import Station
from tiebreak.roles.trainer import TrainerRole

C = TypeVar("C", bound=VerificationGame)


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

    def __init__(self, station: Station, job: int, *, poisoned_step: int) -> None:
        super().__init__(station, job)
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
    """Trains honestly, but publishes a log in which every decision between up and down is turned round."""

    def log_to_publish(self, log_dir: Path) -> Path:
        forged = log_dir.with_name("forged-log")
        forged.mkdir(exist_ok=True)
        job = engine.Job.read(log_dir.parent.parent / "job")
        sizes = [node.type.numel for node in job.program.nodes]
        for interval in range(job.spec.intervals):
            header = log_header(job, interval)
            with (
                LogReader(log_path(log_dir, interval), header, sizes) as reader,
                LogWriter(log_path(forged, interval), header) as writer,
            ):
                for step in range(header.first_step, header.first_step + header.steps):
                    writer.append(step, {index: _turned(entries) for index, entries in reader.step(step).items()})
        return forged


def _turned(entries: Entries) -> Entries:
    decisions = entries.decisions.copy()
    two_sided = decisions != int(Decision.VALUE)
    decisions[two_sided] = int(Decision.UP) + int(Decision.DOWN) - decisions[two_sided]
    return Entries(entries.indices, decisions.astype(np.uint8), entries.values)


class MadeUpEvidence(Evidence):
    """Right before a step, made up from that step on; consistent, so that it can be defended down to the verdict."""

    def __init__(self, honest: Evidence, first_wrong_step: int) -> None:
        self._first_wrong_step = first_wrong_step
        interval = honest.job.spec.interval
        roots = [self._bent((i + 1) * interval - 1, root) for i, root in enumerate(honest.claim.payloads)]
        super().__init__(honest.job, honest.run_dir, roots)

    def _bent(self, step: int, root: bytes) -> bytes:
        return root if step < self._first_wrong_step else sha256(b"made up" + root).digest()

    def _step_roots(self, interval: int) -> list[bytes]:
        first = interval * self.job.spec.interval
        return [self._bent(first + i, root) for i, root in enumerate(super()._step_roots(interval))]


class LyingAuditor(AuditorRole):
    """Challenges with made-up states from one step on."""

    def __init__(self, station: Station, job: int, *, first_wrong_step: int) -> None:
        super().__init__(station, job)
        self._first_wrong_step = first_wrong_step

    def alter(self, evidence: Evidence) -> Evidence:
        return MadeUpEvidence(evidence, self._first_wrong_step)


class SilentContract(VerificationGame):
    """Sends everything but moves: of these only the first `moves`."""

    moves = 0

    def _speak(self) -> None:
        if self.moves == 0:
            raise ContractError("FellSilentOnPurpose", {})
        self.moves -= 1

    def bisect(self, game: int, opened: Children, next: Children) -> Receipt:
        self._speak()
        return super().bisect(game, opened, next)

    def open_level(self, game: int, side: Side, leaf: LeafOpening, next: NextRoot) -> Receipt:
        self._speak()
        return super().open_level(game, side, leaf, next)

    def reveal_leaf(self, game: int, side: Side, leaf: LeafOpening) -> Receipt:
        self._speak()
        return super().reveal_leaf(game, side, leaf)


class CheatingContract(VerificationGame):
    """Sends bisection moves with the halves swapped, which no hash supports."""

    def bisect(self, game: int, opened: Children, next: Children) -> Receipt:
        return super().bisect(game, Children(left=opened.right, right=opened.left), next)


def silenced(station: Station, *, moves: int = 0) -> Station:
    """The station of a party that falls silent after its first moves."""
    contract = _rewired(SilentContract, station)
    contract.moves = moves
    return replace(station, contract=contract)


def cheating(station: Station) -> Station:
    """The station of a party that lies about the children of its nodes."""
    return replace(station, contract=_rewired(CheatingContract, station))


def _rewired(kind: type[C], station: Station) -> C:
    honest = station.contract
    return kind(honest.node, honest.address, station.sender, first_block=honest.first_block)
