"""Growing pauses between attempts (exponential backoff)."""

from __future__ import annotations


class Pauses:
    """Pauses that start at `first` seconds and double up to `most`."""

    def __init__(self, *, first: float, most: float) -> None:
        self._first, self._most = first, most
        self._now = first

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        pause, self._now = self._now, min(2 * self._now, self._most)
        return pause

    def reset(self) -> None:
        """Starts again at `first`, after a success."""
        self._now = self._first
