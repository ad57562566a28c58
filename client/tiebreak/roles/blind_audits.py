"""Blind audits: an auditor's root, sealed before the claim is known and opened after it. An equal root is an
attestation, another one a challenge with the bond that is there."""

from __future__ import annotations

from tiebreak.chain.records import AuditView, JobView
from tiebreak.roles.agenda import Duty
from tiebreak.roles.attesting import Attesting
from tiebreak.roles.auditing import BLIND, Auditing
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.notices import Progress, What
from tiebreak.roles.overdue import end_unopened
from tiebreak.roles.publishing import Publishing
from tiebreak.roles.sealing import Sealing, Secret


class BlindAudits:
    """The sealed audit of an auditor in one job."""

    def __init__(self, role: JobRole, auditing: Auditing, attesting: Attesting) -> None:
        self._role = role
        self._auditing = auditing
        self._attesting = attesting
        self._sealing = Sealing(role, "audit")
        self._publishing = Publishing(role, BLIND)

    def before_opening(self, posted: JobView, audit: AuditView | None) -> Progress:
        """Repeats the run and seals its root, of a job in status SEALED; then waits for the claim."""
        deadline = posted.audits.audit_deadline
        if audit is not None:
            self._auditing.rest()
            return end_unopened(self._role, posted)
        if self._role.context.now() > posted.audits.opening_deadline:
            return self._role.leave(f"the trainer has not opened its claim on job {self._role.job} in time")
        if self._role.context.now() > deadline:
            return Progress(state="waits for the claim to be opened", until=posted.audits.opening_deadline + 1)
        if (why := self._attesting.objection(posted)) is not None:
            return Progress(state=f"seals no audit of job {self._role.job}: {why}", until=deadline + 1)
        duty = Duty(deadline=deadline, stake=posted.terms.trainer_bond)
        evidence = self._auditing.audited(posted, duty)
        if evidence is None:
            return Progress(working=True, state="audits blindly", until=deadline)
        doubts = self._auditing.doubts(posted, evidence, duty)
        if doubts is None:
            return Progress(working=True, state="asks for a second opinion on a stop")
        if doubts[0] is not None:
            self._role.notify_job(What.WARNING, f"seals no audit of job {self._role.job}: {doubts[0]}")
            return Progress(state=f"seals no audit: {doubts[0]}", until=deadline + 1)
        if not self._role.confirmed(posted):
            return Progress(working=True, state="waits until the sealed claim lies deep enough")
        return self._seal(posted, evidence.claim.root)

    def _seal(self, posted: JobView, root: bytes) -> Progress:
        role = self._role
        secret = self._sealing.keep(posted, self._sealing.of_audit(posted, root))
        if secret.checkpoint_root != root:
            # Never on a sound machine: the same job always comes to the same root.
            why = "this audit came to another root than an earlier one, which may be sealed already: check this machine"
            role.notify_job(What.WARNING, why)
            return Progress(state=why)
        self._attesting.tell_stakes(posted)
        role.order(
            "seal its audit",
            "sealAudit",
            *(role.job, posted.spec_hash, self._sealing.seal(secret)),
            value=posted.terms.attestation_bond,
            purpose=f"seal an audit of {role.intention(posted)}",
            job=role.job,
        )
        return Progress(state="seals its audit")

    def open(self, posted: JobView, audit: AuditView) -> Progress:
        """Opens the sealed audit, of a job in status CLAIMED, within the window."""
        deadline = posted.audits.audit_opening_deadline
        duty = Duty(deadline=deadline, stake=posted.terms.attestation_bond, bonded=True)
        secret = self._secret(posted, audit, duty)
        if secret is None:
            return Progress(working=True, state="gets its audit ready to open", deadline=deadline)
        root, job = secret.checkpoint_root, self._role.job
        if root != posted.claim.checkpoint_root:
            text = f"open its audit, whose root 0x{root.hex()} challenges the claim"
            self._role.order(text, "openAudit", job, root, "", "", secret.salt, job=job)
            return Progress(state="opens its audit", deadline=deadline)
        evidence = self._auditing.evidence(posted, duty, root)
        if evidence is None:
            return Progress(working=True, state="gets its log and model ready", deadline=deadline)
        served = self._publishing.published(posted, duty)
        # In the second half of the window it no longer waits for a store: the bond is lost at its end.
        if served is None and self._role.context.now() > deadline - posted.terms.opening_window // 2:
            served = self._publishing.addresses(posted, duty)
        if served is None:
            return Progress(working=True, state="publishes its log and model", deadline=deadline)
        text = "open its audit, which attests to the claim, and to serving log and model"
        self._role.order(text, "openAudit", job, root, served.log_cid, served.model_cid, secret.salt, job=job)
        return Progress(state="opens its audit", deadline=deadline)

    def is_published(self, posted: JobView) -> bool:
        """Whether log and model of an attestation are published by this process; has it done if not. The audit may have
        been opened at the last moment without a store, or by a process that was killed."""
        if not self._publishing.is_done:
            duty = Duty(deadline=posted.claim.challenge_deadline, stake=posted.terms.attestation_bond, bonded=True)
            if self._auditing.evidence(posted, duty, posted.claim.checkpoint_root) is not None:
                self._publishing.published(posted, duty)
        return self._publishing.is_done

    def _secret(self, posted: JobView, audit: AuditView, duty: Duty) -> Secret | None:
        """The content of the seal that the chain shows: from disk, or computed again. None until it is there; if it
        cannot be, that is told."""
        known = self._sealing.kept(posted)
        if known is not None and self._sealing.seal(known) == audit.seal:
            return known
        evidence = self._auditing.audited(posted, duty)
        if evidence is None:
            return None
        again = self._sealing.of_audit(posted, evidence.claim.root)
        if self._sealing.seal(again) == audit.seal:
            return again
        why = "the sealed audit cannot be opened: its file is lost, and its salt does not follow from the key"
        self._role.notify_job(What.WARNING, why)
        return None
