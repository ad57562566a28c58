"""Accounts of a contract: their roles, what they have at stake, what they may withdraw, and the gas that they spent."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from tiebreak.contract.enums import Side
from tiebreak.contract.events import Event
from tiebreak.contract.struct_bases import ANYONE
from tiebreak.contract.structs import GameView, JobView
from tiebreak.dashboard.chain_reader import ContractPages
from tiebreak.dashboard.showing import SIDES, is_settled, mover

if TYPE_CHECKING:
    from tiebreak.contract.game import VerificationGame
    from tiebreak.dashboard.game_history import Receipts

JOBS, GAMES = 100, 100
"""Newest jobs and games from which accounts are gathered."""

MOST_ACCOUNTS = 60
MOST_EVENTS = 3_000
MOST_TRANSACTIONS = 400
BLOCKS = 20_000
"""Blocks, events and transactions that are searched for gas, from the newest back."""


SENDERS = {
    "JobPosted": "customer",
    "ClaimSealed": "trainer",
    "Committed": "trainer",
    "AuditSealed": "auditor",
    "Attested": "auditor",
    "Collected": "auditor",
    "Challenged": "challenger",
    "Appealed": "appellant",
    "Withdrawn": "account",
}
"""Events that only one account can cause, and the field that names it."""

AUDITS = ("AuditSealed", "Attested")
"""Events by which an auditor puts a bond on a claim, where terms ask for one."""


@dataclass(slots=True)
class Account:
    """One account. Amounts in wei; `balance`: outside of the contract."""

    address: str
    roles: dict[str, int] = field(default_factory=dict)
    """Number of times that it plays each role, by the role's name."""
    escrowed: int = 0
    bonds: int = 0
    credit: int = 0
    balance: int = 0
    gas: int = 0
    fees: int = 0
    transactions: int = 0

    def plays(self, role: str) -> None:
        self.roles[role] = self.roles.get(role, 0) + 1


@dataclass(frozen=True, slots=True)
class AccountsPage:
    """All accounts of the newest jobs and games, and how far the search for gas went."""

    accounts: list[Account]
    left_out: int
    jobs: int
    games: int
    burnt: int
    since: int
    """The first block whose transactions were counted."""


def read_accounts(contract: VerificationGame, source: ContractPages, receipts: Receipts, block: int) -> AccountsPage:
    """The accounts as of a block. Raises ChainError."""
    jobs, games = source.newest(JOBS, GAMES, block)
    found: dict[str, Account] = {}

    def account(address: str) -> Account:
        return found.setdefault(address, Account(address))

    for job in jobs.values():
        _add_job(account(job.customer), account(job.spec.referee), job)
        if job.claim.trainer != ANYONE:
            trainer = account(job.claim.trainer)
            trainer.plays("trainer")
            if not is_settled(job.status):
                trainer.bonds += job.terms.trainer_bond
    for game in games.values():
        challenger = account(game.challenger)
        challenger.plays("challenger")
        if game.bond_held:
            challenger.bonds += game.challenger_bond
    since = _add_gas(contract, receipts, found, jobs, games, block)
    chosen = list(found.values())[:MOST_ACCOUNTS]
    credits = source.credits([one.address for one in chosen], block)
    for one in chosen:
        one.credit = credits.get(one.address, 0)
        one.balance = contract.node.balance(one.address)  # type: ignore[arg-type]
    return AccountsPage(chosen, len(found) - len(chosen), len(jobs), len(games), source.burnt(block), since)


def _add_job(customer: Account, referee: Account, job: JobView) -> None:
    customer.plays("customer")
    referee.plays("referee")
    if not is_settled(job.status):
        customer.escrowed += sum(
            getattr(job.terms, one.name)
            for one in fields(job.terms)
            if one.name == "reward" or one.name.endswith("_fee")
        )


def _add_gas(
    contract: VerificationGame,
    receipts: Receipts,
    found: dict[str, Account],
    jobs: dict[int, JobView],
    games: dict[int, GameView],
    block: int,
) -> int:
    """Adds the gas of the newest transactions to the accounts that sent them; returns the block that it came to."""
    first = max(contract.first_block, block - BLOCKS, 0)
    sent: dict[bytes, tuple[Event, str]] = {}
    audits: set[tuple[int, str]] = set()
    since = first
    newest_first = contract.node.search_back(contract.address, from_block=first, to_block=block)
    for count, log in enumerate(newest_first):
        if count >= MOST_EVENTS or len(sent) >= MOST_TRANSACTIONS:
            since = log.block + 1
            break
        for event in contract.decode([log]):
            by = sender(event, games)
            if type(event).__name__ in AUDITS:
                audits.add((event.job, by))  # type: ignore[attr-defined]
            if by and event.block >= since:
                sent.setdefault(event.transaction, (event, by))
    for number, auditor in sorted(audits):
        one = found.setdefault(auditor, Account(auditor))
        one.plays("auditor")
        if (job := jobs.get(number)) is not None and not is_settled(job.status):
            one.bonds += getattr(job.terms, "attestation_bond", 0)
    for event, by in sent.values():
        receipt = receipts.receipt(event)
        if receipt is not None and by in found:
            one = found[by]
            one.gas += receipt.gas_used
            one.fees += receipt.fee
            one.transactions += 1
    return since


def sender(event: Event, games: dict[int, GameView]) -> str:
    """The account that made the move that an event tells of; empty if anybody could have made it."""
    if (name := SENDERS.get(type(event).__name__)) is not None:
        return str(getattr(event, name))
    game = games.get(getattr(event, "game", 0))
    who = mover([event])
    return "" if game is None or who not in SIDES.values() else game.party(Side[who.upper()])
