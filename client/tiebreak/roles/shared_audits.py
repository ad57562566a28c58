"""Audits of a claim by many workers, from the checkpoints that its trainer has published."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roundlog.commitments import MerkleTree
from roundlog.segment_audits import (
    CHECKPOINTS_FILE,
    Listing,
    ListingError,
    NoWorkersError,
    Reports,
    SegmentAudit,
    Sharing,
    audit_by_segments,
    keep_published,
    read_listing,
    units,
)
from roundlog.training import Job, Run

from tiebreak.roles.background_jobs import BackgroundJob, Interrupted, Priority
from tiebreak.roles.fetched_content import Refused, job_limits
from tiebreak.roles.notices import What
from tiebreak.segment_audits import Stores

if TYPE_CHECKING:
    from tiebreak.contract.structs import JobView
    from tiebreak.roles.engine import DisputeTrees
    from tiebreak.roles.long_work import LongWork

SHARED = "shared"
"""Name of such an audit's directory in the job's room."""

_STATES_SHARE = 16
"""Part of the remaining time that fetching all published states may take, one after another: 1 / `_STATES_SHARE`. A
state that drips is not waited for: its intervals are executed from the one before it."""
_STATE_SECONDS = 1.0, 600.0
"""Least and most seconds for one state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """The workers of an auditor, and the content stores that they fetch from."""

    sharing: Sharing
    stores: tuple[str, ...]


class SharedAudit:
    """An auditor's audit of one claim by many workers."""

    def __init__(self, long_work: LongWork, workers: Workers) -> None:
        self._long_work = long_work
        self._workers = workers
        self.unaudited: str | None = None
        """Part of the claim that was not audited, in one clause; None if nothing is missing."""

    def run(
        self,
        posted: JobView,
        job: Job,
        log: Path | None,
        background_job: BackgroundJob[DisputeTrees],
        priority: Priority,
        *,
        challenged: bytes | None,
    ) -> DisputeTrees | None:
        """Return the dispute trees of the audit; None if it cannot be made by many workers, and has to be made as a
        whole.

        log: directory of the trainer's logs, if they can be had. challenged: the root that this account has challenged
        with; None if it has not. Raises Interrupted, Refused."""
        work, self.unaudited = self._long_work, None
        listing = self._listing(posted, job, log)
        if listing is None:
            return None
        engine = work.context.engine
        seconds = 0.0 if priority.bonded else engine.step_seconds(job)
        if not priority.bonded:
            # The state before a wrong interval is kept, so a challenge executes no other one.
            work.require_time(posted, job, seconds, intervals_apart=1)
        left = (priority.deadline - work.context.now()) / _STATES_SHARE / len(listing.states)
        room = work.room(posted)
        source = Stores(
            locations=self._workers.stores,
            job_cid="" if self._workers.sharing.common_disk else posted.job_cid,
            job_dir=room / "job",
            limits=job_limits(work.context),
            job_bytes=work.context.limits.job_bytes,
            within=min(max(left, _STATE_SECONDS[0]), _STATE_SECONDS[1]),
        )
        reports = Reports(
            progress=self._progress(background_job, job), event=lambda text: work.tell(What.WARNING, text)
        )
        try:
            found = audit_by_segments(
                job,
                listing,
                source,
                room / SHARED,
                self._workers.sharing,
                engine.options_for(job),
                challenged=challenged,
                reports=reports,
            )
        except NoWorkersError as error:
            self._tell_why_as_a_whole(str(error))
            return None
        self._tell(found)
        if challenged is not None and MerkleTree(found.state_roots).root != challenged:
            # A whole audit has made the challenge, whose directory is lost.
            self._tell_why_as_a_whole(f"no wrong interval gives the root 0x{challenged.hex()} of its challenge")
            return None
        if found.wrong is None and not found.is_whole:
            self.unaudited = f"only {len(found.right)} of its {job.spec.intervals} intervals were audited"
        elif found.is_whole and posted.terms.attestations_needed:
            # An attester may have to defend the claim in an appeal, after the trainer has withdrawn what it serves.
            apart = keep_published(Run(job, room / SHARED), listing, source)
            try:
                work.require_time(posted, job, seconds, intervals_apart=apart)
            except Refused as error:
                # An audit as a whole keeps more states.
                self._tell_why_as_a_whole(f"with the states that are published, {error}")
                return None
        return engine.trees(job, room / SHARED, found.state_roots)

    def _listing(self, posted: JobView, job: Job, log: Path | None) -> Listing | None:
        """Return the published listing, if its roots are the committed ones and it has states to start from."""
        claim = posted.claim
        why = f"the log {claim.log_cid} cannot be had" if log is None else None
        if log is not None:
            try:
                listing = read_listing(log / CHECKPOINTS_FILE, job.spec)
                if listing.complete and MerkleTree(listing.roots).root == claim.checkpoint_root:
                    if len(units(listing)) > 1:
                        return listing
                    why = "the trainer has published no checkpoints"
                else:
                    why = "the list of checkpoints has other roots than the claimed ones"
            except ListingError as error:
                why = str(error)
        self._tell_why_as_a_whole(why)
        return None

    def _tell_why_as_a_whole(self, why: str | None) -> None:
        self._long_work.tell(What.WARNING, f"audits as a whole, in this process: {why}")

    def _progress(self, background_job: BackgroundJob[DisputeTrees], job: Job) -> Callable[[int, int], None]:
        began = time.monotonic()

        def progress(done: int, total: int) -> None:
            if self._long_work.stops():
                raise Interrupted
            steps = done * job.spec.interval
            seconds = (time.monotonic() - began) / steps if steps else 0.0
            background_job.taken(steps - 1, total * job.spec.interval, seconds, may_pause=True)

        return progress

    def _tell(self, found: SegmentAudit) -> None:
        tell = self._long_work.tell
        for text in found.distrusted:
            tell(What.WARNING, f"does not believe {text}")
        if found.wrong is not None:
            tell(What.COMPUTED, f"interval {found.wrong.interval + 1} of {len(found.state_roots)} is wrong")
