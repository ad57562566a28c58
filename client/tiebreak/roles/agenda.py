"""Scheduling of long work by stake and deadline, not by order of arrival."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """The stake and the deadline of a piece of long work. `stake`: wei that it earns, or that are lost without it."""

    deadline: float
    """Seconds since 1970, by the chain's clock; the work is useless later."""
    stake: int
    seconds: float = 0.0
    """Measured seconds that the work still takes; 0: unknown."""
    bonded: bool = False
    """Whether a bond of this account is lost without the work."""

    @property
    def worth(self) -> tuple[bool, float]:
        """A sort key: bonds first, then wei per second of work."""
        return self.bonded, self.stake / max(self.seconds, 1.0)


def order(duties: Mapping[K, Duty], now: float) -> list[K]:
    """All keys in the order of work, first one first.

    The earliest deadline goes first, which meets all deadlines if that is possible. Otherwise the duties with the least
    worth per second give way until the others are in time (after Moore and Hodgson, 1968). They come last, the
    worthiest first."""
    kept: list[K] = []
    late: list[K] = []
    for key in sorted(duties, key=lambda key: duties[key].deadline):
        kept.append(key)
        while kept and now + sum(duties[one].seconds for one in kept) > duties[kept[-1]].deadline:
            # Only duties that take time make others late.
            slow = [one for one in kept if duties[one].seconds > 0] or kept
            least = min(slow, key=lambda one: duties[one].worth)
            kept.remove(least)
            late.append(least)
    return kept + sorted(late, key=lambda key: duties[key].worth, reverse=True)
