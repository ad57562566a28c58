"""View of any number of jobs and games, kept up to date by two requests a block.

Every look asks for the newest block and for the contract's events of the last `MAX_REORGANISATION` blocks. So an event
that a node had not seen yet, or that came back in another block, shows up at the next look. Jobs and games are read
again, all with one request, only when an event has touched them. What a side has shown in a game, the trainer's chunk
and the rows of a search, is found without searching the whole chain.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roundlog.commitments import leaf_hash

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import Level, Side
from tiebreak.contract.events import (
    Bisected,
    ChunkPosted,
    ClaimRejected,
    Event,
    RootOpened,
    RowShown,
    VerdictOverturned,
)
from tiebreak.rpc.chain_errors import ContractError, InvalidAnswer, NotConfirmed
from tiebreak.rpc.node import MAX_REORGANISATION, BlockPace, ChainNode

if TYPE_CHECKING:
    from tiebreak.contract.game import VerificationGame
    from tiebreak.contract.structs import AuditView, Bisection, GameView, JobView
    from tiebreak.rpc.answers import Block

_FIRST_STEP = 64


def find_chunk(contract: VerificationGame, game_id: int, game: GameView) -> bytes | None:
    """Return the chunk that was posted in a game; None if the node does not show it.

    Searched from the instant at which the challenger's clock has started, which is that of the post. Its hash is known,
    so that it need not lie under any number of blocks. Raises the errors of ChainNode.
    """
    wanted, posted_at = game.search.nodes[Side.TRAINER], game.clocks[Side.CHALLENGER].started_at
    found = (event.chunk for event in events_since(contract, game_id, posted_at) if isinstance(event, ChunkPosted))
    return next((bytes(chunk) for chunk in found if leaf_hash(chunk) == wanted), None)


def find_rows(
    contract: VerificationGame, game_id: int, game: GameView, *, everywhere: bool = False
) -> tuple[tuple[bytes, ...], ...]:
    """Return the rows that were shown in a game, in the block that the contract names; `everywhere`: in all blocks
    since the claim, for a chain that numbers its blocks otherwise than it tells its contracts.

    A node may leave some out or make some up: the contract holds the hash of the one that is needed. Raises the errors
    of ChainNode."""
    first = last = game.search.shown_in
    if everywhere:
        last = contract.node.head().number
        claimed = contract.job(game.job).claim.committed_at
        first = max(contract.first_block, last_block_before(contract.node, claimed, last))
    found: list[tuple[bytes, ...]] = []
    for event in contract.events(game=game_id, from_block=first, to_block=last):
        if isinstance(event, Bisected | RootOpened):
            found.append(event.next if isinstance(event, Bisected) else event.row)
    if game.current.level is Level.CHECKPOINT:
        about_job = contract.events(job=game.job, from_block=first, to_block=last)
        found += [event.row for event in about_job if isinstance(event, RowShown)]
    return tuple(found)


def events_since(contract: VerificationGame, game: int, instant: int) -> list[Event]:
    """Return the events of a game from an instant on (seconds since 1970), and some before it, up to the newest block.
    Raises the errors of ChainNode."""
    newest = contract.node.head().number
    first = max(contract.first_block, last_block_before(contract.node, instant, newest))
    return contract.events(game=game, from_block=first, to_block=newest)


def last_block_before(node: ChainNode, instant: int, newest: int) -> int:
    """Return number of a block that is older than `instant` (seconds since 1970), less than twice as far back as need
    be."""
    step = _FIRST_STEP
    while step < newest:
        block = node.block(newest - step)
        if block is not None and block.timestamp < instant:
            return newest - step
        step *= 2
    return 0


PAGE = 100
"""Views of one request: a node gives a call some 50 million gas, and a game takes up to 0.2 million to show."""

_ALL_AFTER = 100
"""Blocks after which everything followed is read again, whatever the events say."""


_MOST_CAUGHT_UP = 20_000
"""Blocks (three days) whose events are read after a pause. After a longer one, or where a node makes its height up,
everything followed is read again instead."""


@dataclass(frozen=True, slots=True)
class News:
    """Findings of one look. `taken_back`: events of blocks that are no longer part of the chain."""

    block: Block
    events: tuple[Event, ...]
    taken_back: tuple[Event, ...]


class ContractWatch:
    """The newest view of a contract, and one that is as many blocks deep as its node has confirmations.

    May be used from several threads. All methods that ask raise the errors of ChainNode."""

    def __init__(self, contract: VerificationGame) -> None:
        self.contract, self.confirmations = contract, contract.node.confirmations
        self._pace = BlockPace()
        self._view = contract.node.view
        self._lock = threading.RLock()
        self._head: Block | None = None
        self._events: dict[tuple[bytes, int], Event] = {}
        """Events of the last blocks, by block hash and place in the block."""
        self._hashes: dict[int, bytes] = {}
        self._followed: set[int] = set()
        self._jobs: dict[int, JobView] = {}
        self._games: dict[int, GameView] = {}
        self._games_of: dict[int, list[int]] = {}
        self._audits_of: dict[int, list[AuditView]] = {}
        self._chunks: dict[int, tuple[bytes, ...]] = {}
        self._rows: dict[int, tuple[Bisection, tuple[tuple[bytes, ...], ...]]] = {}
        self._confirmed: dict[int, tuple[int, JobView]] = {}
        self._stale_jobs: set[int] = set()
        self._stale_games: set[int] = set()
        self._all_read_at = 0
        self._pending_news: News | None = None
        """News that was taken in before a request failed."""

    # Jobs and games that are followed.

    def follow(self, job: int) -> None:
        """Keep a job and its games at hand from the next look on."""
        with self._lock:
            if job not in self._followed:
                self._followed.add(job)
                self._stale_jobs.add(job)

    def unfollow(self, job: int) -> None:
        with self._lock:
            self._followed.discard(job)
            self._stale_jobs.discard(job)
            for game in self._games_of.pop(job, []):
                self._games.pop(game, None)
                self._chunks.pop(game, None)
                self._rows.pop(game, None)
                self._stale_games.discard(game)
            self._jobs.pop(job, None)
            self._audits_of.pop(job, None)
            self._confirmed.pop(job, None)

    # Looking.

    def look(self) -> News | None:
        """Take in the newest block, if there is one that was not seen: one request to know that, a second one for the
        events, and a third (one for each `PAGE` of them) where they have touched what is followed."""
        with self._lock:
            head = self.contract.node.head()
            before = self._head
            if (view := self.contract.node.view) != self._view:
                self._begin_anew()
            if view != self._view or before is None or not self._is_old(head, before):
                self._take_in(head, before)
                self._view = view
                if not 0 <= head.number - self._all_read_at < _ALL_AFTER:
                    self._all_read_at = head.number
                    self._stale_jobs |= self._followed
                    self._stale_games |= set(self._games)
                    self._audits_of.clear()
            self._read_stale()
            news, self._pending_news = self._pending_news, None
            return news

    @property
    def head(self) -> Block | None:
        """The newest block that was seen."""
        return self._head

    def now(self) -> int:
        """Return the chain's time in seconds since 1970, by the newest block and the time since; 0 before the first
        look."""
        return self._pace.now()

    # The newest view.

    def job(self, job: int) -> JobView:
        """Return the job now. Raises ContractError (WrongJobStatus) if the node's newest block has no such job."""
        with self._lock:
            found = self._jobs.get(job)
            if found is None or job in self._stale_jobs:
                found = self.contract.job(job)
                if job in self._followed:
                    self._jobs[job] = found
                    self._stale_jobs.discard(job)
            return found

    def games_of(self, job: int) -> list[int]:
        """Return a job's games in the order of their challenges. Nothing is asked while there are none."""
        with self._lock:
            shown = self.job(job)
            if not shown.game_count:
                return []
            known = self._games_of.get(job)
            if known is None or len(known) < shown.game_count:
                known = self.contract.games_of(job)
                if job in self._followed:
                    self._games_of[job] = known
            return list(known)

    def audits_of(self, job: int) -> list[AuditView]:
        """Return a job's audits with a bond, in the order in which they came. Nothing is asked while there are none, or
        while no event of the job has come."""
        with self._lock:
            if not self.job(job).audits.count:
                return []
            known = self._audits_of.get(job)
            if known is None:
                # As of the block that was seen, as everything else.
                known = self.contract.audits_of(job, block=None if self._head is None else self._head.number)
                if job in self._followed:
                    self._audits_of[job] = known
            return list(known)

    def game(self, game: int) -> GameView:
        """Return the game now. Raises ContractError (WrongPhase) if the node's newest block has no such game."""
        with self._lock:
            found = self._games.get(game)
            if found is None or game in self._stale_games:
                found = self.contract.game(game)
                if found.job in self._followed:
                    self._games[game] = found
                    self._stale_games.discard(game)
            return found

    def read_games(self, games: Iterable[int]) -> None:
        """Read the games that are not at hand, a page with one request, so that `game` need not ask for each."""
        with self._lock:
            self._stale_games |= {game for game in games if game not in self._games}
            self._read_stale()

    def at_hand(self) -> tuple[dict[int, JobView], dict[int, GameView]]:
        """Return the jobs and games that are at hand, by number, without a request."""
        with self._lock:
            return dict(self._jobs), dict(self._games)

    # The deep view.

    def confirmed_job(self, job: int) -> JobView:
        """Return the job as it stood `confirmations` blocks ago, which a bond may be put on.

        Raises NotConfirmed if it was not there yet, or if another job has its number now."""
        with self._lock:
            newest = self.job(job)
            if self.confirmations == 0:
                return newest
            deep = self._deep_block()
            known = self._confirmed.get(job)
            if known is None or known[0] != deep:
                try:
                    known = deep, self.contract.job(job, block=deep)
                except (ContractError, InvalidAnswer) as error:  # nothing is returned where there was no contract yet
                    raise self._too_fresh(job) from error
                self._confirmed[job] = known
            if known[1].spec_hash != newest.spec_hash:
                raise self._too_fresh(job)
            return known[1]

    def is_confirmed(self, game: int) -> bool:
        """Return whether a game stood `confirmations` blocks ago as it does now."""
        with self._lock:
            if self.confirmations == 0:
                return True
            try:
                return self.contract.game(game, block=self._deep_block()) == self.game(game)
            except (ContractError, InvalidAnswer):  # it was not there yet, or the contract was not
                return False

    def _deep_block(self) -> int:
        head = self._head or self.contract.node.head()
        return max(0, head.number - self.confirmations)

    def _too_fresh(self, job: int) -> NotConfirmed:
        return NotConfirmed(f"job {job} does not lie under {self.confirmations} blocks yet: wait for them.")

    # What a side has shown.

    def posted_chunk(self, game: int) -> bytes | None:
        """Return the chunk that the trainer has posted in a game; None if the node does not show it.

        A chunk that was seen costs nothing; otherwise events are searched from the newest block back to the
        challenge. Its hash is known, so it need not lie under any number of blocks."""
        with self._lock:
            shown = self.game(game)
            wanted = shown.search.nodes[Side.TRAINER]
            for chunk in self._chunks.get(game, ()):
                if leaf_hash(chunk) == wanted:
                    return chunk
            found = find_chunk(self.contract, game, shown)
            if found is not None:
                self._chunks[game] = (*self._chunks.get(game, ()), found)
            return found

    def shown_rows(self, game: int, *, everywhere: bool = False) -> tuple[tuple[bytes, ...], ...]:
        """Return rows that were shown in a game, as `find_rows`; asked for once for each state of its search, unless
        they are looked for `everywhere`."""
        with self._lock:
            shown = self.game(game)
            kept = self._rows.get(game)
            if kept is None or kept[0] != shown.search or everywhere:
                kept = shown.search, find_rows(self.contract, game, shown, everywhere=everywhere)
                self._rows[game] = kept
            return kept[1]

    # The parts of a look.

    def _begin_anew(self) -> None:
        """Forget what another node has shown of blocks and time, and read everything followed again."""
        self._hashes = {}
        self._pace = BlockPace()
        self._confirmed = {}
        self._games_of = {}
        self._stale_jobs |= self._followed
        self._stale_games |= set(self._games)

    def _is_old(self, head: Block, before: Block) -> bool:
        """Return whether a node shows nothing new: the same block, or one that it had before (it lags)."""
        if head.hash == before.hash or self._hashes.get(head.number) == head.hash:
            return True
        # Lower than what was seen, and no other block at a number that was seen: that may as well be a node that lags.
        return head.number < before.number and head.number not in self._hashes

    def _take_in(self, head: Block, before: Block | None) -> None:
        node, contract = self.contract.node, self.contract
        if before is not None and head.number - before.number > _MOST_CAUGHT_UP:
            self._begin_anew()
            before = None
        first = head.number if before is None else min(before.number, head.number)
        first = max(0, contract.first_block, first - MAX_REORGANISATION + 1)
        logs = {(log.block_hash, log.index): log for log in node.all_logs(contract.address, first, head.number)}
        if any(log.block == head.number and log.block_hash != head.hash for log in logs.values()):
            raise InvalidAnswer(f"{node.name} takes blocks back while it is asked for events: ask again.")
        missing = {key: event for key, event in self._events.items() if event.block >= first and key not in logs}
        gone = self._taken_back(missing, head)
        events = {
            key: event for key, log in logs.items() if key not in self._events for event in contract.decode([log])
        }
        floor = head.number - 2 * MAX_REORGANISATION
        self._events = {
            key: event for key, event in (self._events | events).items() if event.block > floor and key not in gone
        }
        self._hashes[head.number] = head.hash
        self._hashes = {n: name for n, name in self._hashes.items() if floor < n <= head.number}
        self._head = head
        self._pace.observe(head)
        if before is None:
            events = {}  # the past, which the views show
        earlier = self._pending_news or News(head, (), ())
        self._pending_news = News(head, (*earlier.events, *events.values()), (*earlier.taken_back, *gone.values()))
        for event in (*gone.values(), *events.values()):
            self._touch(event)

    def _taken_back(self, missing: dict[tuple[bytes, int], Event], head: Block) -> dict[tuple[bytes, int], Event]:
        """Return the missing events whose blocks are proved to be gone; a lagging node has left out the others."""
        canonical: dict[int, bytes | None] = {head.number: head.hash}
        for number in sorted({event.block for event in missing.values()}):
            if number not in canonical:
                block = self.contract.node.block(number) if number < head.number else None
                canonical[number] = None if block is None else block.hash
        return {key: event for key, event in missing.items() if canonical[event.block] not in (None, key[0])} | {
            key: event for key, event in missing.items() if event.block > head.number
        }

    def _touch(self, event: Event) -> None:
        job, game = getattr(event, "job", None), getattr(event, "game", None)
        if job in self._followed:
            self._stale_jobs.add(job)
            self._audits_of.pop(job, None)
            if game is not None:
                self._games_of.pop(job, None)
        if game is not None and game in self._games:
            self._stale_games.add(game)
            self._stale_jobs.add(self._games[game].job)
            self._audits_of.pop(self._games[game].job, None)
        if isinstance(event, ClaimRejected | VerdictOverturned):
            # All other games of the job, or all other appeals, are void now, without an event of their own.
            self._stale_games |= {number for number, shown in self._games.items() if shown.job == event.job}
        if isinstance(event, ChunkPosted) and game in self._games:
            self._chunks[event.game] = (*self._chunks.get(event.game, ()), event.chunk)

    def _read_stale(self) -> None:
        jobs, games = sorted(self._stale_jobs & self._followed), sorted(self._stale_games)
        calls = [ContractCall("getJob", (job,)) for job in jobs] + [ContractCall("getGame", (game,)) for game in games]
        for start in range(0, len(calls), PAGE):
            page = calls[start : start + PAGE]
            # As of the block that was seen: a node that lags behind it refuses, instead of showing an older state.
            shown_now = self.contract.views(page, block=None if self._head is None else self._head.number)
            for call, shown in zip(page, shown_now, strict=True):
                self._keep(call.function == "getJob", int(str(call.arguments[0])), shown)

    def _keep(self, is_job: bool, number: int, shown: Any) -> None:
        kept: dict[int, Any] = self._jobs if is_job else self._games
        (self._stale_jobs if is_job else self._stale_games).discard(number)
        if isinstance(shown, ContractError):
            # Not there (any more, or for this node): the next question goes to the contract itself.
            kept.pop(number, None)
        elif is_job or shown.job in self._followed:
            kept[number] = shown
