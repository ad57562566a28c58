"""The history of a game in words: its moves, with gas and time, from the contract's events and the receipts; and its
end: what was disputed, what both sides said, what the contract computed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tiebreak.contract import events
from tiebreak.contract.contract_watch import last_block_before
from tiebreak.contract.enums import Finding, Level, Outcome, Reason
from tiebreak.contract.events import Event
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import GameView, JobView
from tiebreak.dashboard import showing
from tiebreak.dashboard.path import left_to_search, operator_words, step_of
from tiebreak.dashboard.showing import EVENTS, FINDINGS, LEVELS, OUTCOMES, Names, Number, mover, name_words
from tiebreak.rpc.answers import TransactionReceipt
from tiebreak.strategy import stride

MOST_MOVES = 400
"""Transactions of one game that are shown; the longest game of a job that the contract takes has some 250."""

MANY = 1 << 64
"""Leaves of a level where they are not known."""

_RECEIPTS = 20_000

E = TypeVar("E", bound=Event)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GameHistory:
    """All moves of a game, one for each transaction, as the template has them, and its events. `cut`: whether moves
    beyond `MOST_MOVES` were left out."""

    moves: list[dict[str, Any]]
    events: list[Event]
    cut: bool = False

    @property
    def gas(self) -> int:
        return sum(move["gas"] for move in self.moves)

    @property
    def fee(self) -> int:
        return sum(move["fee"] for move in self.moves)

    def last(self, kind: type[E]) -> E | None:
        """Return the last event of a kind."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)


class Receipts:
    """Receipts and blocks, each asked for once. May be used from several threads."""

    def __init__(self, contract: VerificationGame) -> None:
        self._contract = contract
        self._lock = threading.Lock()
        self._cache: OrderedDict[object, Any] = OrderedDict()

    def receipt(self, event: Event) -> TransactionReceipt | None:
        """Return the receipt of an event's transaction; None if the node does not show it. Raises ChainError."""
        return self._once((event.block, event.transaction), lambda: self._contract.node.receipt(event.transaction))

    def time(self, block: int) -> int:
        """Return the time of a block in seconds since 1970; 0 if the node does not show it. Raises ChainError."""
        found = self._once(block, lambda: self._contract.node.block(block))
        return 0 if found is None else found.timestamp

    def games(self, receipt: TransactionReceipt) -> set[int]:
        """Return the games in which a transaction made moves."""
        found = self._contract.decode(receipt.logs)
        return {game for event in found if mover([event]) and (game := getattr(event, "game", None)) is not None}

    def _once(self, key: object, read: Callable[[], T | None]) -> T | None:
        with self._lock:
            found: T | None = self._cache.get(key)
        if found is None and (found := read()) is not None:
            with self._lock:
                self._cache[key] = found
                while len(self._cache) > _RECEIPTS:
                    self._cache.popitem(last=False)
        return found


def first_block(contract: VerificationGame, job: JobView, newest: int) -> int:
    """Return a block before everything that happened to a job. Raises ChainError."""
    return max(contract.first_block, last_block_before(contract.node, job.posted_at, newest))


def read_history(contract: VerificationGame, receipts: Receipts, number: int, job: JobView, newest: int) -> GameHistory:
    """Return the history of a game up to block `newest`. Raises ChainError."""
    found = contract.events(game=number, from_block=first_block(contract, job, newest), to_block=newest)
    grouped: dict[bytes, list[Event]] = {}
    for event in found:
        grouped.setdefault(event.transaction, []).append(event)
    games = {getattr(event, "game", None) for event in found}
    top = next((one for one in found if isinstance(one, events.LeafFound) and one.level is Level.CHECKPOINT), None)
    first_step = 0 if top is None else top.leaf_index * job.spec.training.interval
    leaves: dict[object, int] = {one.level: one.leaf_count for one in found if isinstance(one, events.LevelStarted)}
    moves = []
    for transaction, group in list(grouped.items())[:MOST_MOVES]:
        receipt = receipts.receipt(group[0])
        said = [event_words(event, first_step, leaves.get(getattr(event, "level", None), MANY)) for event in group]
        moves.append(
            {
                "transaction": showing.hexed(transaction),
                "time": receipts.time(group[0].block),
                "who": mover(group),
                "words": "; ".join(words for words in said if words),
                "gas": 0 if receipt is None else receipt.gas_used,
                "fee": 0 if receipt is None else receipt.fee,  # in wei
                # Whether it made moves of other games as well, which its gas includes.
                "shared": receipt is not None and not receipts.games(receipt) <= games,
            }
        )
    return GameHistory(moves, found, cut=len(grouped) > MOST_MOVES)


