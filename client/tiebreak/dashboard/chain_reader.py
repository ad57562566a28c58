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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.structs import AuditView, GameView, JobView
from tiebreak.dashboard.showing import span
from tiebreak.rpc.chain_errors import ChainError, ContractError, InvalidAnswer, printable
from tiebreak.rpc.node import DEVELOPMENT_CHAINS, ChainNode

if TYPE_CHECKING:
    from tiebreak.contract.game import VerificationGame

LAG = 300
"""Seconds by which a newest block may be old: 25 slots of Ethereum."""

SILENCE = 8.0
"""Seconds without an answer after which a page says so."""

PAGE = 25
"""Jobs or games on one page."""

NEWEST_GAMES = 20
"""Games that are looked through for those that are being played."""

PATIENCE = 4.0
"""Seconds that a page waits for the node."""

_READINGS = 64
"""Readings that are kept; the one used longest ago goes first."""


@dataclass(frozen=True, slots=True)
class HeadSnapshot:
    """The newest block as the node showed it. `at`: when, by `time.monotonic`; `trouble`: what is wrong, in one
    sentence, or empty; `changes`: count of what pages should be made anew for."""

    number: int = 0
    hash: bytes = b""
    timestamp: int = 0
    at: float = 0.0
    chain_id: int = 0
    trouble: str = ""
    changes: int = 0

    def now(self) -> int:
        """Return the chain's time in seconds since 1970, by the newest block and the time since."""
        return self.timestamp + int(time.monotonic() - self.at) if self.timestamp else 0


class HeadMonitor:
    """Looks every `every` seconds until `close`. `wall`: this machine's time, for tests."""

    def __init__(self, node: ChainNode, *, every: float = 1.0, wall: Callable[[], float] = time.time) -> None:
        self._node, self._every, self._wall = node, every, wall
        self._lock = threading.Lock()
        self._stop, self._first = threading.Event(), threading.Event()
        self._last = HeadSnapshot()
        self._highest = 0
        self._answered, self._problem = time.monotonic(), ""

    def start(self) -> None:
        """Start looking, and wait for the first answer or failure."""
        threading.Thread(target=self._watch, name="head_monitor", daemon=True).start()
        self._first.wait(SILENCE)

    def close(self) -> None:
        """Tell the thread to end; one that waits for the node ends when the node does."""
        self._stop.set()

    def snapshot(self) -> HeadSnapshot:
        """Return the latest knowledge of the chain. Never waits for the node."""
        with self._lock:
            trouble, before = self._trouble(), self._last
            is_new = trouble.partition(" for ")[0] != before.trouble.partition(" for ")[0]
            self._last = replace(before, trouble=trouble, changes=before.changes + is_new)
            return self._last

    def _trouble(self) -> str:
        name, last, silent = self._node.name, self._last, time.monotonic() - self._answered
        if self._problem:
            return self._problem
        if silent > SILENCE:
            return f"{name} has not answered for {span(int(silent))}: see whether it still runs."
        if not last.hash:
            return f"{name} has not answered yet."
        if last.number < self._highest:
            shown = f"shows block {last.number} as its newest, after it had shown {self._highest}"
            return f"{name} {shown}: it lags behind, or has lost blocks."
        if last.chain_id not in DEVELOPMENT_CHAINS and (late := int(self._wall()) - last.timestamp) > LAG:
            same = f"its newest block has been the same for {span(late)}"
            return f"{name} lags behind: {same}; what is shown may be old."
        return ""

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._first.set()
            self._stop.wait(self._every)

    def look(self) -> None:
        """Ask once."""
        head, problem, chain_id = None, "", 0
        try:
            chain_id = self._last.chain_id or self._node.chain_id
            head = self._node.head()
        except ChainError as error:
            problem = printable(str(error))[:300]
        with self._lock:
            self._answered, self._problem, last = time.monotonic(), problem, self._last
            if head is not None and head.hash != last.hash:
                at, changes = time.monotonic(), last.changes + 1
                self._last = HeadSnapshot(head.number, head.hash, head.timestamp, at, chain_id, last.trouble, changes)
                self._highest = max(self._highest, head.number)


