"""Pace of a chain's blocks, so that nobody asks for the next one before it can be there."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiebreak.rpc.answers import Block
    from tiebreak.rpc.node import ChainNode

_SLOWEST = 60.0
"""Seconds. A development chain without transactions has hours between two blocks, which says nothing about the next."""

_WINDOW = 6
"""Blocks from which the pace is taken."""


def block_time(node: ChainNode, blocks: int = 50) -> float:
    """Seconds a block, measured over the last `blocks`; 0.0 for a chain that has none yet. Two requests."""
    head = node.head()
    first = node.block(max(0, head.number - blocks))
    if first is None or head.number <= first.number:
        return 0.0
    return max(0, head.timestamp - first.timestamp) / (head.number - first.number)


class BlockPace:
    """Predicts the next block from those that were seen. `clock`: seconds, as `time.monotonic`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[Block, float]] = deque(maxlen=_WINDOW)

    def observe(self, block: Block) -> None:
        """Takes in the newest block as a node has just shown it."""
        if not self._seen or block.number > self._seen[-1][0].number:
            self._seen.append((block, self._clock()))

    @property
    def interval(self) -> float | None:
        """Seconds a block; None while fewer than two were seen."""
        if len(self._seen) < 2:
            return None
        (first, since), (last, until) = self._seen[0], self._seen[-1]
        blocks = last.number - first.number
        by_the_chain = max(0, last.timestamp - first.timestamp) / blocks
        by_our_clock = (until - since) / blocks
        # Blocks are seen late by up to one interval. A development chain's clock says nothing about ours.
        return min(by_the_chain, 1.5 * by_our_clock, _SLOWEST)

    def due(self) -> float:
        """Seconds until the next block is to be expected; 0.0 once it may be there."""
        interval = self.interval
        if interval is None:
            return 0.0
        last, until = self._seen[-1]
        # Least time from a block's timestamp until it is there, by our clock.
        delay = min(at - block.timestamp for block, at in self._seen)
        expected = min(until, last.timestamp + delay) + interval
        return max(0.0, expected - self._clock())

    def now(self) -> int:
        """The chain's time in seconds since 1970, without asking: the newest block's and what has passed since.

        0 while no block was seen."""
        if not self._seen:
            return 0
        last, until = self._seen[-1]
        return last.timestamp + int(self._clock() - until)
