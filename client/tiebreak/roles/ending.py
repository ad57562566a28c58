"""When a role may leave: not on one answer of one node, and not before what it saw lies as deep as asked."""

from __future__ import annotations

LOOKS = 3
"""Times in a row that a role has to see the same, before it believes it. One answer may be that of a node that lags
behind, or of a block that is taken back."""


class Ending:
    """Counts how long a role has seen one and the same reason to end."""

    def __init__(self, confirmations: int) -> None:
        self._confirmations = confirmations
        self._why = ""
        self._looks = 0
        self._first_block = 0

    def seen(self, why: str, block: int) -> bool:
        """Whether the reason holds: the newest block is `block` now. `why` is one clause; another clause begins
        anew."""
        if why != self._why or block < self._first_block:
            self._why, self._looks, self._first_block = why, 0, block
        self._looks += 1
        return self._looks >= LOOKS and block >= self._first_block + self._confirmations

    def clear(self) -> None:
        """There is something to do after all."""
        self._why = ""
