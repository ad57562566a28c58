"""The conditions at the end of a round, read from the chain and from what the parties printed."""

from __future__ import annotations

from collections import Counter

from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Phase
from tiebreak.contract.events import Appealed, Challenged, JobPosted
from tiebreak.rpc.transport import HttpTransport
from tiebreak_demo.scene import transactions

from tests.chaos.stage import ETHER, Stage

UNDECIDED = (JobStatus.OPEN, JobStatus.SEALED, JobStatus.CLAIMED, JobStatus.APPEALABLE)
"""Statuses of a job that is not over."""


def judge(stage: Stage, job: int, right_root: bytes) -> list[str]:
    """All violations that the chain shows."""
    found = _verdict(stage, job, right_root)
    found += _appeals(stage, job)
    found += _elsewhere(stage, right_root)
    found += _twice(stage)
    found += _money(stage, job)
    return found


def _verdict(stage: Stage, job: int, right_root: bytes) -> list[str]:
    posted = stage.contract.job(job)
    if posted.status in UNDECIDED:
        return []  # the round has not ended, which was reported
    if posted.status is JobStatus.EXPIRED:
        return ["wrong verdict: the job expired"] if stage.plan.trainer is None else []
    right = posted.claim.checkpoint_root == right_root
    expected = JobStatus.FINAL if right and not stage.plan.appeals else JobStatus.REJECTED
    if posted.status is not expected:
        return [f"wrong verdict: {posted.status.name} instead of {expected.name}"]
    return []


def won_appeals(stage: Stage, job: int) -> list[int]:
    """The appeals of honest auditors that have saved the attestations' bonds."""
    honest = {str(stage.accounts[name].address) for name in stage.plan.honest}
    games = {number: stage.contract.game(number) for number in stage.contract.games_of(job)}
    return [
        number
        for number, game in games.items()
        if game.is_appeal and str(game.trainer) in honest and game.outcome is Outcome.TRAINER_WON
    ]


def _appeals(stage: Stage, job: int) -> list[str]:
    """A round that is to have appeals and has none has tried nothing."""
    posted = stage.contract.job(job)
    if not stage.plan.appeals or posted.status in UNDECIDED:
        return []
    found = [] if won_appeals(stage, job) else ["no appeal was played to its end by an honest auditor"]
    return found + (["honest loss: the verdict has taken the attestations' bonds"] if posted.audits.lost else [])


def _elsewhere(stage: Stage, right_root: bytes) -> list[str]:
    reader = stage.parties.get("reader")
    if reader is None or not reader.ended_well or right_root.hex() in reader.said():
        return []
    return [f"another root from data that lie elsewhere: {reader.last_words()}"]


def _twice(stage: Stage) -> list[str]:
    events = stage.contract.events(to_block=stage.node.head().number)
    found = []
    if (jobs := sum(isinstance(event, JobPosted) for event in events)) != 1:
        found.append(f"sent twice: {jobs} jobs were posted")
    names = {str(account.address): name for name, account in stage.accounts.items()}
    for what, payers in (
        ("bonds", [event.challenger for event in events if isinstance(event, Challenged)]),
        ("bonds of appeals", [event.appellant for event in events if isinstance(event, Appealed)]),
    ):
        found += [
            f"sent twice: {name} paid {count} {what}"
            for name, count in Counter(names.get(str(payer)) for payer in payers).items()
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
        challenger, defender = honest.get(str(game.challenger)), honest.get(str(game.trainer))
        payer = defender if game.is_appeal else challenger
        if payer and game.outcome is Outcome.VOID and game.bond_held:
            found.append(f"left behind: the bond of {payer} in game {number}")
        for name, won in ((challenger, Outcome.TRAINER_WON), (defender, Outcome.CHALLENGER_WON)):
            if name and game.outcome in (won, Outcome.BOTH_LOST):
                found.append(f"honest loss: {name} lost game {number} ({game.outcome.name}, {game.reason.name})")
    return found