T = TypeVar("T")

Moment = tuple[int, object]
"""Number and hash of the block that a reading is as of."""


class Missing(Exception):
    """There is no such job or game on the chain; the message is one sentence."""


class Busy(Exception):
    """The node has not answered in time, and nothing older is at hand; the message is one sentence."""


class Readings:
    """Results by key, each read once for a block however many ask for it. May be used from several threads."""

    def __init__(self, *, patience: float = PATIENCE, threads: int = 8) -> None:
        """patience: seconds that those who ask wait. threads: readings that run at the same time; a node that hangs
        holds each for as long as its transport allows."""
        self.patience, self._threads = patience, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="reading")
        self._lock = threading.Lock()
        self._running: dict[Any, Future[Any]] = {}
        self._cache: OrderedDict[Any, tuple[Moment, Any]] = OrderedDict()

    def get(self, key: Any, block: Moment, read: Callable[[], T], *, patience: float | None = None) -> tuple[T, str]:
        """Return the result of `read` as of `block`, or an older one, and why it is not as of now, in one sentence;
        empty if it is. Raises Busy, Missing, ChainError."""
        with self._lock:
            older = self._cache.get(key)
            if older is not None:
                self._cache.move_to_end(key)
                if older[0] == block:
                    return older[1], ""
            running = self._running.get(key)
            if running is None and len(self._running) < self._threads:
                running = self._running[key] = self._pool.submit(self._read, key, block, read)
        error: ChainError | None = None
        if running is None:
            why = "the node is slow, and too much is being read already"
        else:
            try:
                return running.result(self.patience if patience is None else patience), ""
            except TooSlow:
                why = "the node has not answered in time"
            except ContractError:
                raise
            except ChainError as raised:
                error, why = raised, str(raised).rstrip(".")
        if older is not None:
            return older[1], f"{why}; this is what it said at block {older[0][0]:,}."
        raise error or Busy(f"{why[0].upper()}{why[1:]}: this page is tried again by itself, or by a reload.")

    def _read(self, key: Any, block: Moment, read: Callable[[], Any]) -> Any:
        try:
            value = read()
            with self._lock:
                self._cache[key] = block, value
                while len(self._cache) > _READINGS:
                    self._cache.popitem(last=False)
            return value
        finally:
            with self._lock:
                self._running.pop(key, None)

    def close(self) -> None:
        """Let no further reading start; one that hangs ends with the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class JobsPage:
    """Page `number` of `pages`, counted from 1, of `count` jobs, the newest first. `live`: games that are being played,
    among the newest."""

    count: int
    number: int
    pages: int
    jobs: list[tuple[int, JobView]]
    live: list[tuple[int, GameView]]


class ContractPages:
    """Views of a contract, a page with one or two requests. All methods raise ChainError, Missing."""

    def __init__(self, contract: VerificationGame) -> None:
        self.contract = contract

    def jobs(self, page: int, block: int) -> JobsPage:
        """Return a page of jobs, counted from 1; the nearest one there is."""
        count, games = self._numbers(block, "jobCount", "gameCount")
        pages = max(1, -(-count // PAGE))
        page = min(max(1, page), pages)
        wanted = _down_from(count - (page - 1) * PAGE, PAGE)
        recent = _down_from(games, NEWEST_GAMES if page == 1 else 0)
        jobs, played = self._found(block, jobs=wanted, games=recent)
        return JobsPage(count, page, pages, jobs, [one for one in played if not one[1].outcome])

    def job(self, number: int, page: int, block: int) -> tuple[JobView, list[tuple[int, GameView]], int, int]:
        """Return a job, a page of its games in the order of their challenges, the number of the page and of all."""
        job = self._one("getJob", number, block)
        pages = max(1, -(-job.game_count // PAGE))
        page = min(max(1, page), pages)
        games_of = ContractCall.of("gamesOf", number, (page - 1) * PAGE, PAGE)
        listed = self._views([games_of], block)[0] if job.game_count else ()
        if isinstance(listed, ContractError) or len(listed) > PAGE:
            raise InvalidAnswer(f"{self.contract.node.name} gave another list of games than was asked for.")
        return _checked(number, job), self._found(block, games=listed)[1], page, pages

    def game(self, number: int, block: int) -> tuple[GameView, JobView]:
        """Return a game, and its job."""
        game = self._one("getGame", number, block)
        return game, _checked(game.job, self._one("getJob", game.job, block))

    def newest(self, most: int, block: int) -> tuple[dict[int, JobView], dict[int, GameView]]:
        """Return the newest jobs and games, at most so many of each."""
        jobs, games = self._numbers(block, "jobCount", "gameCount")
        found = self._found(block, jobs=_down_from(jobs, most), games=_down_from(games, most))
        return dict(found[0]), dict(found[1])

    def audits(self, jobs: Sequence[int], block: int) -> dict[int, Sequence[AuditView]]:
        """Return the first audits with a bond of each job."""
        found = self._views([ContractCall.of("auditsOf", job, 0, PAGE) for job in jobs], block)
        return {job: audits for job, audits in zip(jobs, found, strict=True) if _is_there(audits)}

    def credits(self, accounts: Sequence[str], block: int) -> dict[str, int]:
        """Return the wei that each account may withdraw."""
        found = self._views([ContractCall.of("creditOf", account) for account in accounts], block)
        return {one: credit for one, credit in zip(accounts, found, strict=True) if isinstance(credit, int)}

    def burnt(self, block: int) -> int:
        """Return the wei of lost bonds that stay in the contract."""
        return self._numbers(block, "burnt")[0]

    def _found(
        self, block: int, *, jobs: Sequence[int] = (), games: Sequence[int] = ()
    ) -> tuple[list[tuple[int, JobView]], list[tuple[int, GameView]]]:
        """Return those of these jobs and games that are there, with their numbers."""
        wanted = [*(("getJob", number) for number in jobs), *(("getGame", number) for number in games)]
        views = self._views([ContractCall.of(*one) for one in wanted], block)
        pairs = [(number, view) for (_, number), view in zip(wanted, views, strict=True)]
        shown = [[one for one in part if _is_there(one[1])] for part in (pairs[: len(jobs)], pairs[len(jobs) :])]
        return [(number, _checked(number, job)) for number, job in shown[0]], shown[1]

    def _one(self, function: str, number: int, block: int) -> Any:
        found = self._views([ContractCall.of(function, number)], block)[0]
        if not _is_there(found):
            kind = "job" if function == "getJob" else "game"
            raise Missing(f"There is no {kind} {number} in this contract.")
        return found

    def _numbers(self, block: int, *functions: str) -> list[int]:
        found = self._views([ContractCall.of(function) for function in functions], block)
        if any(not isinstance(one, int) for one in found):
            raise InvalidAnswer(f"{self.contract.node.name} cannot count jobs or games: use another node.")
        return found

    def _views(self, calls: Sequence[ContractCall], block: int) -> list[Any]:
        return self.contract.views(calls, block=block) if calls else []


def _down_from(number: int, most: int) -> range:
    """Return the numbers from this one down to 1, at most so many."""
    return range(number, max(0, number - most), -1)


def _is_there(found: object) -> bool:
    return not isinstance(found, ContractError)


def _checked(number: int, job: JobView) -> JobView:
    """Raise InvalidAnswer for a job that contradicts itself: only a node that lies, or one that was lied to, shows
    it."""
    if job.spec.hash != job.spec_hash:
        raise InvalidAnswer(
            f"the node shows job {number} with a spec that is not the one of its hash: it lies or is damaged, use "
            "another node."
        )
    return job
