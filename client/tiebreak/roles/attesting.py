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
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.overdue import end_claim, end_overdue, start_waiting
from tiebreak.roles.policy import stakes
from tiebreak.roles.publishing import PublishedAddresses
from tiebreak.store import StoreError

_RETURNED = (JobStatus.FINAL, JobStatus.LAPSED, JobStatus.REJECTED)
"""Statuses in which the bond of an attestation can be collected, unless an upheld verdict has taken it."""


def audit_of(role: JobRole) -> AuditView | None:
    """This account's audit with a bond; None if it has none. Raises the errors of ChainNode."""
    audits = role.context.queue.watch.audits_of(role.job)
    return next((audit for audit in audits if audit.auditor == role.context.address), None)


def bond_in(posted: JobView, audit: AuditView | None, now: int) -> int:
    """Wei of an attestation's or a sealed audit's bond that the job holds and may give back. now: the chain's time."""
    if audit is None or audit.status not in (AuditStatus.SEALED, AuditStatus.ATTESTED):
        return 0
    was_opened = posted.status not in (JobStatus.SEALED, JobStatus.EXPIRED)
    too_late = audit.status is AuditStatus.SEALED and was_opened and now > posted.audits.audit_opening_deadline
    return 0 if too_late or posted.audits.lost else posted.terms.attestation_bond


def lacks(role: JobRole, wei: int) -> str | None:
    """Money that the account lacks for an amount and the gas of a whole dispute, in one sentence; None if none."""
    found = role.context.queue.funds(wei, role.context.clock(), job=role.job)
    if not found.missing:
        return None
    role.notify_job(What.WARNING, found.sentence)
    return found.sentence


class Attesting:
    """The attestation of an auditor to one claim."""

    def __init__(self, role: JobRole) -> None:
        self._role = role
        self._told_stakes = False

    def objection(self, posted: JobView) -> str | None:
        """The objection, in one clause, to a bond for an attestation or its seal now; None if there is none. It needs
        the bond, and the bond of an appeal in reserve: without an appeal a trainer that loses on purpose takes it."""
        return self._role.context.policy.attesting_objection(posted) or self._missing(posted)

    def _missing(self, posted: JobView) -> str | None:
        """Obstacle to paying the bond now, in one sentence; None if there is none."""
        bond = posted.terms.attestation_bond
        return self._role.missing_funds(bond) or lacks(self._role, bond + posted.terms.challenger_bond)

    def attest(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> Progress:
        """Attests to a right claim with open audits, within the time for challenges."""
        role, terms = self._role, posted.terms
        if (why := role.context.policy.attesting_objection(posted)) is not None:
            return role.leave(f"the claim on job {role.job} is right, and gets no attestation from here: {why}")
        if (missing := self._missing(posted)) is not None:
            return Progress(state=missing)
        try:
            served = self._served(posted, trees, priority)
        except Refused as error:
            return role.leave(f"the claim on job {role.job} is right, and gets no attestation from here: {error}")
        if served is None:
            state = "gets log and model, which an attestation promises to serve"
            return Progress(working=True, state=state, until=posted.claim.challenge_deadline + 1)
        if not role.confirmed(posted):
            return Progress(working=True, state="waits until the claim lies deep enough")
        self.tell_stakes(posted)
        root = trees.claim.root
        call = role.context.contract.attest(
            role.job,
            spec_hash=posted.spec_hash,
            checkpoint_root=root,
            log_cid=served.log_cid,
            model_cid=served.model_cid,
            bond=terms.attestation_bond,
            last_place=role.context.policy.last_place(terms),
            purpose=f"attest to 0x{root.hex()} on {role.intention(posted)}",
        )
        role.order("attest to the claim, and to serving log and model", call, job=role.job)
        return Progress(state="attests")

    def tell_stakes(self, posted: JobView) -> None:
        """Tells once, before a bond is paid, what is at stake."""
        if not self._told_stakes:
            self._told_stakes = True
            terms, place = posted.terms, posted.audits.count
            share = f"place {place + 1} is sure of {in_ether(sure_fee(terms, place))} of the audit fee"
            self._role.notify_job(What.STAKED, f"{stakes(posted, terms.attestation_bond)}; {share}")

    def await_end(self, posted: JobView) -> Progress:
        """Waits for the end of a claim that this account has attested to, and ends what holds it up."""
        self._role.forget("serving")  # it holds the audit
        start_waiting(self._role, posted)
        if games := posted.live_games + posted.queued_games:
            end_overdue(self._role, self._role.games(lambda game: game.phase is not Phase.OVER))
            return Progress(state=f"has attested, and waits for {games} {'game' if games == 1 else 'games'}")
        return end_claim(self._role, posted)

    def collect(self, posted: JobView, audit: AuditView | None) -> Progress | None:
        """Collects what a job that is over owes to this account's audit; None if it owes nothing."""
        if audit is None or audit.status not in (AuditStatus.SEALED, AuditStatus.ATTESTED):
            return None
        attested = audit.status is AuditStatus.ATTESTED
        owed = posted.status in _RETURNED and not posted.audits.lost if attested else posted.status is JobStatus.EXPIRED
        if not owed:
            return None
        role, audits = self._role, self._role.context.queue.watch.audits_of(self._role.job)
        place = place_of(audits, role.context.address)
        fee = 0 if place is None else fee_at(posted, audits, place)
        what = "the bond of its audit" + (f", and {in_ether(fee)} of the audit fee" if fee else "")
        role.order(f"collect {what}", role.context.contract.collect(role.job, role.context.address), job=role.job)
        return Progress(state=f"collects {what}")

    def _served(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> PublishedAddresses | None:
        """The addresses by which the own store serves log and model; None until it does. Raises Refused for a log or a
        model that is not what it should be.

        The own final state is the model, since its root is the claim's. If its file has the claimed address, the same
        bytes would come from there. If not, the claimed address is fetched: it may hold anything."""
        role, claim = self._role, posted.claim

        def serve(background_job: BackgroundJob[PublishedAddresses]) -> PublishedAddresses:
            context, job = role.context, trees.job
            room = context.room(role.job, posted)
            within = role.patience("serving")
            told = partial(role.notify_job, What.WARNING)
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
            role.notify_job(What.PUBLISHED, f"serves the log as {log_cid} and the model as {model_cid}")
            return PublishedAddresses(log_cid, model_cid)

        doing = "getting log and model of the claim"
        return role.work(Lane.FILES, "serving", serve, priority, doing, about=claim)
