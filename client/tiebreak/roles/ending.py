"""The end of a role: it leaves only for a reason that it has seen several times, deep enough in the chain."""

from __future__ import annotations

LOOKS = 3
"""Times in a row that a role has to see the same reason. A single answer may come from a node that lags behind, or from
a block that is taken back."""


class Ending:
    """A count of how often in a row a role has seen the same reason to end."""

    def __init__(self, confirmations: int) -> None:
        self._confirmations = confirmations
        self._why = ""
        self._looks = 0
        self._first_block = 0

    def seen(self, why: str, block: int) -> bool:
        """Counts a sight of `why` (one clause; another clause starts the count anew) at the newest block `block`.
        Returns whether the role may leave."""
        if why != self._why or block < self._first_block:
            self._why, self._looks, self._first_block = why, 0, block
        self._looks += 1
        return self._looks >= LOOKS and block >= self._first_block + self._confirmations

    def clear(self) -> None:
        """Forgets the reason, because there is something to do after all."""
        self._why = ""