def _range(unit: str, skipped: int, index: int, height: int, leaves: int) -> str:
    """Return the leaves below a place in words."""
    first, last = skipped + index, skipped + min(index + (1 << height), leaves) - 1
    return f"{unit}s {first:,} to {last:,}" if last > first else f"{unit} {first:,}"


def event_words(event: Event, first_step: int = 0, leaves: int = MANY) -> str:
    """Return an event in a clause; empty for one that only repeats another. An event that this version has no words
    for is told by its name.

    first_step: of the disputed interval, where the leaves of level STEP begin. leaves: of the event's level."""
    skipped = first_step if getattr(event, "level", None) is Level.STEP else 0
    unit = LEVELS[event.level][0] if hasattr(event, "level") and event.level in LEVELS else ""
    match event:
        case events.Challenged():
            return f"challenges the claim with root {showing.short(showing.hexed(event.checkpoint_root))}"
        case events.Bisected():
            left = max(0, event.height - stride(event.height))
            place = _range(unit, skipped, event.leaf_index, event.height, leaves)
            return f"searches {place}: they differ first in {_range(unit, skipped, event.to, left, leaves)}"
        case events.LeafFound():
            return f"{unit} {skipped + event.leaf_index:,} is the first that differs"
        case events.LeafOpened():
            return f"shows its own {unit}"
        case events.RootOpened():
            below = LEVELS[event.next_level][0] if event.next_level in LEVELS else name_words(event.next_level)
            return f"opens its root over the {below}s"
        case events.OperatorKnown():
            return f"operator {event.operator:,} has {event.elements:,} elements in {event.chunks:,} chunks"
        case events.ChunkPosted():
            return f"shows chunk {event.leaf_index:,}, {len(event.chunk):,} bytes"
        case events.ElementDisputed():
            return f"disputes element {event.element:,}, a sum of many terms"
        case events.ElementProven():
            found = {Finding.VALUE: "finds it wrong", Finding.STOPS: "finds that no number is right"}
            return f"proves element {event.element:,}: the contract {found.get(event.finding, 'cannot tell')}"
        case events.SegmentProven():
            return f"proves segment {event.segment:,} of the sum: the contract adds it up"
        case events.StoreProven():
            return f"proves what the store of slot {event.slot:,} has to keep"
        case events.RefereeCalled():
            return f"the referee is asked about element {event.element:,}"
        case events.Adjudicated():
            return f"says that the right bits are {showing.number(event.bits, 4).bits}"
        case events.GameOver():
            return f"{OUTCOMES[event.outcome].lower()} {showing.ENDS[event.reason]}"
        case events.Burnt():
            return f"{showing.ether(event.amount)} of lost bonds are burnt"
    name = type(event).__name__
    if name in EVENTS:
        return EVENTS[name]
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


@dataclass(frozen=True, slots=True)
class DisputedNumber:
    """The disputed number, as far as known. `subject`: such as operator 255, matmul of gpt.py line 54, element 2,411;
    `claimed`: the trainer's; `computed`: the contract's, or the referee's."""

    subject: str
    sentence: str
    claimed: Number | None = None
    computed: Number | None = None
    by: str = "the contract computed"


