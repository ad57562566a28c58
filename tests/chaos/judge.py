"""The conditions at the end of a round, read from the chain and from what the parties printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tiebreak.cli.summary_text import UNDECIDED
from tiebreak.contract.enums import AuditStatus, JobStatus, Outcome, Phase
from tiebreak.contract.events import Appealed, Challenged, JobPosted
from tiebreak.contract.game import VerificationGame
from tiebreak_demo.scene import transactions

from tests.chaos.stage import ETHER, Stage


def left_behind(contract: VerificationGame, job: int, honest: Mapping[str, str]) -> list[str]:
    """Money of a job that is over which honest parties, by their addresses, could have and have not fetched."""
    posted = contract.job(job)
    found = [f"a credit of {name}" for address, name in honest.items() if contract.credit_of(address)]  # type: ignore[arg-type]
    for audit in contract.audits_of(job):
        lost = posted.audits.lost and audit.status is AuditStatus.ATTESTED
        is_held = audit.status in (AuditStatus.SEALED, AuditStatus.ATTESTED) and not lost
        if is_held and (name := honest.get(str(audit.auditor))):
            found.append(f"the bond of {name}'s audit ({audit.status.name})")
    for number in contract.games_of(job):
        game = contract.game(number)
        name = honest.get(str(game.trainer if game.is_appeal else game.challenger))
        if name and game.phase is Phase.OVER and game.bond_held:
            found.append(f"the bond of {name} in game {number}")
    return [f"left behind: {what}" for what in found]


def losses(contract: VerificationGame, job: int, honest: Mapping[str, str], gains: Mapping[str, int]) -> list[str]:
    """Honest parties that have less than they should, or have lost a game. gains: of each by name, fees aside."""
    posted = contract.job(job)
    status, terms, audits = posted.status, posted.terms, contract.audits_of(job)
    share = terms.audit_fee // max(1, terms.attestations_needed)
    first = audits[: terms.attestations_needed]
    found = []
    for address, name in honest.items():
        least = 0
        if name == "customer" and status is JobStatus.FINAL:
            least = -terms.reward - terms.audit_fee
        if name == "customer" and status is JobStatus.LAPSED:
            least = -share * min(sum(bool(audit.model_cid) for audit in audits), terms.attestations_needed)
        if name == "trainer" and status is JobStatus.FINAL:
            least = terms.reward
        # Whoever holds one of the first places has its share, however the job has ended.
        if any(audit.auditor == address and audit.status is not AuditStatus.CHALLENGED for audit in first):
            least = share
        if gains[name] < least:
            found.append(f"{name} has {(gains[name] - least) / ETHER:g} ether less than it should")
    for number in contract.games_of(job):
        game = contract.game(number)
        sides = ((str(game.challenger), Outcome.TRAINER_WON), (str(game.trainer), Outcome.CHALLENGER_WON))
        for address, lost in sides:
            if address in honest and game.phase is Phase.OVER and game.outcome in (lost, Outcome.BOTH_LOST):
                found.append(f"{honest[address]} lost game {number} ({game.outcome.name}, {game.reason.name})")
    return [f"honest loss: {what}" for what in found]


def judge(stage: Stage, job: int, right_root: bytes) -> list[str]:
    """All violations that the chain shows of a round of processes."""
    found = [*_appeals(stage, job), *_elsewhere(stage, right_root), *_twice(stage)]
    posted = stage.contract.job(job)
    if posted.status in UNDECIDED:
        return found  # the round has not ended, which was reported
    honest = {str(stage.accounts[name].address): name for name in [*stage.plan.honest, "customer"]}
    fees: Counter[str] = Counter()
    for spent in transactions(stage.node, stage.deployed_at + 1):
        fees[str(spent.sender)] += spent.fee
    gains = {
        name: stage.node.balance(address) + fees[address] + stage.contract.credit_of(address) - stage.before[name]  # type: ignore[arg-type]
        for address, name in honest.items()
    }
    right = posted.claim.checkpoint_root == right_root
    expected = JobStatus.FINAL if right and not stage.plan.appeals else JobStatus.REJECTED
    if posted.status is JobStatus.EXPIRED:
        found += ["wrong verdict: the job expired"] if stage.plan.trainer is None else []
    elif posted.status is not expected:
        found.append(f"wrong verdict: {posted.status.name} instead of {expected.name}")
    found += left_behind(stage.contract, job, honest)
    return found + losses(stage.contract, job, honest, gains)


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
