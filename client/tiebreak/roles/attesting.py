"""Attestations of an auditor: its word for a claim, with its bond. It is given once log and model are served, and what
it brings is collected in the end.

Where audits are blind, the auditor's root is sealed before the claim is known and opened after it. An equal root is an
attestation, another one a challenge with the bond that is there. The first places have a share of the fee, so a place
is taken with a seal of nothing as soon as the audit is sure to be done in time, and filled with the seal of its root
then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundlog.training import checkpoint_path, wrong_state

from tiebreak.contract.contract_calls import ContractCall, fee_at, place_of, sure_fee
from tiebreak.contract.enums import AuditStatus, JobStatus
from tiebreak.contract.structs import AuditView, JobView
from tiebreak.quantities import in_ether, in_utc
from tiebreak.roles.auditing import BLIND, Auditing
from tiebreak.roles.background_jobs import BackgroundJob, Lane, Priority
from tiebreak.roles.engine import DisputeTrees
from tiebreak.roles.fetched_content import Refused, fetch_state
from tiebreak.roles.long_work import LongWork, PublishedAddresses, Publishing
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.player import end_claim, end_overdue, end_unopened, start_waiting
from tiebreak.roles.policy import BLOCKS_A_MOVE, stakes
from tiebreak.roles.sealing import Sealing, Secret
from tiebreak.store import StoreError

if TYPE_CHECKING:
    from tiebreak.roles.job_role import JobRole

_RETURNED = (JobStatus.FINAL, JobStatus.LAPSED, JobStatus.REJECTED)
"""Statuses in which the bond of an attestation can be collected, unless an upheld verdict has taken it."""


def bond_in(posted: JobView, audit: AuditView | None, now: int) -> int:
    """Return the wei of an attestation's or a sealed audit's bond that the job holds and may give back. now: the
    chain's time."""
    if audit is None or audit.status not in (AuditStatus.SEALED, AuditStatus.ATTESTED):
        return 0
    was_opened = posted.status not in (JobStatus.SEALED, JobStatus.EXPIRED)
    too_late = audit.status is AuditStatus.SEALED and was_opened and now > posted.audits.audit_opening_deadline
    return 0 if too_late or posted.audits.lost else posted.terms.attestation_bond


