"""Accounts of a contract: their roles, what they have at stake, what they may withdraw, and the gas that they spent."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiebreak.chain import events
from tiebreak.chain.events import Event
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.records import GameView, JobView, Side
from tiebreak.dashboard.course import Receipts
from tiebreak.dashboard.source import Source
from tiebreak.dashboard.words import is_settled

JOBS, GAMES = 100, 100
"""Newest jobs and games from which accounts are gathered."""

MOST_ACCOUNTS = 60
MOST_EVENTS = 3_000
MOST_TRANSACTIONS = 400
BLOCKS = 20_000
"""Blocks, events and transactions that are searched for gas, from the newest back."""


@dataclass(slots=True)
class Account:
    """One account. Amounts in wei; `balance`: outside of the contract."""

    address: str
    roles: dict[str, int] = field(default_factory=dict)
    """How often it plays each role, by the role's name."""
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


def read_accounts(contract: VerificationGame, source: Source, receipts: Receipts, block: int) -> AccountsPage:
    """The accounts as of a block. Raises ChainError."""
    jobs, games = source.newest(JOBS, GAMES, block)
    found: dict[str, Account] = {}

    def account(address: str) -> Account:
        return found.setdefault(address, Account(address))

    for job in jobs.values():
        _add_job(account(job.customer), account(job.spec.referee), job)
        if job.claim.committed_at:
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
        customer.escrowed += job.terms.reward


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
    since = first
    newest_first = contract.node.search_back(contract.address, from_block=first, to_block=block)
    for count, log in enumerate(newest_first):
        if count >= MOST_EVENTS or len(sent) >= MOST_TRANSACTIONS:
            since = log.block + 1
            break
        for event in contract.decode([log]):
            by = sender(event, games)
            if isinstance(event, events.Attested):
                found.setdefault(event.auditor, Account(event.auditor)).plays("auditor")
            if by and event.block >= since:
                sent.setdefault(event.transaction, (event, by))
    for event, by in sent.values():
        receipt = receipts.receipt(event)
        if receipt is not None and by in found:
            one = found[by]
            one.gas += receipt.gas_used
            one.fees += receipt.fee
            one.transactions += 1
    return since


def sender(event: Event, games: dict[int, GameView]) -> str:
    """The account that made the move of which an event tells; empty if anybody could have made it."""
    game = games.get(getattr(event, "game", 0))
    match event:
        case events.JobPosted():
            return event.customer
        case events.Committed():
            return event.trainer
        case events.Attested():
            return event.auditor
        case events.Challenged():
            return event.challenger
        case events.Withdrawn():
            return event.account
        case events.Bisected():
            return game.party(event.mover) if game is not None else ""
        case events.LeafOpened() | events.RootOpened():
            return game.party(event.side) if game is not None else ""
        case events.ChunkPosted():
            return game.party(Side.TRAINER) if game is not None else ""
        case events.ElementDisputed() | events.ElementProven() | events.SegmentProven() | events.StoreProven():
            return game.party(Side.CHALLENGER) if game is not None else ""
    return ""
