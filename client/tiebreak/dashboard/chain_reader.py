"""The chain as the pages read it: bounded requests, one reading for all who ask at once, and nothing that hangs.

Every page is made of one reading as of one block. A reading runs in a thread of its own with a deadline for those that
wait. If it comes too late, the page shows the last one and says so, and the late one serves the next request. One more
thread asks the node for its newest block, and notices when it hangs, lags or contradicts itself.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooSlow
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.structs import GameView, JobView
from tiebreak.dashboard.showing import span
from tiebreak.rpc.answers import Block
from tiebreak.rpc.chain_errors import ChainError, ContractError, InvalidAnswer, printable
from tiebreak.rpc.node import DEVELOPMENT_CHAINS, ChainNode

if TYPE_CHECKING:
    from tiebreak.contract.game import VerificationGame

LAG = 300
"""Seconds by which a newest block may be old: 25 slots of Ethereum."""

SILENCE = 8.0
"""Seconds without an answer after which a page says so."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The newest block as the node showed it. `at`: when, by `time.monotonic`; `trouble`: what is wrong, in one
    sentence, or empty."""

    number: int = 0
    hash: bytes = b""
    timestamp: int = 0
    at: float = 0.0
    chain_id: int = 0
    trouble: str = ""
    changes: int = 0
    """Counts what pages should be made anew for."""

    def now(self) -> int:
        """The chain's time in seconds since 1970, by the newest block and the time since."""
        return self.timestamp + int(time.monotonic() - self.at) if self.timestamp else 0


class HeadMonitor:
    """Looks every `every` seconds until `close`. `wall`: this machine's time, for tests."""

    def __init__(self, node: ChainNode, *, every: float = 1.0, wall: Callable[[], float] = time.time) -> None:
        self._node = node
        self._every = every
        self._wall = wall
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._highest = 0
        self._seen: Block | None = None
        self._chain_id = 0
        self._answered = time.monotonic()
        self._problem = ""
        self._changes = 0
        self._told = ""
        self._at = 0.0
        self._thread = threading.Thread(target=self._watch, name="head_monitor", daemon=True)
        self._first = threading.Event()

    def start(self, patience: float = SILENCE) -> None:
        """Starts looking, and waits for the first answer or failure."""
        self._thread.start()
        self._first.wait(patience)

    def close(self) -> None:
        """Tells the thread to end; one that waits for the node ends when the node does."""
        self._stop.set()

    def sight(self) -> Sight:
        """The latest knowledge of the chain. Never waits for the node."""
        with self._lock:
            trouble = self._trouble()
            if trouble.partition(" for ")[0] != self._told:
                self._told = trouble.partition(" for ")[0]
                self._changes += 1
            seen = self._seen
            if seen is None:
                return Sight(trouble=trouble, changes=self._changes)
            return Sight(
                number=seen.number,
                hash=seen.hash,
                timestamp=seen.timestamp,
                at=self._at,
                chain_id=self._chain_id,
                trouble=trouble,
                changes=self._changes,
            )

    def announce(self) -> None:
        """Lets pages be made anew: something beside the chain has become known."""
        with self._lock:
            self._changes += 1

    def _trouble(self) -> str:
        silent = time.monotonic() - self._answered
        if self._problem:
            return self._problem
        if silent > SILENCE:
            return f"{self._node.name} has not answered for {span(int(silent))}: see whether it still runs."
        seen = self._seen
        if seen is None:
            return f"{self._node.name} has not answered yet."
        if seen.number < self._highest:
            return (
                f"{self._node.name} shows block {seen.number} as its newest, after it had shown {self._highest}: it "
                "lags behind, or has lost blocks."
            )
        if self._chain_id not in DEVELOPMENT_CHAINS and (late := int(self._wall()) - seen.timestamp) > LAG:
            return (
                f"{self._node.name} lags behind: its newest block has been the same for {span(late)}; what is shown "
                "may be old."
            )
        return ""

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._first.set()
            self._stop.wait(self._every)

    def look(self) -> None:
        """Asks once."""
        try:
            chain_id = self._chain_id or self._node.chain_id
            head = self._node.head()
        except ChainError as error:
            with self._lock:
                self._problem = printable(str(error))[:300]
                self._answered = time.monotonic()
            return
        with self._lock:
            self._answered, self._problem, self._chain_id = time.monotonic(), "", chain_id
            if self._seen is None or head.hash != self._seen.hash:
                self._at = time.monotonic()
                self._changes += 1
                self._seen = head
                self._highest = max(self._highest, head.number)


