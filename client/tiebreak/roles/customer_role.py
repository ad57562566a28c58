"""The customer: publishes a job, pays for it, and collects a model or a refund."""

from __future__ import annotations

import os
from pathlib import Path

from eth_typing import ChecksumAddress
from roundlog import training as engine
from roundlog.storage import commit_file, partial_path, read_record, write_record
from roundlog.training import wrong_state

from tiebreak.contract.code import is_adjudicator
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import AuditStatus, JobStatus
from tiebreak.contract.events import JobPosted
from tiebreak.contract.structs import JobView, PostedSpec, Terms
from tiebreak.roles.background_jobs import BackgroundJob, Lane, Priority
from tiebreak.roles.context import RoleContext
from tiebreak.roles.engine import step_seconds
from tiebreak.roles.fetched_content import Refused, fetch_state, unanswerable_program, unanswerable_spec
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Notice, Progress, What
from tiebreak.roles.player import await_appeals, end_overdue, finalize_after, start_waiting
from tiebreak.roles.policy import MeasuredPace, least_clock
from tiebreak.roles.published_content import OVER
from tiebreak.store import StoreError

COLLECT_GAS = 70_000
"""Gas of `collect`, rounded up from what was measured (docs/protocol.md)."""


def post_job(context: RoleContext, job_dir: Path, terms: Terms, referee: ChecksumAddress) -> int:
    """Publish a job's files, post the job with the adjudicator of the context's contract, and pay its reward.
    Returns the job's id.

    After an interruption at any instant, the same call with the same context resumes and does not pay twice. After it
    has returned, another call posts another job. Raises JobError if the files are not a valid job, if disputes about it
    could not be decided, or if its clocks are too short for this machine; StoreError; ChainError."""
    job = engine.Job.read(job_dir, engine.JobLimits(memory_bytes=context.limits.memory_bytes))
    if (why := unanswerable_spec(job.spec) or unanswerable_program(job.program, job.spec)) is not None:
        raise engine.JobError(why)
    require_time(context, job, terms)
    adjudicator = context.contract.adjudicator()
    if not is_adjudicator(context.contract.node, adjudicator):
        raise engine.JobError(
            f"the adjudicator {adjudicator} of this contract is not this version's: deploy a contract"
        )
    spec = PostedSpec(job.spec, referee, adjudicator)
    cid = context.store.add_directory(job_dir)
    context.notify(Notice(role="customer", what=What.PUBLISHED, text=f"published the job as {cid}"))
    record_path = context.directory / "posting.json"
    context.sender.settle()
    name = {"job_cid": cid, "spec_hash": spec.hash.hex()}
    record = read_record(record_path) if record_path.exists() else {}
    if {key: record.get(key) for key in name} != name:
        record = {}  # of another job
    if record and (found := _posted_since(context, record)) is not None:
        record_path.unlink()
        return found
    context.directory.mkdir(parents=True, exist_ok=True)
    # After a kill the payment has the same name, so that it is made once.
    token = str(record.get("token") or os.urandom(8).hex())
    write_record(record_path, {**name, "token": token, "from_block": context.contract.node.head().number + 1})
    contract = context.contract
    receipt = contract.send(contract.post_job(spec, terms, cid, purpose=f"post a job: {token}"))
    job_id = int(contract.event(receipt, JobPosted).job)
    record_path.unlink()
    notice = Notice(role="customer", what=What.SENT, text=f"post job {job_id}", job=job_id, receipt=receipt)
    context.notify(notice)
    return job_id


def require_time(context: RoleContext, job: engine.Job, terms: Terms) -> None:
    """Check a job's clocks against the time of a block and of a training step, measured here. Raises JobError if a
    party that is right could lose by the clock on a machine like this one."""
    policy = context.policy
    needed = policy.least_clock
    if needed is None:
        pace = MeasuredPace(block=context.queue.block_seconds(), step=step_seconds(job))
        needed = least_clock(job.program, job.spec, pace, terms.concurrent_games)
    if terms.clock_allowance < needed:
        raise engine.JobError(
            f"its clocks would run {terms.clock_allowance} seconds, and the right party needs {needed} here: give "
            "them that much, or make intervals shorter"
        )


def _posted_since(context: RoleContext, record: dict[str, object]) -> int | None:
    """Return number of the job that an interrupted posting has posted after all; None if it has not."""
    block = record.get("from_block")
    for event in context.contract.events(from_block=block if isinstance(block, int) else None):
        if (
            isinstance(event, JobPosted)
            and event.customer == context.address
            and event.job_cid == record["job_cid"]
            and event.spec_hash.hex() == record["spec_hash"]
        ):
            return int(event.job)
    return None


