"""Attesting: an auditor's word for a claim, with its bond. It is given once log and model are served, and what it
brings is collected in the end."""

from __future__ import annotations

from functools import partial

from roundlog.training import checkpoint_path, wrong_state

from tiebreak.contract.enums import AuditStatus, JobStatus, Phase
from tiebreak.contract.payouts import fee_at, place_of, sure_fee
from tiebreak.contract.structs import AuditView, JobView
from tiebreak.quantities import in_ether
from tiebreak.roles.background_jobs import BackgroundJob, Lane, Priority
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.fetched_content import Refused, fetch_readable_log, fetch_state
from tiebreak.roles.job_decisions import Decisions, Leave, MakeCall, Tell, WholeLook
from tiebreak.roles.job_on_chain import JobOnChain
from tiebreak.roles.long_work import LongWork
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.overdue import end_claim, end_overdue, start_waiting
from tiebreak.roles.policy import stakes
from tiebreak.roles.publishing import PublishedAddresses
from tiebreak.store import StoreError

_RETURNED = (JobStatus.FINAL, JobStatus.LAPSED, JobStatus.REJECTED)
"""Statuses in which the bond of an attestation can be collected, unless an upheld verdict has taken it."""


def bond_in(posted: JobView, audit: AuditView | None, now: int) -> int:
    """Wei of an attestation's or a sealed audit's bond that the job holds and may give back. now: the chain's time."""
    if audit is None or audit.status not in (AuditStatus.SEALED, AuditStatus.ATTESTED):
        return 0
    was_opened = posted.status not in (JobStatus.SEALED, JobStatus.EXPIRED)
    too_late = audit.status is AuditStatus.SEALED and was_opened and now > posted.audits.audit_opening_deadline
    return 0 if too_late or posted.audits.lost else posted.terms.attestation_bond


class Attesting:
    """The attestation of an auditor to one claim."""

    def __init__(self, chain: JobOnChain, long_work: LongWork) -> None:
        self._chain = chain
        self._long_work = long_work
        self._told_stakes = False

    def objection(self, posted: JobView) -> Decisions[str | None]:
        """The objection, in one clause, to a bond for an attestation or its seal now; None if there is none. It needs
        the bond, and the bond of an appeal in reserve: without an appeal a trainer that loses on purpose takes it."""
        return self._chain.policy.attesting_objection(posted) or (yield from self._missing(posted))

    def _missing(self, posted: JobView) -> Decisions[str | None]:
        """Obstacle to paying the bond now, in one sentence; None if there is none."""
        bond = posted.terms.attestation_bond
        missing = yield from self._chain.missing_funds(bond)
        return missing or (yield from self._chain.missing_reserve(bond + posted.terms.challenger_bond))

    def attest(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> WholeLook:
        """Attests to a right claim with open audits, within the time for challenges."""
        chain, terms = self._chain, posted.terms
        if (why := chain.policy.attesting_objection(posted)) is not None:
            return Leave(f"the claim on job {chain.job} is right, and gets no attestation from here: {why}")
        if (missing := (yield from self._missing(posted))) is not None:
            return Progress(state=missing)
        try:
            served = self._served(posted, trees, priority)
        except Refused as error:
            return Leave(f"the claim on job {chain.job} is right, and gets no attestation from here: {error}")
        if served is None:
            state = "gets log and model, which an attestation promises to serve"
            return Progress(working=True, state=state, until=posted.claim.challenge_deadline + 1)
        if not chain.confirmed(posted):
            return Progress(working=True, state="waits until the claim lies deep enough")
        yield from self.tell_stakes(posted)
        root = trees.claim.root
        call = chain.calls.attest(
            chain.job,
            spec_hash=posted.spec_hash,
            checkpoint_root=root,
            log_cid=served.log_cid,
            model_cid=served.model_cid,
            bond=terms.attestation_bond,
            last_place=chain.policy.last_place(terms),
            purpose=f"attest to 0x{root.hex()} on {chain.intention(posted)}",
        )
        yield MakeCall("attest to the claim, and to serving log and model", call)
        return Progress(state="attests")

    def tell_stakes(self, posted: JobView) -> Decisions[None]:
        """Tells once, before a bond is paid, what is at stake."""
        if not self._told_stakes:
            self._told_stakes = True
            terms, place = posted.terms, posted.audits.count
            share = f"place {place + 1} is sure of {in_ether(sure_fee(terms, place))} of the audit fee"
            yield Tell(What.STAKED, f"{stakes(posted, terms.attestation_bond)}; {share}")

    def await_end(self, posted: JobView) -> Decisions[Progress]:
        """Waits for the end of a claim that this account has attested to, and ends what holds it up."""
        self._long_work.forget("serving")  # it holds the audit
        yield from start_waiting(self._chain, posted)
        if games := posted.live_games + posted.queued_games:
            yield from end_overdue(self._chain, self._chain.games(lambda game: game.phase is not Phase.OVER))
            return Progress(state=f"has attested, and waits for {games} {'game' if games == 1 else 'games'}")
        return (yield from end_claim(self._chain, posted))

    def collect(self, posted: JobView, audit: AuditView | None) -> Decisions[Progress | None]:
        """Collects what a job that is over owes to this account's audit; None if it owes nothing."""
        if audit is None or audit.status not in (AuditStatus.SEALED, AuditStatus.ATTESTED):
            return None
        attested = audit.status is AuditStatus.ATTESTED
        owed = posted.status in _RETURNED and not posted.audits.lost if attested else posted.status is JobStatus.EXPIRED
        if not owed:
            return None
        chain, audits = self._chain, self._chain.audits()
        place = place_of(audits, chain.address)
        fee = 0 if place is None else fee_at(posted, audits, place)
        what = "the bond of its audit" + (f", and {in_ether(fee)} of the audit fee" if fee else "")
        yield MakeCall(f"collect {what}", chain.calls.collect(chain.job, chain.address))
        return Progress(state=f"collects {what}")

    def _served(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> PublishedAddresses | None:
        """The addresses by which the own store serves log and model; None until it does. Raises Refused for a log or a
        model that is not what it should be.

        The own final state is the model, since its root is the claim's. If its file has the claimed address, the same
        bytes would come from there. If not, the claimed address is fetched: it may hold anything."""
        work, claim = self._long_work, posted.claim

        def serve(background_job: BackgroundJob[PublishedAddresses]) -> PublishedAddresses:
            context, job, room = work.context, trees.job, work.room(posted)
            within = work.patience("serving")
            told = partial(work.tell, What.WARNING)
            log = fetch_readable_log(context, posted, job, room, within=within, bonded=priority.bonded, warn=told)
            log_cid = context.store.add_directory(log)
            own = checkpoint_path(trees.run_dir, job.spec.steps)
            is_right = own.exists() and wrong_state(own, job.program, claim.final_state_root) is None
            model_cid = context.store.add_file(own) if is_right else ""
            if model_cid != claim.model_cid:
                fetched = room / "model.safetensors"
                try:
                    state = claim.model_cid, job.program, claim.final_state_root
                    fetch_state(context, *state, fetched, within=within)
                except StoreError as error:
                    why = f"the model at {claim.model_cid} cannot be had at present: {error}"
                    raise StoreError(why) from error
                model_cid = context.store.add_file(fetched)
                fetched.unlink()
            work.tell(What.PUBLISHED, f"serves the log as {log_cid} and the model as {model_cid}")
            return PublishedAddresses(log_cid, model_cid)

        doing = "getting log and model of the claim"
        return work.result(Lane.FILES, "serving", serve, priority, doing, about=claim)
