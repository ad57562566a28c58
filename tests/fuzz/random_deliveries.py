"""Deliveries of a job by a store that loses, damages or delays blocks: fetched whole, or without its data and then
trained and audited, all of it or an interval.

Their promise: an attempt ends soon, with one sentence or with the honest roots; what has failed goes on where the store
is mended, or by another store that has the blocks; an honest trainer is never accused."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from roundlog.data import summarised
from roundlog.segment_audits.segment import Segment, SegmentOrder, StateSource, audit_segment
from roundlog.segment_audits.workers import NoWorkersError
from roundlog.storage import StorageError
from roundlog.training.job import Job, JobError, JobLimits
from roundlog.training.trainer import Trainer
from tiebreak.segment_audits import fetch_named, fetch_without_data, job_plan, read_job
from tiebreak.store import FolderStore, StoreError, dag_builder, replicated_store
from tiebreak.store.replicated_store import ReplicatedStore
from tiebreak.store.store import Store

from tests.engine.segment_audits.audit_workers import Directories
from tests.engine.segment_audits.published_runs import Trained
from tests.fuzz import random_audits
from tests.fuzz.random_audits import Auditing
from tests.fuzz.random_claims import LIES, Claim, claim_of
from tests.fuzz.random_work import Reading
from tests.fuzz.shaky_store import ShakyStore

_MOST_SECONDS = 60.0
"""Most seconds for an attempt: far more than the work takes on a slow machine."""
_TOLD = (StoreError, StorageError, JobError, NoWorkersError)
"""Errors that are one sentence for people."""
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class _Elsewhere(Reading):
    """A job without its data, which come from a store of this process."""

    store: Store

    def read(self, limits: JobLimits) -> Job:
        return read_job(self.directory, limits, lambda: self.store)


@dataclass(frozen=True, eq=False)
class _Source(Directories):
    """Such a job for workers, and states in files."""

    store: Store

    def job(self) -> Job:
        return read_job(self.job_dir, self.limits, lambda: self.store)


@dataclass(frozen=True, kw_only=True)
class _Auditing(Auditing):
    """An audit of such a job."""

    reading: _Elsewhere

    @property
    def source(self) -> StateSource:
        return _Source(self.reading.directory, JobLimits(micro_batches=3), self.reading.store)


@dataclass
class Delivery:
    """A delivery on its way, of a job and an honest run of it."""

    trained: Trained
    room: Path
    draw: Random
    told: list[str] = field(default_factory=list)
    failures: int = 0

    def play(self) -> str:
        """Play it, and says what it was."""
        parts, chunk = self.draw.random() < 0.5, self.draw.choice([4096, 20_000, dag_builder.CHUNK])
        self.shaky = ShakyStore(self.room / "shaky", self.draw, parts=parts)
        self.chance, self.passing = self.draw.choice([0.0, 0.05, 0.2, 0.5]), self.draw.random() < 0.4
        self.good: FolderStore | None = None
        if self.draw.random() < 0.2:
            self.good = FolderStore(self.room / "good")
        elif self.draw.random() < 0.3:
            self.good = ShakyStore(self.room / "other", self.draw, parts=self.draw.random() < 0.5, beside=self.shaky)
            self.good.spoil(0.5, passing=False)
        with patch.object(dag_builder, "CHUNK", chunk):  # as any publisher may cut files
            cid = self.shaky.add_directory(self.trained.directory / "job")
            if self.good is not None:
                assert self.good.add_directory(self.trained.directory / "job") == cid
        store: Store = self.shaky if self.good is None else ReplicatedStore([self.shaky, self.good], warn=_nothing)
        is_stuck = type(self.good) is FolderStore and self.draw.random() < 0.2
        self.told.append(
            f"delivered in blocks of {chunk}{', by parts' if parts else ''}, {self.chance} wrong"
            f"{' at first' if self.passing else ''}{'' if self.good is None else f', or by {type(self.good).__name__}'}"
            f"{', stuck' if is_stuck else ''}"
        )
        self.shaky.stuck = is_stuck
        try:
            with patch.object(replicated_store, "_PATIENCE", 2.0):  # a good store on a busy machine answers in less
                if self.draw.random() < 0.5:
                    self._whole(store, cid)
                self._without_data(store, cid)
        except BaseException as error:
            error.add_note(", ".join(self.told))
            raise
        return f"{', '.join(self.told)}; {self.failures} attempts failed"

    def _had(self, attempt: Callable[[], Any]) -> Any:
        """What an attempt comes to, tried again and then with a store that was mended."""
        self.shaky.spoil(self.chance, passing=self.passing)
        for left in (2, 1, 0):
            began = time.monotonic()
            try:
                return attempt()
            except _TOLD as error:
                assert "\n" not in str(error) and len(str(error)) > 10, f"not a sentence: {error!r}"
                assert self.good is None, f"another store has the block: {error}"
                assert self.chance, f"nothing is wrong: {error}"
                self.failures += 1
            finally:
                took = time.monotonic() - began
                assert took < _MOST_SECONDS, f"an attempt has taken {took:.0f} s"
            if not left:
                self.shaky.mend()
        return attempt()

    def _whole(self, store: Store, cid: str) -> None:
        directory = self.room / "whole"
        self._had(lambda: fetch_named(store, cid, directory, job_plan(), warn=_refuse, max_bytes=_MOST_BYTES))
        got = Job.read(directory, JobLimits())
        assert got.spec == self.trained.job.spec, "another job is fetched than was published"
        for name, ours in got.dataset.items():
            theirs = self.trained.job.dataset[name]
            assert summarised(ours).tree.root == summarised(theirs).tree.root, f"{name} is fetched as something else"
        self.told.append("whole")

    def _without_data(self, store: Store, cid: str) -> None:
        directory, before = self.room / "bare", self.shaky.given
        self._had(lambda: fetch_without_data(store, cid, directory, warn=_refuse, max_bytes=_MOST_BYTES))
        reading = _Elsewhere(directory=directory, stores=(), held=True, store=store)
        if self.draw.random() < 0.5:
            self._had(partial(self._train, reading))
        for number in range(self.draw.randint(1, 3)):
            (directory / "data.cache").unlink(missing_ok=True)
            what = self.draw.choice([*LIES, "nothing", "nothing", "unlisted"])
            where = self.room / f"of {number}"
            claim = claim_of(self.trained, where / "claimed", what, self.draw, None)
            self._had(self._audit(reading, claim, where))
        self.told.append(f"{self.shaky.given - before} bytes given")

    def _train(self, reading: Reading) -> None:
        run_dir = self.room / "trained elsewhere"
        found = Trainer(reading.read(JobLimits()), run_dir).run().state_roots
        assert found == self.trained.roots, "wrong data have made a root"
        self.told.append("trained")

    def _audit(self, reading: _Elsewhere, claim: Claim, where: Path) -> Callable[[], None]:
        kind = self.draw.choice(["whole", "workers", "workers", "share", "interval", "interval", "repeated"])
        interval = self.draw.randrange(self.trained.job.spec.intervals)

        def attempt() -> None:
            it = _Auditing(
                job=self.draw.choice([self.trained.job, reading.read(JobLimits(micro_batches=3))]),
                reading=reading,
                others=[],
                claim=claim,
                honest=self.trained.roots,
                in_store=False,
                where=where / "audit",
                draw=self.draw,
                data_may_fail=True,
            )
            if kind == "interval":
                self.told.append(_one_interval(it, interval))
            elif kind == "whole":
                self.told.append(random_audits.whole(it, by_processes=False))
            elif kind == "repeated":
                self.told.append(random_audits.repeated(it))
            else:
                share = self.draw.choice([0.01, 0.5]) if kind == "share" else 1.0
                self.told.append(random_audits.by_workers(it, share=share))

        return attempt


def _one_interval(it: Auditing, interval: int) -> str:
    """An audit of one interval by one worker, which starts from a state as claimed."""
    if interval not in it.claim.listing.starts():
        return f"interval {interval} from no state"
    start = it.claim.listing.start(interval, it.job.spec.initial_state_root)
    answer = audit_segment(SegmentOrder(source=it.source, segment=Segment(interval, interval + 1), start=start))
    assert it.honest is not None
    if answer.unusable is not None:
        assert not it.claim.is_right, f"an honest state is not used: {answer.unusable}"
    elif start.root == (it.honest[interval - 1] if interval else it.job.spec.initial_state_root):
        assert answer.roots == (it.honest[interval],), "wrong data have made a root"
    blocks = sum(one.nbytes + (1 << 14) for one in it.job.dataset.values())
    assert answer.fetched <= blocks, f"{answer.fetched} bytes are fetched of {blocks}"
    return f"interval {interval} of {it.claim.what}"


def _nothing(text: str) -> None:
    """Hear a warning."""


def _refuse(warning: str) -> None:
    raise AssertionError(f"an honest job is warned of: {warning}")