def subject(game: GameView, job: JobView, names: Names) -> str:
    """Return the disputed step, operator and element, as far as they are known."""
    step = step_of(game, job)
    if step is None:
        return ""
    parts = [f"step {step:,}"]
    if len(game.levels) > 2 and not (len(game.levels) == 3 and left_to_search(game)):
        parts += [words for words in operator_words(game.levels[Level.OPERATOR], job, names) if words]
    if game.disputed.known:
        parts.append(f"element {game.disputed.element:,}")
    return ", ".join(parts)


def verdict(game: GameView, job: JobView, history: GameHistory, names: Names) -> DisputedNumber | None:
    """Return the contract's finding, or another end of the game; None as long as there is nothing to tell."""
    about, width = subject(game, job, names), game.operator.width
    if (proof := history.last(events.ElementProven)) is not None:
        return _element(game, proof, about, width, history)
    if (proven := history.last(events.SegmentProven)) is not None:
        return _segment(game, proven, about, width)
    if (store := history.last(events.StoreProven)) is not None:
        return _store(game, store, about)
    if game.disputed.known:
        claimed = showing.number(game.disputed.claimed, width)
        ended = _how(game) if game.outcome else "The contract has not computed it yet."
        return DisputedNumber(about, f"The trainer claims {claimed.bits} ({claimed.value}). {ended}", claimed)
    if not game.outcome:
        return None
    return DisputedNumber(about, _how(game))


def _element(
    game: GameView, proof: events.ElementProven, about: str, width: int, history: GameHistory
) -> DisputedNumber:
    if f"element {proof.element:,}" not in about:
        about = f"{about}, element {proof.element:,}"
    claimed = showing.number(proof.claimed, width)
    if proof.finding is Finding.VALUE:
        computed = showing.number(proof.bits, width)
        said = (
            f"The trainer claims {claimed.bits} ({claimed.value}), the contract computed {computed.bits} "
            f"({computed.value})."
        )
        return DisputedNumber(about, said, claimed, computed)
    said = f"The trainer claims {claimed.bits} ({claimed.value}); the contract: {FINDINGS.get(proof.finding, '')}."
    if (answer := history.last(events.Adjudicated)) is not None:
        computed = showing.number(answer.bits, width)
        said += f" The referee says {computed.bits} ({computed.value})."
        return DisputedNumber(about, said, claimed, computed, by="the referee says")
    return DisputedNumber(about, said, claimed)


def _segment(game: GameView, proof: events.SegmentProven, about: str, width: int) -> DisputedNumber:
    claimed = showing.number(game.disputed.claimed, width) if game.disputed.known else None
    loser = _loser(game)
    said = (
        f"The element is a sum of {game.operator.segments:,} segments of terms. The contract added up segment "
        f"{proof.segment:,} itself" + (f": the {loser}'s running result after it is wrong." if loser else ".")
    )
    if claimed is not None:
        said += f" The trainer claims {claimed.bits} ({claimed.value}) for the whole sum."
    return DisputedNumber(about, said, claimed)


def _store(game: GameView, proof: events.StoreProven, about: str) -> DisputedNumber:
    kept, loser = showing.short(showing.hexed(proof.payload)), _loser(game)
    said = f"State slot {proof.slot:,} has to keep what was computed for it, the tensor with root {kept}"
    return DisputedNumber(about, f"{said}; the {loser} claims another one." if loser else f"{said}.")


def _loser(game: GameView) -> str:
    """Return the side that has lost alone; empty if none has."""
    return {Outcome.CHALLENGER_WON: "trainer", Outcome.TRAINER_WON: "challenger"}.get(game.outcome, "")


def _how(game: GameView) -> str:
    if game.reason is Reason.TIMEOUT and (loser := _loser(game)):
        return f"{OUTCOMES[game.outcome]}: the {loser}'s clock ran out."
    return f"{OUTCOMES[game.outcome]} {showing.ENDS[game.reason]}."
