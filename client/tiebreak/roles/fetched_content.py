"""Fetching of published content. All of it is hostile until it is shown to be what the chain commits to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from roundlog import training as engine
from roundlog.adjudication import largest_proof
from roundlog.log import LogError
from roundlog.number_format import FLOAT32
from roundlog.program import Program
from roundlog.rounding import checked_header
from roundlog.spec import SpecError, TrainingSpec
from roundlog.training import kept_bytes, log_header, log_path, most_job_bytes, most_state_bytes, wrong_state

from tiebreak.contract.structs import PostedSpec
from tiebreak.segment_audits import fetch_named, job_plan, log_plan
from tiebreak.store.staging import require_space, set_back, size_of
from tiebreak.store.store_errors import (
    ContentTooLarge,
    InvalidCid,
    MalformedContent,
    StoreError,
    StoreUnavailable,
    UnsafeName,
)

if TYPE_CHECKING:
    from tiebreak.contract.structs import JobView
    from tiebreak.roles.context import RoleContext
    from tiebreak.store.dag_reader import Plan

MOST_PROOF_BYTES = 120_000
"""Most bytes of a proof, a little less than the 128 KiB above which nodes do not relay a transaction."""

_NEVER_BETTER = (InvalidCid, MalformedContent, UnsafeName, ContentTooLarge)
"""Errors that no second attempt would change: a CID names its bytes for good, so content refused for these reasons is
always refused."""


def unanswerable_spec(spec: TrainingSpec) -> str | None:
    """Return the reason, in one clause, why disputes under a spec could not be decided; None if they could."""
    if spec.log_decides:
        return (
            f"the spec's rounding_policy is {spec.rounding_policy} ({spec.policy_name}), under which the trainer's log "
            "decides and nobody can tell right from wrong: such a job is for use without a chain"
        )
    if spec.f32_format != FLOAT32:
        return (
            f"the spec's rounding_bits are {spec.rounding_bits}, to which the contract does not round exact operators: "
            "such a job is for use without a chain"
        )
    return None


def unanswerable_program(program: Program, spec: TrainingSpec) -> str | None:
    """Return the reason, in one clause, why a party that is right about a program could not show it; None if it
    could."""
    size, operator = largest_proof(program, spec)
    if size > MOST_PROOF_BYTES:
        return (
            f"a proof of one element of {program.describe(operator)} can take {size} bytes, more than the "
            f"{MOST_PROOF_BYTES} of a transaction: make the lists that are joined smaller"
        )
    return None


class Refused(Exception):
    """Content, or a whole job, is not acceptable to this role. The message is one sentence."""


class Damaged(Refused):
    """Files of a job are not what the chain commits to. Of files on this disk, others may still be had."""


def require_decidable(context: RoleContext, posted: JobView) -> None:
    """Check a job by its spec on the chain alone: whether disputes about it can be decided, and its number of steps.

    Raises Refused if this role will not work on it, NoCode if the node does not show its adjudicator now."""
    limits = context.limits
    try:
        posted.spec.training.validate()
    except SpecError as error:
        raise Refused(f"the posted spec cannot be followed: {error}") from error
    if (why := unanswerable_spec(posted.spec.training)) is not None:
        raise Refused(why)
    if posted.spec.training.steps > limits.steps:
        raise Refused(f"the job has {posted.spec.training.steps} steps, more than the {limits.steps} allowed")
    adjudicator = posted.spec.adjudicator
    if not context.queue.is_adjudicator(adjudicator):
        raise Refused(
            f"the posted adjudicator {adjudicator} is not this version's, so that nobody knows what it would compute"
        )


@dataclass(frozen=True, kw_only=True)
class JobContent:
    """The content of a posted job, fetched into its room from the store. within: most seconds of a fetch; None: any.
    bonded: whether a bond is at stake in the job. warn: called with what is damaged on the disk, of which the wrong
    parts are fetched again, once, and with what a directory has that it is not fetched for."""

    context: RoleContext
    posted: JobView
    room: Path
    within: float | None = None
    bonded: bool = False
    warn: Callable[[str], None] = lambda text: None

    def job(self) -> engine.Job:
        """Return the job, read from the room or else fetched. The other files are fetched only if the program and the
        spec are those of the posted job, and acceptable, and if the disk has room for them and for a run. Files that
        are refused are removed.

        Raises Refused if the files are of another job, exceed the context's limits, or allow disputes that cannot be
        decided; StoreError if the files cannot be had at present, or not in time."""
        context, posted, directory = self.context, self.posted, self.room / "job"
        if directory.exists():
            try:
                return read_files(context, posted, directory)
            except Damaged as error:
                self.warn(f"files of the job are damaged on this disk, and what is wrong is fetched again: {error}")
                set_back(directory, posted.job_cid)

        def accept(program: Program, spec: TrainingSpec) -> None:
            _require_posted(posted, spec)
            _require_acceptable(context, program, spec)
            need = sum(most_job_bytes(program, spec).values())
            need += kept_bytes(program, spec, context.engine.options.keep_every)
            context.rooms.claim(self.room, need, bonded=self.bonded, told=self.warn)
            if not self.bonded:  # else most of it is there already
                require_space(context.directory, need - size_of(self.room))

        try:
            self._fetch(posted.job_cid, directory, job_plan(accept), context.limits.job_bytes)
        except _NEVER_BETTER as error:
            raise Refused(f"the job's files are not acceptable: {error}") from error
        try:
            return read_files(context, posted, directory)
        except Refused:
            if not self.bonded:
                shutil.rmtree(directory)
            raise

    def log(self) -> Path | None:
        """Return the directory of the trainer's logs; None if they cannot be had in time. The job's files are in the
        room. Raises StoreUnavailable if the store is away."""
        if not (self.room / "log").exists():
            try:
                self._fetch_log(*engine.read_program(self.room / "job"))
            except StoreUnavailable:
                raise
            except (StoreError, engine.JobError, OSError):
                return None
        return self.room / "log"

    def readable_log(self, job: engine.Job) -> Path:
        """Return the directory of the trainer's logs, with a readable log of every interval of this job in it; whether
        their decisions are right is another question.

        Raises Refused if they are not readable, StoreError if they cannot be had at present, or not in time."""
        directory, cid = self.room / "log", self.posted.claim.log_cid
        if directory.exists():
            try:
                _require_readable(directory, job, cid)
                return directory
            except Refused as error:
                self.warn(f"{error}: what is wrong with it on this disk is fetched again")
                set_back(directory, cid)
        try:
            self._fetch_log(job.program, job.spec)
        except _NEVER_BETTER as error:
            raise Refused(f"the log at {cid} is not acceptable: {error}") from error
        except StoreError as error:
            raise StoreError(f"the log at {cid} cannot be had at present: {error}") from error
        try:
            _require_readable(directory, job, cid)
        except Refused:
            shutil.rmtree(directory)
            raise
        return directory

    def _fetch_log(self, program: Program, spec: TrainingSpec) -> None:
        def claim(need: int) -> None:
            need += size_of(self.room / "job")
            self.context.rooms.claim(self.room, need, bonded=self.bonded, told=self.warn)

        most, plan = self.context.limits.log_bytes, log_plan(program, spec)
        self._fetch(self.posted.claim.log_cid, self.room / "log", plan, most, claim)

    def _fetch(
        self, cid: str, to: Path, plan: Plan, most: int, claim: Callable[[int], None] = lambda need: None
    ) -> None:
        fetch_named(self.context.store, cid, to, plan, warn=self.warn, max_bytes=most, within=self.within, claim=claim)


def read_files(context: RoleContext, posted: JobView, directory: Path) -> engine.Job:
    """Return the posted job, read from its files in a directory. Raises Damaged, and Refused as `JobContent.job`."""
    try:
        job = engine.Job.read(directory, job_limits(context))
    except engine.TooLargeJobError as error:
        raise Refused(str(error)) from error
    except engine.JobError as error:  # a wrong bit can also make a NaN, which no job may have
        raise Damaged(str(error)) from error
    _require_posted(posted, job.spec)
    _require_acceptable(context, job.program, job.spec)
    return job


def job_limits(context: RoleContext) -> engine.JobLimits:
    """Return the limits of a job that a role reads."""
    return engine.JobLimits(
        memory_bytes=context.limits.memory_bytes, micro_batches=context.engine.options.micro_batches
    )


def _require_posted(posted: JobView, spec: TrainingSpec) -> None:
    if PostedSpec(spec, posted.spec.referee, posted.spec.adjudicator).hash != posted.spec_hash:
        raise Damaged(f"the files at {posted.job_cid} are those of another job than the posted one")


def _require_acceptable(context: RoleContext, program: Program, spec: TrainingSpec) -> None:
    try:
        engine.require_memory(program, spec, job_limits(context))
    except engine.TooLargeJobError as error:
        raise Refused(str(error)) from error
    if (why := unanswerable_program(program, spec)) is not None:
        raise Refused(why)


def _require_readable(directory: Path, job: engine.Job, cid: str) -> None:
    for interval in range(job.spec.intervals):
        try:
            found = checked_header(log_path(directory, interval))
        except (LogError, OSError) as error:
            raise Refused(f"the log at {cid} cannot be read: {error}") from error
        if found != log_header(job, interval):
            raise Refused(f"the log at {cid} is of another run in interval {interval}")


def fetch_state(context: RoleContext, cid: str, program: Program, root: bytes, path: Path, *, within: float) -> None:
    """Fetch the state with this state root from the store to `path`.

    Raises Refused if the file holds anything else, StoreError if it cannot be had at present, or not in `within`
    seconds."""
    path.unlink(missing_ok=True)
    try:
        context.store.get_file(cid, path, max_bytes=most_state_bytes(program.states), within=within)
        why = wrong_state(path, program, root)
    except _NEVER_BETTER as error:
        why = str(error)
    if why is not None:
        path.unlink(missing_ok=True)
        raise Refused(f"the file at {cid} is not a state of this job with the root 0x{root.hex()}: {why}")