PAGE = 25
"""Jobs or games on one page."""

NEWEST_GAMES = 20
"""Games that are looked through for those that are being played."""

PATIENCE = 4.0
"""Seconds that a page waits for the node."""

_READINGS = 64
"""Readings that are kept; the one used longest ago goes first."""

_THREADS = 8
"""Readings that run at the same time; a node that hangs holds each for as long as its transport allows."""

T = TypeVar("T")

Moment = tuple[int, bytes]
"""Number and hash of the block that a reading is as of."""


class Missing(Exception):
    """There is no such job or game on the chain; the message is one sentence."""


class Busy(Exception):
    """The node has not answered in time, and nothing older is at hand; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A result and its age. `trouble`: why it is not as of now, in one sentence; empty if it is."""

    value: T
    block: int
    trouble: str = ""


class Readings:
    """Results by key, each read once for a block however many ask for it. May be used from several threads."""

    def __init__(self, *, patience: float = PATIENCE) -> None:
        self.patience = patience
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="reading")
        self._lock = threading.Lock()
        self._running: dict[Any, Future[Any]] = {}
        self._kept: OrderedDict[Any, tuple[Moment, Any]] = OrderedDict()

    def get(self, key: Any, block: Moment, read: Callable[[], T], *, patience: float | None = None) -> Reading[T]:
        """The result of `read` as of `block`, or an older one with its trouble. Raises Busy, Missing, ChainError."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                if kept[0] == block:
                    return Reading(cast(T, kept[1]), block[0])
            running = self._running.get(key)
            if running is None:
                if len(self._running) >= _THREADS:
                    return self._older(kept, "the node is slow, and too much is being read already")
                running = self._pool.submit(self._read, key, block, read)
                self._running[key] = running
        try:
            value = running.result(self.patience if patience is None else patience)
        except TooSlow:
            return self._older(kept, "the node has not answered in time")
        except ContractError:
            raise
        except ChainError as error:
            if kept is None:
                raise
            return self._older(kept, str(error).rstrip("."))
        return Reading(value, block[0])

    def _read(self, key: Any, block: Moment, read: Callable[[], Any]) -> Any:
        try:
            value = read()
            with self._lock:
                self._kept[key] = block, value
                while len(self._kept) > _READINGS:
                    self._kept.popitem(last=False)
            return value
        finally:
            with self._lock:
                self._running.pop(key, None)

    @staticmethod
    def _older(kept: tuple[Moment, Any] | None, why: str) -> Reading[Any]:
        if kept is None:
            raise Busy(f"{why[0].upper()}{why[1:]}: this page is tried again by itself, or by a reload.")
        return Reading(kept[1], kept[0][0], f"{why}; this is what it said at block {kept[0][0]:,}.")

    def close(self) -> None:
        """Lets no further reading start; one that hangs ends with the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class JobsPage:
    """A page of jobs, the newest first."""

    count: int
    number: int
    """Number of the page, from 1."""
    pages: int
    jobs: list[tuple[int, JobView]]
    live: list[tuple[int, GameView]]
    """Games that are being played, among the newest."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """A job with a page of its games, in the order of their challenges."""

    number: int
    job: JobView
    games: list[tuple[int, GameView]]
    page: int
    pages: int


class ContractPages:
    """Views of a contract, a page with one or two requests. All methods raise ChainError, Missing."""

    def __init__(self, contract: VerificationGame) -> None:
        self.contract = contract

    def jobs(self, page: int, block: int) -> JobsPage:
        """A page of jobs, counted from 1; the nearest one there is."""
        count, games = self._numbers([ContractCall.of("jobCount"), ContractCall.of("gameCount")], block)
        pages = max(1, -(-count // PAGE))
        page = min(max(1, page), pages)
        newest = count - (page - 1) * PAGE
        wanted = range(newest, max(0, newest - PAGE), -1)
        recent = range(games, max(0, games - NEWEST_GAMES), -1) if page == 1 else range(0)
        shown = [("getJob", n) for n in wanted] + [("getGame", n) for n in recent]
        found = self._views([ContractCall.of(*one) for one in shown], block)
        jobs = [(number, _checked(number, job)) for number, job in zip(wanted, found, strict=False) if _is_there(job)]
        played = zip(recent, found[len(wanted) :], strict=True)
        live = [(number, game) for number, game in played if _is_there(game) and not game.outcome]
        return JobsPage(count, page, pages, jobs, live)

    def job(self, number: int, page: int, block: int) -> JobPage:
        """A job, and a page of its games."""
        job = self._one("getJob", number, block)
        pages = max(1, -(-job.game_count // PAGE))
        page = min(max(1, page), pages)
        games_of = ContractCall.of("gamesOf", number, (page - 1) * PAGE, PAGE)
        listed = self._views([games_of], block)[0] if job.game_count else ()
        if isinstance(listed, ContractError) or len(listed) > PAGE:
            raise InvalidAnswer(f"{self.contract.node.name} gave another list of games than was asked for.")
        games = self._views([ContractCall.of("getGame", game) for game in listed], block) if listed else []
        shown = [(game, view) for game, view in zip(listed, games, strict=True) if _is_there(view)]
        return JobPage(number, _checked(number, job), shown, page, pages)

    def game(self, number: int, block: int) -> tuple[GameView, JobView]:
        """A game, and its job."""
        game = self._one("getGame", number, block)
        return game, _checked(game.job, self._one("getJob", game.job, block))

    def newest(self, jobs: int, games: int, block: int) -> tuple[dict[int, JobView], dict[int, GameView]]:
        """The newest jobs and games, at most so many."""
        last_job, last_game = self._numbers([ContractCall.of("jobCount"), ContractCall.of("gameCount")], block)
        wanted = [("getJob", n) for n in range(last_job, max(0, last_job - jobs), -1)]
        wanted += [("getGame", n) for n in range(last_game, max(0, last_game - games), -1)]
        found = self._views([ContractCall.of(*one) for one in wanted], block) if wanted else []
        shown = [(*one, view) for one, view in zip(wanted, found, strict=True) if _is_there(view)]
        return (
            {number: view for kind, number, view in shown if kind == "getJob"},
            {number: view for kind, number, view in shown if kind == "getGame"},
        )

    def credits(self, accounts: Sequence[str], block: int) -> dict[str, int]:
        """Wei that each account may withdraw."""
        found = self._views([ContractCall.of("creditOf", account) for account in accounts], block) if accounts else []
        return {one: credit for one, credit in zip(accounts, found, strict=True) if isinstance(credit, int)}

    def burnt(self, block: int) -> int:
        """Wei of lost bonds that stay in the contract."""
        return self._numbers([ContractCall.of("burnt")], block)[0]

    def _one(self, function: str, number: int, block: int) -> Any:
        found = self._views([ContractCall.of(function, number)], block)[0]
        if not _is_there(found):
            kind = "job" if function == "getJob" else "game"
            raise Missing(f"There is no {kind} {number} in this contract.")
        return found

    def _numbers(self, calls: Sequence[ContractCall], block: int) -> list[int]:
        found = self._views(calls, block)
        if any(not isinstance(one, int) for one in found):
            raise InvalidAnswer(f"{self.contract.node.name} cannot count jobs or games: use another node.")
        return found

    def _views(self, calls: Sequence[ContractCall], block: int) -> list[Any]:
        return self.contract.views(calls, block=block)


def _is_there(found: object) -> bool:
    return not isinstance(found, ContractError)


def _checked(number: int, job: JobView) -> JobView:
    """Raises InvalidAnswer for a job that contradicts itself: only a node that lies, or one that was lied to, shows
    it."""
    if job.spec.hash != job.spec_hash:
        raise InvalidAnswer(
            f"the node shows job {number} with a spec that is not the one of its hash: it lies or is damaged, use "
            "another node."
        )
    return job
