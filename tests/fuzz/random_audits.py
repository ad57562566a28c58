"""Audits of a claim in every way that there is, each held to the verdict that the claim deserves."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from roundlog.execution.microbatch.analysis import samples_of
from roundlog.segment_audits.audit import audit_by_segments
from roundlog.segment_audits.plan import Reports, SegmentAudit, Sharing
from roundlog.segment_audits.segment import (
    MakeWorker,
    SegmentOrder,
    StateSource,
    WorkerAnswer,
    audit_segment,
)
from roundlog.segment_audits.workers import process_workers
from roundlog.training.job import Job, JobLimits
from roundlog.training.options import RunOptions
from roundlog.training.repetition import draw_intervals, repeat
from tiebreak.segment_audits import Stores, read_job

from tests.engine.segment_audits.audit_workers import Behaviour, Directories, Stand, named
from tests.engine.segment_audits.published_runs import require_a_game_can_be_won
from tests.fuzz.killable import Crew
from tests.fuzz.random_claims import Claim
from tests.fuzz.random_work import Reading, Running, audit


@dataclass(frozen=True, slots=True)
class _LocalStates(Directories):
    """A job in a directory, whose data may lie in these stores, and states in files."""

    stores: tuple[str, ...]

    def job(self) -> Job:
        return read_job(self.job_dir, self.limits, self.stores)


@dataclass(frozen=True, kw_only=True)
class Auditing:
    """An audit to come."""

    job: Job
    reading: Reading
    others: list[Reading]
    """How the other ranks read the job."""
    claim: Claim
    honest: list[bytes] | None
    """State roots of an honest run; None if the job's run stops."""
    in_store: bool
    """Whether the claim's states are addressed in stores."""
    where: Path
    draw: Random
    data_may_fail: bool = False
    """Whether honest workers may be unable to have the data."""

    @property
    def source(self) -> StateSource:
        limits = JobLimits(micro_batches=3)
        if self.in_store:
            return Stores(
                locations=self.reading.stores, job_cid="", job_dir=self.reading.directory, limits=limits, within=20
            )
        return _LocalStates(self.reading.directory, limits, self.reading.stores)

    @property
    def micro_batches(self) -> int:
        return self.draw.randint(1, min(3, samples_of(self.job.program)))


def whole(it: Auditing, *, by_processes: bool = True) -> str:
    """An audit of the whole run, with a log or without, by one process or by ranks."""
    most = min(3, samples_of(it.job.program))
    size = it.draw.randint(1, most) if by_processes else 1
    running = Running(micro_batches=it.micro_batches, keep_every=it.draw.choice([1, 2]))
    log = it.draw.choice([None, it.claim.run_dir / "log", it.claim.run_dir / "log"])
    share = it.draw.choice([1.0, 1.0, 0.4, 0.0])
    given = ([it.reading, *it.others], running, it.where, it.claim.roots, log, share)
    told = f"whole by {size}, {running.micro_batches} parts, log {None if log is None else share}"
    if by_processes and it.draw.random() < 0.3:
        crew = Crew(audit, size, *given)
        time.sleep(it.draw.choice([0, 0.05, 0.3]))
        crew.kill(it.draw.randrange(size))
        crew.ended()
        size = it.draw.randint(1, most)
        told += f", killed and carried on by {size}"
    if size > 1:
        right, first_wrong, roots, standing = Crew(audit, size, *given).results()[0]
    else:
        right, first_wrong, roots, standing = audit(None, *given)
    assert right is it.claim.is_right, f"{told}: right is {right} of {it.claim.what}"
    assert first_wrong == it.claim.first_wrong, f"{told}: wrong from {first_wrong}, not {it.claim.first_wrong}"
    if it.honest is not None:
        assert roots == it.honest, f"{told}: other roots than an honest run's"
    if log is None:
        assert standing == "not given", told
    elif it.honest is not None:
        fine = ("right", "sampled") if share < 1 else ("right",)
        assert (standing in fine) is (it.claim.log_is_right) or not it.claim.is_right, f"{told}: the log is {standing}"
        if it.claim.log_is_right and it.claim.is_right:
            assert standing in fine, f"{told}: the log is {standing}"
    return told


def _behaviour(draw: Random, kind: str) -> Behaviour:
    if kind == "lies":

        def answer(order: SegmentOrder) -> WorkerAnswer | None:
            found = audit_segment(order)
            roots = tuple(root if draw.random() < 0.5 else draw.randbytes(32) for root in found.roots)
            return replace(found, roots=roots)

        return answer
    if kind == "dies":
        return lambda order: None if draw.random() < 0.4 else audit_segment(order)
    return audit_segment


