"""Pauses between attempts that grow, so that an outage is neither missed nor hammered at."""

from __future__ import annotations


class Pauses:
    """From `first` seconds, twice as long each time, up to `most`."""

    def __init__(self, *, first: float, most: float) -> None:
        self._first, self._most = first, most
        self._now = first

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        pause, self._now = self._now, min(2 * self._now, self._most)
        return pause

    def reset(self) -> None:
        """It went well."""
        self._now = self._first