class CustomerRole(JobRole):
    """A role that waits for the end of one job, makes the calls that anyone may make, and collects the model or the
    refund."""

    name = "customer"

    def __init__(self, context: RoleContext, job: int, *, model: Path) -> None:
        """model: path for the trained state (safetensors)."""
        super().__init__(context, job)
        self._model = model

    def refusal(self, why: str) -> str:
        return f"the claim is final, but the trainer has not published its model: {why}"

    def consider(self, posted: JobView) -> Progress:
        self._collect_forfeits(posted)
        if posted.status not in OVER and self._model.exists():
            # Told now, since the end of the job may be a week away.
            text = f"{self._model} exists already: move it away, or the model of job {self.job} has no place"
            self.tell(What.WARNING, text)
        match posted.status:
            case JobStatus.OPEN:
                if self.now() <= posted.commit_deadline:
                    return Progress(state="waits for a trainer", until=posted.commit_deadline + 1)
                return self._reclaim()
            case JobStatus.SEALED:
                if self.now() <= (opening := posted.audits.opening_deadline):
                    return Progress(state="waits for the trainer to open its claim", until=opening + 1)
                return self._reclaim()
            case JobStatus.CLAIMED:
                return self._watch(posted)
            case JobStatus.APPEALABLE:
                return await_appeals(self, posted)  # then the reward returns
            case JobStatus.FINAL:
                return self._collect(posted)
        return self.leave(f"job {self.job} is {posted.status.name}: refunded")

    def _watch(self, posted: JobView) -> Progress:
        start_waiting(self, posted)
        if games := posted.live_games + posted.queued_games:
            end_overdue(self, self.live_games())
            return Progress(state=f"waits for {games} games")
        return finalize_after(self, posted.claim.challenge_deadline, "waits for the challenge window to close")

    def _collect_forfeits(self, posted: JobView) -> None:
        """Take the customer's half of the bonds of sealed audits that were not opened, if it is more than the gas.
        They can be taken at any time from then on: the account that ends the claim may come first."""
        deadline = posted.audits.audit_opening_deadline
        if not deadline or self.now() <= deadline:
            return
        audits = self.audits()
        unopened = [audit.auditor for audit in audits if audit.status is AuditStatus.SEALED]
        if not unopened:
            return
        gas = COLLECT_GAS * self.context.queue.funds(0, self.context.clock()).price
        for auditor in unopened if posted.terms.attestation_bond // 2 > gas else ():
            text = f"take the bond of {auditor}, whose sealed audit was not opened"
            self.order(text, ContractCall.of("collect", self.job, auditor))

    def _reclaim(self) -> Progress:
        self.order("take the reward back", ContractCall.of("reclaim", self.job))
        return Progress(state="reclaims")

    def _collect(self, posted: JobView) -> Progress:
        priority = Priority(deadline=posted.claim.challenge_deadline, stake=posted.terms.reward)
        if not self.long_work.files_are_here(posted, priority):
            return Progress(working=True, state="fetches the job's files")
        if self._model.exists() and not self.long_work.is_done("model"):
            return self._found(posted, priority)

        def fetch(background_job: BackgroundJob[Path]) -> Path:
            self._model.parent.mkdir(parents=True, exist_ok=True)
            part = partial_path(self._model)
            self._fetch_model(posted, part)
            commit_file(part, self._model)
            self.tell(What.FETCHED, f"the trained model is in {self._model}")
            return self._model

        if self.long_work.result(Lane.FILES, "model", fetch, priority, "fetching the model") is None:
            return Progress(working=True, state="fetches the model")
        return self.leave(f"the model is in {self._model}")

    def _found(self, posted: JobView, priority: Priority) -> Progress:
        """Do what is due where a file is at the model's path already: a former process's, or any other."""
        place, state = self._model.stat(), posted.claim.final_state_root

        def check(background_job: BackgroundJob[list[str | None]]) -> list[str | None]:
            return [wrong_state(self._model, self.long_work.read_job(posted).program, state)]

        about = place.st_ino, place.st_size, place.st_mtime_ns
        checked = self.long_work.result(Lane.FILES, "checking", check, priority, "checking the model", about=about)
        if checked is None:
            return Progress(working=True, state=f"checks {self._model}")
        if checked[0] is None:
            return self.leave(f"the model is in {self._model}")
        why = f"{self._model} is not the model of job {self.job}, for {checked[0]}: move it away"
        self.tell(What.WARNING, why)
        return Progress(state=why)

    def _fetch_model(self, posted: JobView, path: Path) -> None:
        """Fetch the model from the claim's address, or else from one by which an auditor has promised to serve it.
        Raises Refused or StoreError if none has it. An address that lets the model drip does not hold up the next."""
        job = self.long_work.read_job(posted)
        audits = self.audits()
        served = [audit.model_cid for audit in audits if audit.model_cid]
        errors: list[Refused | StoreError] = []
        within = self.long_work.patience("model")
        for cid in dict.fromkeys([posted.claim.model_cid, *served]):
            try:
                fetch_state(self.context, cid, job.program, posted.claim.final_state_root, path, within=within)
                return
            except (Refused, StoreError) as error:
                errors.append(error)
        # An outage may end, so it counts more than an address that has something else.
        raise next((error for error in errors if isinstance(error, StoreError)), errors[0])
