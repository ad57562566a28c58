"""An honest run, what liars make of it, and what a game asks of an audit that has found one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from roundlog.capture import Task
from roundlog.commitments import MerkleTree, state_root
from roundlog.segment_audits.audit import audit_by_segments
from roundlog.segment_audits.plan import Reports, SegmentAudit, Sharing
from roundlog.segment_audits.segment import Listing, MakeWorker
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.repetition import replay_interval
from roundlog.training.run import Run
from roundlog.training.run_files import load_kept, save_checkpoint
from roundlog.training.trainer import Trainer

from tests.engine.segment_audits.audit_workers import honest, listing_of, source_of
from tests.engine.tasks import linear_task

INTERVALS = 8


@dataclass(frozen=True)
class Trained:
    """A job and an honest run of it, in a directory."""

    directory: Path
    job: Job
    roots: list[bytes]

    @property
    def run(self) -> Path:
        return self.directory / "run"

    def listing(self, every: int = 1) -> Listing:
        return listing_of(self.job, self.run, self.roots, every)

    def audit(
        self,
        run_dir: Path,
        listing: Listing | None = None,
        make: MakeWorker = honest,
        workers: int = 2,
        *,
        reports: Reports | None = None,
        challenged: bytes | None = None,
        **sharing: float,
    ) -> SegmentAudit:
        shared = Sharing(make=make, workers=workers, common_disk=True, **sharing)
        source = source_of(self.directory / "job")
        return audit_by_segments(
            self.job,
            listing or self.listing(),
            source,
            run_dir,
            shared,
            challenged=challenged,
            reports=reports,
            poll=0.01,
        )


def train(directory: Path) -> Trained:
    """Trains the job of these tests, whose steps leave a tensor as it is."""

    def task() -> Task:
        made = linear_task(steps=2 * INTERVALS, interval=2)
        made.model.get_parameter("bias").requires_grad_(False)
        return made

    job = Job.from_task(task, compare=False)
    job.write(directory / "job")
    return Trained(directory, job, Trainer(job, directory / "run").run().state_roots)


class Liar:
    """A copy of a run with other states in it, and the roots that it claims then."""

    def __init__(self, trained: Trained, directory: Path) -> None:
        self.trained, self.run, self.job = trained, directory, trained.job
        shutil.copytree(trained.run, directory)
        self.roots = list(trained.roots)

    def lie(self, interval: int, *, consistent: bool, by: float = 1e-3) -> None:
        """Another state after an interval. consistent: all later ones follow from it."""
        states, *_ = load_kept(self.run, self.job, (interval + 1) * self.job.spec.interval)
        states[0] = states[0] + by
        self._put(interval, states)
        if consistent:
            self._follow(interval, states)

    def _follow(self, interval: int, states: list[torch.Tensor]) -> None:
        """Goes on from the state after an interval as an honest trainer would."""
        length, run = self.job.spec.interval, Run(self.job, self.run, RunOptions(continue_after_stop=True))
        for step, after in run.replay((interval + 1) * length, states):
            if (step + 1) % length == 0:
                self._put(step // length, after)

    def _put(self, interval: int, states: list[torch.Tensor]) -> None:
        save_checkpoint(self.run, self.job, (interval + 1) * self.job.spec.interval, states)
        self.roots[interval] = state_root(states)

    def listing(self, every: int = 1) -> Listing:
        return listing_of(self.job, self.run, self.roots, every)


def first_difference(ours: list[bytes], theirs: list[bytes]) -> int:
    return next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)


def require_a_game_can_be_won(job: Job, found: SegmentAudit, claimed: list[bytes], run_dir: Path) -> None:
    """What a game asks for: the trees differ first at an interval that the contract finds wrong, from the state that
    both sides agree on, and this party has the steps of it."""
    assert found.wrong is not None and found.checkpoint_root != MerkleTree(claimed).root
    interval = found.wrong.interval
    assert first_difference(found.state_roots, claimed) == interval
    assert found.state_roots[interval + 1 :] == claimed[interval + 1 :], "the rest is the trainer's own"
    run = Run(job, run_dir, RunOptions(continue_after_stop=True))
    assert run.recorded_roots() == found.state_roots
    steps = replay_interval(run, interval)
    assert steps[-1] == found.state_roots[interval] != claimed[interval]