class Attesting:
    """The attestation of an auditor to one claim."""

    def __init__(self, role: JobRole, long_work: LongWork) -> None:
        self._role = role
        self._long_work = long_work
        self._told_stakes = False

    def objection(self, posted: JobView) -> str | None:
        """Return the objection, in one clause, to a bond for an attestation or its seal now; None if there is none. It
        needs the bond, and the bond of an appeal in reserve: without an appeal a trainer that loses on purpose takes
        it."""
        return self._role.policy.attesting_objection(posted) or self._missing(posted)

    def _missing(self, posted: JobView) -> str | None:
        """Return obstacle to paying the bond now, in one sentence; None if there is none."""
        bond = posted.terms.attestation_bond
        missing = self._role.missing_funds(bond)
        return missing or self._role.missing_reserve(bond + posted.terms.challenger_bond)

    def attest(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> Progress:
        """Attest to a right claim with open audits, within the time for challenges."""
        role, terms = self._role, posted.terms
        if (why := role.policy.attesting_objection(posted)) is not None:
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
        call = role.calls.paying(
            "attest",
            role.job,
            spec_hash=posted.spec_hash,
            bond=terms.attestation_bond,
            about=f" 0x{root.hex()}",
            checkpoint_root=root,
            log_cid=served.log_cid,
            model_cid=served.model_cid,
            last_place=role.policy.last_place(terms),
        )
        role.order("attest to the claim, and to serving log and model", call)
        return Progress(state="attests")

    def tell_stakes(self, posted: JobView) -> None:
        """Tell once, before a bond is paid, what is at stake."""
        if not self._told_stakes:
            self._told_stakes = True
            terms, place = posted.terms, posted.audits.count
            share = f"place {place + 1} is sure of {in_ether(sure_fee(terms, place))} of the audit fee"
            self._role.tell(What.STAKED, f"{stakes(posted, terms.attestation_bond)}; {share}")

    def await_end(self, posted: JobView) -> Progress:
        """Wait for the end of a claim that this account has attested to, and end what holds it up."""
        self._long_work.forget("serving")  # it holds the audit
        start_waiting(self._role, posted)
        if games := posted.live_games + posted.queued_games:
            end_overdue(self._role, self._role.live_games())
            return Progress(state=f"has attested, and waits for {games} {'game' if games == 1 else 'games'}")
        return end_claim(self._role, posted)

    def collect(self, posted: JobView, audit: AuditView | None) -> Progress | None:
        """Collect what a job that is over owes to this account's audit; None if it owes nothing."""
        if audit is None or audit.status not in (AuditStatus.SEALED, AuditStatus.ATTESTED):
            return None
        attested = audit.status is AuditStatus.ATTESTED
        owed = posted.status in _RETURNED and not posted.audits.lost if attested else posted.status is JobStatus.EXPIRED
        if not owed:
            return None
        role, audits = self._role, self._role.audits()
        place = place_of(audits, role.address)
        fee = 0 if place is None else fee_at(posted, audits, place)
        what = "the bond of its audit" + (f", and {in_ether(fee)} of the audit fee" if fee else "")
        role.order(f"collect {what}", ContractCall.of("collect", role.job, role.address))
        return Progress(state=f"collects {what}")

    def _served(self, posted: JobView, trees: DisputeTrees, priority: Priority) -> PublishedAddresses | None:
        """Return the addresses by which the own store serves log and model; None until it does. Raises Refused for a
        log or a model that is not what it should be.

        The own final state is the model, since its root is the claim's. If its file has the claimed address, the same
        bytes would come from there. If not, the claimed address is fetched: it may hold anything."""
        work, claim = self._long_work, posted.claim

        def serve(background_job: BackgroundJob[PublishedAddresses]) -> PublishedAddresses:
            context, job, room = work.context, trees.job, work.room(posted)
            within = work.patience("serving")
            log_cid = context.store.add_directory(work.content(posted, priority, within).readable_log(job))
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


_DEAREST = 30
"""Longest time of a run in times of what its first steps let expect. Data in which every sum cancels make a product
some 20 times as dear (`scripts/bench_products.py --worst`), and the maker of a job can keep such data for its later
steps: a place that is not filled in time loses its bond."""

_MOST_REPLACED = 3
"""Seals that a process replaces though it does not know them: their file was lost, or another process sealed them."""


class BlindAudits:
    """The sealed audit of an auditor in one job."""

    def __init__(self, role: JobRole, long_work: LongWork, auditing: Auditing, attesting: Attesting) -> None:
        self._role = role
        self._auditing = auditing
        self._attesting = attesting
        self._sealing = Sealing(role, long_work, "audit")
        self._place = Sealing(role, long_work, "place")
        self._told_late = False
        self._replaced = 0
        """Seals that were not known to this process, and that it has replaced."""
        self._publishing = Publishing(long_work, BLIND)

    def before_opening(self, posted: JobView, audit: AuditView | None) -> Progress:
        """Repeat the run and seal its root, of a job in status SEALED; then waits for the claim."""
        job, now = self._role.job, self._role.now()
        deadline = posted.audits.audit_deadline
        if audit is not None and (now > deadline or self._is_filled(posted, audit)):
            self._auditing.rest()
            return end_unopened(self._role, posted)
        if now > posted.audits.opening_deadline:
            return self._role.leave(f"the trainer has not opened its claim on job {job} in time")
        if now > deadline:
            return Progress(state="waits for the claim to be opened", until=posted.audits.opening_deadline + 1)
        if audit is None and (why := self._attesting.objection(posted)) is not None:
            self._auditing.rest()  # what was executed is on disk
            return Progress(state=f"seals no audit of job {job}: {why}", until=deadline + 1)
        priority = Priority(deadline=deadline, stake=posted.terms.trainer_bond, bonded=audit is not None)
        trees = self._auditing.audited(posted, priority)
        if trees is None:
            return self._while_working(posted, audit)
        doubts = self._auditing.doubts(posted, trees, priority)
        if doubts is None:
            return Progress(working=True, state="asks for a second opinion on a stop")
        if doubts[0] is not None:
            lost = "" if audit is None else ", so that the bond of its place is lost"
            self._role.tell(What.WARNING, f"seals no audit of job {job}: {doubts[0]}{lost}")
            return Progress(state=f"seals no audit: {doubts[0]}", until=deadline + 1)
        if audit is None and not self._role.confirmed(posted):
            return Progress(working=True, state="waits until the sealed claim lies deep enough")
        return self._seal(posted, trees.claim.root, audit)

    def _is_filled(self, posted: JobView, audit: AuditView) -> bool:
        """Return whether the seal that the chain shows is that of the audit whose root and salt are on this disk."""
        known = self._sealing.kept(posted)
        return known is not None and self._sealing.seal(known) == audit.seal

    def _is_empty(self, posted: JobView, audit: AuditView) -> bool:
        """Return whether the seal that the chain shows is the one of nothing, with which the place was taken."""
        taken = self._place.kept(posted)
        return taken is not None and self._place.seal(taken) == audit.seal

    def is_never_filled(self, posted: JobView, audit: AuditView) -> bool:
        """Return whether an audit is a place that was not filled in time, so that its bond is lost; which is told."""
        if not self._is_empty(posted, audit):
            return False
        why = "its audit was not done in time, so that the bond of the place that it had taken is lost"
        self._role.tell(What.WARNING, why)
        return True

    def _while_working(self, posted: JobView, audit: AuditView | None) -> Progress:
        """Take a place that has a share once the run is sure to be done in time, whatever its data; tells if it is not
        done in time after all."""
        deadline, left = posted.audits.audit_deadline, self._auditing.seconds_left
        time = deadline - self._role.now() - BLOCKS_A_MOVE * self._role.context.queue.block_seconds()
        if audit is None:
            share = sure_fee(posted.terms, posted.audits.count)
            if share and left is not None and _DEAREST * left <= time and self._role.confirmed(posted):
                nothing = self._place.of_audit(posted, bytes(32))
                self._pay(posted, nothing, self._place, "take a place for its audit")
                return Progress(state="takes a place, and audits blindly", until=deadline)
            return Progress(working=True, state="audits blindly", until=deadline)
        if left is not None and left > time and not self._told_late:
            self._told_late = True
            late = f"the audit of job {self._role.job} will not be done by {in_utc(deadline)}, as fast as it goes now"
            bond = in_ether(posted.terms.attestation_bond)
            remedy = f"give it the machine alone, or the bond of {bond} on its place is lost"
            self._role.tell(What.ALERT, f"{late}: {remedy}")
        return Progress(working=True, state="audits blindly, and has its place", deadline=deadline)

    def _seal(self, posted: JobView, root: bytes, audit: AuditView | None) -> Progress:
        """Seal a root: with a bond, or in the place that this account has."""
        secret = self._sealing.keep(posted, self._sealing.of_audit(posted, root))
        if secret.checkpoint_root != root:
            # Never on a sound machine: the same job always comes to the same root.
            why = "this audit came to another root than an earlier one, which may be sealed already: check this machine"
            self._role.tell(What.WARNING, why)
            return Progress(state=why)
        if audit is None:
            self._pay(posted, secret, self._sealing, "seal its audit")
            return Progress(state="seals its audit")
        is_known = self._is_empty(posted, audit)
        # Two processes with one key must not replace each other's seals for ever.
        if not is_known and self._replaced == _MOST_REPLACED:
            why = "another process of this account has sealed this audit: stop one of the two, which cannot open it"
            self._role.tell(What.WARNING, why)
            return Progress(state=why, deadline=posted.audits.audit_deadline)
        text = "seal its audit in the place that it has"
        call = ContractCall.of("replaceSeal", self._role.job, self._sealing.seal(secret))
        is_new = self._role.order(text, call)
        self._replaced += bool(is_new) and not is_known
        return Progress(state="seals its audit", deadline=posted.audits.audit_deadline)

    def _pay(self, posted: JobView, secret: Secret, sealing: Sealing, text: str) -> None:
        """Make the one payment of this audit's bond: its name is the same for a place and for a seal, so that a bond
        is paid once, whichever of them was sent before a kill."""
        role, terms = self._role, posted.terms
        kept = sealing.keep(posted, secret)
        self._attesting.tell_stakes(posted)
        seal, last = sealing.seal(kept), role.policy.last_place(terms)
        bond, spec_hash = terms.attestation_bond, posted.spec_hash
        call = role.calls.paying("sealAudit", role.job, spec_hash=spec_hash, bond=bond, seal=seal, last_place=last)
        role.order(text, call)

    def open(self, posted: JobView, audit: AuditView) -> Progress:
        """Open the sealed audit, of a job in status CLAIMED, within the window."""
        deadline = posted.audits.audit_opening_deadline
        priority = Priority(deadline=deadline, stake=posted.terms.attestation_bond, bonded=True)
        secret = self._secret(posted, audit, priority)
        if secret is None:
            return Progress(working=True, state="gets its audit ready to open", deadline=deadline)
        root = secret.checkpoint_root
        if root != posted.claim.checkpoint_root:
            text = f"open its audit, whose root 0x{root.hex()} challenges the claim"
            self._order_opening(text, root, PublishedAddresses("", ""), secret)
            return Progress(state="opens its audit", deadline=deadline)
        trees = self._auditing.trees(posted, priority, root)
        if trees is None:
            return Progress(working=True, state="gets its log and model ready", deadline=deadline)
        served = self._publishing.published(posted, priority)
        # In the second half of the window it no longer waits for a store: the bond is lost at its end.
        if served is None and self._role.now() > deadline - posted.terms.opening_window // 2:
            served = self._publishing.addresses(posted, priority)
        if served is None:
            return Progress(working=True, state="publishes its log and model", deadline=deadline)
        text = "open its audit, which attests to the claim, and to serving log and model"
        self._order_opening(text, root, served, secret)
        return Progress(state="opens its audit", deadline=deadline)

    def _order_opening(self, text: str, root: bytes, served: PublishedAddresses, secret: Secret) -> None:
        role = self._role
        role.order(text, ContractCall.of("openAudit", role.job, root, served.log_cid, served.model_cid, secret.salt))

    def is_published(self, posted: JobView) -> bool:
        """Return whether log and model of an attestation are published by this process; has it done if not."""
        stake, root = posted.terms.attestation_bond, posted.claim.checkpoint_root
        return self._publishing.finish(posted, stake, lambda priority: self._auditing.trees(posted, priority, root))

    def _secret(self, posted: JobView, audit: AuditView, priority: Priority) -> Secret | None:
        """Return the content of the seal that the chain shows: from disk, or computed again. None until it is there; if
        it cannot be, that is told."""
        known = self._sealing.kept(posted)
        if known is not None and self._sealing.seal(known) == audit.seal:
            return known
        trees = self._auditing.audited(posted, priority)
        if trees is None:
            return None
        again = self._sealing.of_audit(posted, trees.claim.root)
        if self._sealing.seal(again) == audit.seal:
            return again
        why = "the sealed audit cannot be opened: its file is lost, and its salt does not follow from the key"
        self._role.tell(What.WARNING, why)
        return None
