"""How fast a chain's blocks come, so that nobody asks for the next one before it can be there."""

from __future__ import annotations

import time
from collections.abc import Callable

from tiebreak.chain.node import Block, Node

_SLOWEST = 60.0
"""Seconds. A development chain without transactions has hours between two blocks, which says nothing about the next."""


def block_time(node: Node, blocks: int = 50) -> float:
    """Seconds a block, measured over the last `blocks`; 0.0 for a chain that has none yet. Two requests."""
    head = node.head()
    first = node.block(max(0, head.number - blocks))
    if first is None or head.number <= first.number:
        return 0.0
    return max(0, head.timestamp - first.timestamp) / (head.number - first.number)


class Pace:
    """Expects the next block from those that were seen. `clock`: seconds, as `time.monotonic`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest: Block | None = None
        self._seen_at = 0.0
        self._interval: float | None = None

    def observe(self, block: Block) -> None:
        """A newest block as a node has just shown it."""
        newest, now = self._newest, self._clock()
        if newest is None or block.number > newest.number:
            if newest is not None:
                by_the_chain = (block.timestamp - newest.timestamp) / (block.number - newest.number)
                by_our_clock = (now - self._seen_at) / (block.number - newest.number)
                # The smaller: a chain whose clock was moved, or that nobody asked for a while, is not a slow one.
                interval = min(max(by_the_chain, 0.0), by_our_clock, _SLOWEST)
                # Falls at once and rises slowly: a block that is missed costs more than a question too many.
                known = self._interval
                self._interval = interval if known is None or interval < known else 0.75 * known + 0.25 * interval
            self._newest, self._seen_at = block, now

    @property
    def interval(self) -> float | None:
        """Seconds a block; None while fewer than two were seen."""
        return self._interval

    def due(self) -> float:
        """Seconds until the next block is to be expected; 0.0 once it may be there."""
        if self._newest is None or self._interval is None:
            return 0.0
        return max(0.0, self._seen_at + self._interval - self._clock())

    def now(self) -> int:
        """The chain's time in seconds since 1970, without asking: the newest block's and what has passed since.

        0 while no block was seen."""
        return 0 if self._newest is None else self._newest.timestamp + int(self._clock() - self._seen_at)
