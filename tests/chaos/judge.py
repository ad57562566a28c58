"""The conditions at the end of a round, read from the chain and from what the parties printed."""

from __future__ import annotations

from collections import Counter

from stage import ETHER, Stage
from tiebreak.chain.events import Challenged, JobPosted
from tiebreak.chain.records import AuditStatus, JobStatus, Outcome, Phase
from tiebreak.chain.transport import HttpTransport
from tiebreak.demo.ledger import transactions

UNDECIDED = (JobStatus.OPEN, JobStatus.SEALED, JobStatus.CLAIMED, JobStatus.APPEALABLE)
"""Statuses of a job that is not over."""


def judge(stage: Stage, job: int, right_root: bytes) -> list[str]:
    """All violations that the chain shows."""
    found = _verdict(stage, job, right_root)
    found += _twice(stage)
    found += _money(stage, job)
    return found


def _verdict(stage: Stage, job: int, right_root: bytes) -> list[str]:
    posted = stage.contract.job(job)
    if posted.status in UNDECIDED:
        return []  # the round has not ended, which was reported
    if posted.status is JobStatus.EXPIRED:
        return ["wrong verdict: the job expired"] if stage.plan.trainer is None else []
    expected = JobStatus.FINAL if posted.claim.checkpoint_root == right_root else JobStatus.REJECTED
    if posted.status is not expected:
        return [f"wrong verdict: {posted.status.name} instead of {expected.name}"]
    return []


def _twice(stage: Stage) -> list[str]:
    events = stage.contract.events(to_block=stage.node.head().number)
    found = []
    if (jobs := sum(isinstance(event, JobPosted) for event in events)) != 1:
        found.append(f"sent twice: {jobs} jobs were posted")
    names = {str(account.address): name for name, account in stage.accounts.items()}
    bonds = Counter(names.get(str(event.challenger)) for event in events if isinstance(event, Challenged))
    found += [
        f"sent twice: {name} paid {count} bonds"
        for name, count in bonds.items()
        if count > 1 and name in stage.plan.honest
    ]
    return found


def _money(stage: Stage, job: int) -> list[str]:
    """Losses of honest parties beyond fees, and money that they have left behind."""
    posted = stage.contract.job(job)
    fees: Counter[str] = Counter()
    for spent in transactions(stage.node, HttpTransport(stage.chain.url), stage.deployed_at + 1):
        fees[str(spent.sender)] += spent.fee
    found = []
    for name in [*stage.plan.honest, "customer"]:
        address = stage.accounts[name].address
        if credit := stage.contract.credit_of(address):
            found.append(f"left behind: {credit / ETHER:g} ether of {name}")
        gain = stage.node.balance(address) + fees[str(address)] + credit - stage.before[name]
        least = 0
        if name == "customer" and posted.status is JobStatus.FINAL:
            least = -posted.terms.reward - posted.terms.audit_fee
        if name == "customer" and posted.status is JobStatus.LAPSED:
            least = -posted.terms.audit_fee  # of those who did attest
        if name == "trainer" and posted.status is JobStatus.FINAL:
            least = posted.terms.reward
        # Whoever holds one of the first places has its share, however the job has ended.
        first = stage.contract.audits_of(job)[: posted.terms.attestations_needed]
        if any(audit.auditor == address and audit.status is not AuditStatus.CHALLENGED for audit in first):
            least = posted.terms.audit_fee // posted.terms.attestations_needed
        if posted.status not in UNDECIDED and gain < least:
            found.append(f"honest loss: {name} has {(gain - least) / ETHER:g} ether less than it should")
    honest = {str(stage.accounts[name].address): name for name in stage.plan.honest}
    for audit in stage.contract.audits_of(job) if posted.status not in UNDECIDED else []:
        if (name := honest.get(str(audit.auditor))) and audit.status in (AuditStatus.SEALED, AuditStatus.ATTESTED):
            found.append(f"left behind: the bond of {name}'s audit ({audit.status.name}, the job {posted.status.name})")
    for number in stage.contract.games_of(job):
        game = stage.contract.game(number)
        if game.phase is not Phase.OVER:
            continue
        name = honest.get(str(game.challenger))
        if name and game.outcome is Outcome.VOID and game.bond_held:
            found.append(f"left behind: the bond of {name} in game {number}")
        if name and game.outcome in (Outcome.TRAINER_WON, Outcome.BOTH_LOST):
            found.append(f"honest loss: {name} lost game {number} ({game.outcome.name}, {game.reason.name})")
        if "trainer" in stage.plan.honest and game.outcome in (Outcome.CHALLENGER_WON, Outcome.BOTH_LOST):
            found.append(f"honest loss: the trainer lost game {number} ({game.outcome.name}, {game.reason.name})")
    return found
