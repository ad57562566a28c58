"""Accounts of a contract: their roles, what they have at stake, and what they may withdraw."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from tiebreak.contract.structs import ANYONE, JobView
from tiebreak.dashboard.chain_reader import PAGE, ContractPages
from tiebreak.dashboard.showing import is_settled

NEWEST = 100
"""Newest jobs, and newest games, from which accounts are gathered."""

MOST_ACCOUNTS = 60


@dataclass(slots=True)
class Account:
    """One account. Amounts in wei; `balance`: outside of the contract. `roles`: how often it plays each."""

    address: str
    roles: dict[str, int] = field(default_factory=dict)
    escrowed: int = 0
    bonds: int = 0
    credit: int = 0
    balance: int = 0


@dataclass(frozen=True, slots=True)
class AccountsPage:
    """All accounts of the newest jobs and games, but for those left out. `burnt`: wei of lost bonds."""

    accounts: list[Account]
    left_out: int
    jobs: int
    games: int
    burnt: int


def read_accounts(source: ContractPages, block: int) -> AccountsPage:
    """Return the accounts as of a block. Raises ChainError."""
    jobs, games = source.newest(NEWEST, block)
    found: dict[str, Account] = {}

    def plays(address: str, role: str, bond: int = 0) -> Account:
        one = found.setdefault(address, Account(address))
        one.roles[role] = one.roles.get(role, 0) + 1
        one.bonds += bond
        return one

    for job in jobs.values():
        is_live = not is_settled(job.status)
        plays(job.customer, "customer").escrowed += is_live * _escrow(job)
        plays(job.spec.referee, "referee")
        if job.claim.trainer != ANYONE:
            plays(job.claim.trainer, "trainer", is_live * job.terms.trainer_bond)
    for game in games.values():
        plays(game.challenger, "challenger", game.bond_held * game.challenger_bond)
    audited = [number for number, job in jobs.items() if job.terms.attestations_needed][:PAGE]
    for number, audits in source.audits(audited, block).items():
        job = jobs[number]
        for audit in audits:
            plays(audit.auditor, "auditor", (not is_settled(job.status)) * job.terms.attestation_bond)
    chosen = list(found.values())[:MOST_ACCOUNTS]
    credits = source.credits([one.address for one in chosen], block)
    for one in chosen:
        one.credit = credits.get(one.address, 0)
        one.balance = source.contract.node.balance(one.address)  # type: ignore[arg-type]
    return AccountsPage(chosen, len(found) - len(chosen), len(jobs), len(games), source.burnt(block))


def _escrow(job: JobView) -> int:
    """Return the wei that a live job holds of its customer: the reward, and all fees."""
    names = [one.name for one in fields(job.terms) if one.name == "reward" or one.name.endswith("_fee")]
    return sum(getattr(job.terms, name) for name in names)
