"""Agreement: how the nodes of one chain stand to each other, and for how long a contradiction between them counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tiebreak.rpc.chain_errors import NodesDisagree

CALM_SECONDS = 60.0
"""Seconds without a contradiction after which the last one is over."""

FORK_SECONDS = 60.0
"""Seconds for which different answers about blocks that are not confirmed may be a fork of the chain, as there are some
every day. After that they are a contradiction."""

_SAME_DOUBT = 30.0
"""Seconds between two doubts that count as one."""

UNDERTAKINGS = frozenset(["postJob", "commit", "sealClaim", "challenge", "sealAudit", "attest"])
"""Calls of the contract that begin something: they put new money at stake. All others go on with what was begun, or
fetch money back, and are held back by nothing: a party that cannot move loses its bond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAgreement:
    """The nodes' agreement now. `contradiction`: what they contradict each other about, in one clause; empty if
    nothing. `undecided`: whether no more than half of them say the same about it. `missing`: those that do not answer
    or lag behind, a clause each. `nodes`: all of them."""

    nodes: int = 1
    contradiction: str = ""
    undecided: bool = False
    missing: tuple[str, ...] = ()

    def require(self, function: str) -> None:
        """Raises NodesDisagree if a call of that name is new and the nodes contradict each other without a majority."""
        if self.undecided and function in UNDERTAKINGS:
            raise NodesDisagree(
                f"{self.contradiction}: no new bond is paid until they agree; find out which is wrong, and leave it "
                "away, or add a third."
            )


ALONE = NodeAgreement()
"""The agreement of a single node, which agrees with itself."""


class Contradictions:
    """The contradiction that counts now. `clock`: seconds, as `time.monotonic`. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._about = ""
        self._seen = 0.0
        self._undecided: float | None = None
        """Instant at which the last one without a majority was seen."""
        self._doubted: tuple[float, float] | None = None
        """Instants of the first and of the last of the doubts that go on."""

    def doubt(self, about: str, *, decided: bool) -> None:
        """Takes in different answers about blocks that are not confirmed: a contradiction once they last."""
        with self._lock:
            now = self._clock()
            if self._doubted is None or now - self._doubted[1] > _SAME_DOUBT:
                self._doubted = now, now
            self._doubted = self._doubted[0], now
            lasts = now - self._doubted[0] >= FORK_SECONDS
        if lasts:
            self.note(about, decided=decided)

    def note(self, about: str, *, decided: bool) -> None:
        """Takes in a contradiction. about: a clause; the first one is shown until all is calm, so that it is told
        once. decided: whether more than half say the same."""
        with self._lock:
            now = self._clock()
            was = self._state(now)
            if not was[0] or (not decided and not was[1]):
                self._about = about
            self._seen = now
            if not decided:
                self._undecided = now

    def now(self) -> tuple[str, bool]:
        """The contradiction, empty if there is none, and whether it is undecided."""
        with self._lock:
            return self._state(self._clock())

    def _state(self, now: float) -> tuple[str, bool]:
        if not self._about or now - self._seen >= CALM_SECONDS:
            self._about, self._undecided = "", None
            return "", False
        return self._about, self._undecided is not None and now - self._undecided < CALM_SECONDS