def _stands(draw: Random, kinds: list[str]) -> MakeWorker:
    """Workers in this process, the number of each in its name."""
    return lambda number: Stand(named(f"{kinds[number]} {number}", _behaviour(draw, kinds[number])))


class _Killed(Exception):
    """The audit is killed here."""


def by_workers(it: Auditing, *, share: float = 1.0, spawned: bool = False) -> str:
    """An audit by workers, some of which lie or die, killed and carried on by other workers."""
    options = RunOptions(micro_batches=it.micro_batches)
    told = ""
    left = it.draw.choice([0, 0, 1, 2])
    while True:
        kinds = ["honest", *it.draw.choices(["honest", "honest", "lies", "dies"], k=it.draw.randrange(3))]
        repeats = it.draw.choice([0.0, 0.0, 0.3, 1.0])
        make = process_workers(1) if spawned else _stands(it.draw, kinds)
        count = it.draw.randint(1, 60) if left else 0

        def progress(done: int, total: int) -> None:
            nonlocal count
            count -= 1
            if count == 0:
                raise _Killed

        sharing = Sharing(make=make, workers=len(kinds), repeat_share=repeats, share=share, common_disk=True)
        told += f"workers {'+'.join(kinds)}, repeats {repeats}, {options.micro_batches} parts, share {share}; "
        try:
            found = audit_by_segments(
                it.job,
                it.claim.listing,
                it.source,
                it.where,
                sharing,
                options,
                reports=Reports(progress=progress),
                poll=0.005,
            )
            break
        except _Killed:
            left -= 1
            told += "killed; "
    _judge(it, found, told, share)
    return told


def _judge(it: Auditing, found: SegmentAudit, told: str, share: float) -> None:
    if found.wrong is not None:
        assert not it.claim.is_right, f"{told}an honest trainer is accused of interval {found.wrong.interval}"
        claimed = it.claim.roots[: len(found.state_roots)]
        before = found.state_roots[found.wrong.interval - 1] if found.wrong.interval else None
        if it.honest is not None and before == (it.honest[found.wrong.interval - 1] if before else None):
            assert found.wrong.root == it.honest[found.wrong.interval], f"{told}another root than an honest run's"
        if len(claimed) == it.job.spec.intervals:
            require_a_game_can_be_won(it.job, found, claimed, it.where)
    elif share == 1:
        assert it.claim.is_right, f"{told}a lie is not found: {it.claim.what}"
        assert found.is_whole and found.state_roots == it.honest, f"{told}not the whole run"
    else:
        assert found.drawn == max(1, math.ceil(share * found.units)), told
        if it.claim.first_wrong is not None:
            assert it.claim.first_wrong not in found.right, f"{told}a wrong interval counts as right"
        caught = 1.0 if found.is_whole else found.drawn / found.units
        assert abs(found.unnoticed(1) - (1 - caught)) < 1e-9, told
    doubted = [one for one in found.distrusted if "honest" in one]
    assert not doubted or (it.data_may_fail and all("RemoteDataError" in one for one in doubted)), f"{told}{doubted}"


def repeated(it: Auditing) -> str:
    """A repetition of a share of the intervals, as of a receipt."""
    intervals = draw_intervals(it.job.spec.intervals, it.draw.choice([0.3, 1.0]))
    found = repeat(it.job, it.claim.roots, it.claim.run_dir, it.where, intervals, RunOptions())
    if found.first_wrong is not None:
        assert not it.claim.is_right, f"repeated: an honest trainer is accused of interval {found.first_wrong}"
    elif len(intervals) == it.job.spec.intervals:
        assert it.claim.is_right, f"repeated: a lie is not found: {it.claim.what}"
    return f"repeated {len(intervals)}"


def any_audit(it: Auditing) -> str:
    """One audit, drawn."""
    kind = it.draw.choice(["whole", "whole", "workers", "workers", "workers", "share", "repeated"])
    began = time.monotonic()
    if kind == "whole":
        told = whole(it)
    elif kind == "repeated":
        told = repeated(it)
    elif kind == "share":
        told = by_workers(it, share=it.draw.choice([0.01, 0.4, 0.9]))
    else:
        told = by_workers(it, spawned=it.draw.random() < 0.03)
    return f"{told} ({time.monotonic() - began:.1f} s)"
