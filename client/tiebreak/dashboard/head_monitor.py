"""The head monitor: one thread that asks a node for its newest block, and notices when it hangs, lags or contradicts
itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tiebreak.dashboard.showing import span
from tiebreak.rpc.answers import Block
from tiebreak.rpc.chain_errors import ChainError, printable
from tiebreak.rpc.node import DEVELOPMENT_CHAINS, ChainNode

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
