"""In which order long work is done: what is at stake and when it is due decide, not who came first."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What hangs on a piece of long work. `stake` in wei: what it brings, or what is lost without it."""

    deadline: float
    """Seconds since 1970, by the chain's clock; later than this it is of no use."""
    stake: int
    seconds: float = 0.0
    """How long it still takes, as far as that was measured; 0: unknown."""
    bonded: bool = False
    """A bond of this account is lost without it."""

    @property
    def worth(self) -> tuple[bool, float]:
        """For comparisons: bonds first, then wei for a second of work."""
        return self.bonded, self.stake / max(self.seconds, 1.0)


def order(duties: Mapping[K, Duty], now: float) -> list[K]:
    """All keys, the one to work on first in front.

    The earliest deadline goes first, which is in time for all where that is possible. Where it is not, those that
    bring least for a second of work give way until the others are in time (after Moore and Hodgson, 1968); what gave
    way comes last, the worthiest of it first."""
    kept: list[K] = []
    late: list[K] = []
    for key in sorted(duties, key=lambda key: duties[key].deadline):
        kept.append(key)
        while kept and now + sum(duties[one].seconds for one in kept) > duties[kept[-1]].deadline:
            # Only what takes time makes others late.
            slow = [one for one in kept if duties[one].seconds > 0] or kept
            least = min(slow, key=lambda one: duties[one].worth)
            kept.remove(least)
            late.append(least)
    return kept + sorted(late, key=lambda key: duties[key].worth, reverse=True)
