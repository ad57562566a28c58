"""What a role tells while it works, for a command line or a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tiebreak.chain.errors import printable
from tiebreak.chain.node import Receipt


class What(StrEnum):
    STEP = "step"
    """A training step was executed: `done` of `total`, with its `loss`."""
    FETCHED = "fetched"
    """Content came from the store and was found to be what it has to be."""
    PUBLISHED = "published"
    """Content went into the store; the text names its CID."""
    COMPUTED = "computed"
    """A root, a comparison or a verdict."""
    STAKED = "staked"
    """A bond is about to be put on a job: the text says who its referee is."""
    SENT = "sent"
    """A transaction is in a block: `receipt`."""
    WARNING = "warning"
    """Something went wrong that the role can live with."""
    HEARTBEAT = "heartbeat"
    """What the role does and waits for, what it has at stake, and when it has to move at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """`text` is one sentence without a full stop. `job` and `game` are None where it is about none. `at`: seconds since
    1970, by the clock of this machine."""

    role: str
    what: What
    text: str
    job: int | None = None
    game: int | None = None
    done: int = 0
    total: int = 0
    loss: float | None = None
    receipt: Receipt | None = None
    at: float = field(default_factory=time.time)


def time_of(notice: Notice) -> str:
    """UTC to the second, as in RFC 3339."""
    return datetime.fromtimestamp(notice.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plain(notice: Notice) -> dict[str, Any]:
    """A notice for programs."""
    about: dict[str, Any] = {"time": time_of(notice)}
    about |= {"role": notice.role, "what": notice.what.value, "text": printable(notice.text)}
    about |= {name: value for name, value in (("job", notice.job), ("game", notice.game)) if value is not None}
    if notice.what is What.STEP:
        about |= {"done": notice.done, "total": notice.total, "loss": notice.loss}
    if notice.receipt is not None:
        receipt = notice.receipt
        about |= {
            "transaction": "0x" + receipt.transaction.hex(),
            "block": receipt.block,
            "gas": receipt.gas_used,
            "fee_wei": str(receipt.fee),
        }
    return about


Notify = Callable[[Notice], None]


def ignore(notice: Notice) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What one `step()` of a role came to."""

    acted: bool = False
    """Something was done, so that another step at once may find more to do."""
    finished: bool = False
    """There is nothing left that this role will ever do here."""
    working: bool = False
    """Long work is under way, or something has to be looked at once more: a step in a moment may find it done."""
    state: str = ""
    """How things stand: what it waits for, or how it ended."""
    until: int | None = None
    """The instant (chain time) from which there is something to do even if nobody else moves; None: unknown."""
    stake: int = 0
    """Wei of this account that the job holds now as a bond."""
    deadline: int | None = None
    """The instant (chain time) up to which this role has to have moved; None: nobody waits for it."""


def together(found: Sequence[Progress], state: str) -> Progress:
    """What several jobs come to: all that is at stake, and the nearest deadlines."""
    waiting = [progress for progress in found if not progress.finished]
    return Progress(
        acted=any(progress.acted for progress in found),
        working=any(progress.working for progress in found),
        state=state,
        until=min((progress.until for progress in waiting if progress.until is not None), default=None),
        stake=sum(progress.stake for progress in waiting),
        deadline=min((progress.deadline for progress in waiting if progress.deadline is not None), default=None),
    )


class Warnings:
    """Tells each warning once, until it changes; how often it came again is told by `summary`.

    A warning is the same if it has the same text about the same job and game."""

    def __init__(self) -> None:
        self._told: dict[tuple[int | None, int | None, str], int] = {}
        self._repeated = 0

    def is_new(self, notice: Notice) -> bool:
        """Whether this one is to be told."""
        key = (notice.job, notice.game, notice.text)
        if key in self._told:
            self._told[key] += 1
            self._repeated += 1
            return False
        if len(self._told) >= _MOST_REMEMBERED:
            self._told.clear()
        self._told[key] = 0
        return True

    def forget(self, job: int | None) -> None:
        """All is well with that job again, so that the next warning is news."""
        for key in [key for key in self._told if key[0] == job]:
            del self._told[key]

    def summary(self) -> str:
        """How many warnings came again since this was asked the last time, in one clause; empty if none did."""
        count, self._repeated = self._repeated, 0
        return f"{count} warnings came again" if count else ""


_MOST_REMEMBERED = 10_000
