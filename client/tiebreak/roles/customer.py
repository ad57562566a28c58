"""The customer: publishes a job, pays for it, and collects a model or a refund."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from eth_typing import ChecksumAddress
from roundlog import job as engine
from roundlog.storage import read_record, write_record

from tiebreak.chain.code import is_adjudicator
from tiebreak.chain.events import JobPosted
from tiebreak.chain.known_broken import why_broken
from tiebreak.chain.records import Job, JobStatus, Terms
from tiebreak.chain.spec import PostedSpec
from tiebreak.game import timeout_is_due
from tiebreak.roles.answerable import unanswerable_program, unanswerable_spec
from tiebreak.roles.contents import Refused, fetch_job, fetch_state
from tiebreak.roles.notices import Notice, Progress, What
from tiebreak.roles.role import JobRole
from tiebreak.roles.station import Station


def post_job(station: Station, job_dir: Path, terms: Terms, referee: ChecksumAddress) -> int:
    """Publishes the job's files, posts the job, with the adjudicator of the station's contract, and pays its reward;
    returns its id.

    If this is interrupted at any instant, the same call made again with the same station carries on and does not pay
    twice; once it has returned, another call posts another job. Raises JobError if the files are not a valid job, or
    one whose disputes could not be decided, StoreError, ChainError."""
    job = engine.Job.read(job_dir, engine.Limits(memory_bytes=station.limits.memory_bytes))
    if (why := unanswerable_spec(job.spec) or unanswerable_program(job)) is not None:
        raise engine.JobError(why)
    adjudicator = station.contract.adjudicator()
    if not is_adjudicator(station.contract.node, adjudicator):
        raise engine.JobError(
            f"the adjudicator {adjudicator} of this contract is not this version's: deploy a contract"
        )
    if (broken := why_broken("Adjudicator", station.contract.node.chain_id, adjudicator)) is not None:
        raise engine.JobError(f"the adjudicator {adjudicator} is known to be broken ({broken}): use a newer release")
    spec = PostedSpec(job.spec, referee, adjudicator)
    cid = station.store.add_directory(job_dir)
    _tell(station, What.PUBLISHED, f"published the job as {cid}")
    record_path = station.directory / "posting.json"
    station.sender.settle()
    name = {"job_cid": cid, "spec_hash": spec.hash.hex()}
    record = read_record(record_path) if record_path.exists() else {}
    if {key: record.get(key) for key in name} == name and (found := _posted_since(station, record)) is not None:
        record_path.unlink()
        return found
    station.directory.mkdir(parents=True, exist_ok=True)
    write_record(record_path, {**name, "from_block": station.contract.node.head().number + 1})
    job_id, receipt = station.contract.post_job(spec, terms, cid)
    record_path.unlink()
    notice = Notice(role="customer", what=What.SENT, text=f"post job {job_id}", job=job_id, receipt=receipt)
    station.notify(notice)
    return job_id


def _posted_since(station: Station, record: dict[str, object]) -> int | None:
    """The job that an interrupted posting has brought about after all."""
    block = record.get("from_block")
    for event in station.contract.events(from_block=block if isinstance(block, int) else None):
        if (
            isinstance(event, JobPosted)
            and event.customer == station.address
            and event.job_cid == record["job_cid"]
            and event.spec_hash.hex() == record["spec_hash"]
        ):
            return event.job
    return None


def _tell(station: Station, what: What, text: str) -> None:
    station.notify(Notice(role="customer", what=what, text=text))


class CustomerRole(JobRole):
    """Waits for the end of one job, helps it along where anyone may, and collects."""

    name = "customer"

    def __init__(self, station: Station, job: int, *, model: Path) -> None:
        """model: where to put the trained state (safetensors)."""
        super().__init__(station, job)
        self._model = model

    def step(self) -> Progress:
        return self._step(may_fetch=True)

    def attend(self) -> Progress:
        return self._step(may_fetch=False)

    def _step(self, *, may_fetch: bool) -> Progress:
        contract = self.station.contract
        posted = self.posted()
        if posted is None:
            return self.no_job()
        match posted.status:
            case JobStatus.OPEN:
                if self.station.now() <= posted.commit_deadline:
                    return Progress(state="waiting for a trainer", until=posted.commit_deadline + 1)
                return Progress(
                    acted=self.send("take the reward back", lambda: contract.reclaim(self.job), job=self.job),
                    state="reclaiming",
                )
            case JobStatus.CLAIMED:
                return self._watch(posted)
            case JobStatus.FINAL:
                if not may_fetch:
                    return Progress(state="the model waits to be fetched")
                acted = self.withdraw()
                return Progress(acted=acted, finished=True, state=self._fetch_model(posted))
        return Progress(acted=self.withdraw(), finished=True, state=f"job {self.job} is {posted.status.name}: refunded")

    def _watch(self, posted: Job) -> Progress:
        contract = self.station.contract
        if posted.live_games:
            acted = False
            for game_id in contract.games_of(self.job):
                if timeout_is_due(contract.game(game_id), self.station.now()):
                    acted |= self.send(
                        "end a game whose clock ran out",
                        partial(contract.claim_timeout, game_id),
                        job=self.job,
                        game=game_id,
                    )
            return Progress(acted=acted, state=f"waiting for {posted.live_games} games")
        deadline = posted.claim.challenge_deadline
        if self.station.now() <= deadline:
            return Progress(state="waiting for the challenge window to close", until=deadline + 1)
        return Progress(
            acted=self.send("finalize", lambda: contract.finalize(self.job), job=self.job), state="finalizing"
        )

    def _fetch_model(self, posted: Job) -> str:
        """Raises StoreError if the model cannot be had at present."""
        if self._model.exists():
            return f"the model is in {self._model}"
        try:
            job = fetch_job(self.station, posted, self.station.room(self.job, posted))
            self._model.parent.mkdir(parents=True, exist_ok=True)
            part = self._model.with_name(f".{self._model.name}.partial")
            fetch_state(self.station, posted.claim.model_cid, job.program, posted.claim.final_state_root, part)
        except Refused as error:
            return f"the claim is final, but the trainer has not published its model: {error}"
        part.replace(self._model)
        self.notify_job(What.FETCHED, f"the trained model is in {self._model}")
        return f"the model is in {self._model}"
