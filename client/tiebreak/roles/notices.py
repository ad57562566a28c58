"""Notices: messages of a role while it works, for a command line or a log; and errors as such messages say them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tiebreak.rpc.answers import TransactionReceipt
from tiebreak.rpc.chain_errors import ChainError, printable
from tiebreak.store.store_errors import StoreError


class What(StrEnum):
    STEP = "step"
    """A training step was executed: `done` of `total`, with its `loss`."""
    FETCHED = "fetched"
    """Content came from the store and passed its checks."""
    PUBLISHED = "published"
    """Content went into the store; the text names its CID."""
    UNPINNED = "unpinned"
    """Content is pinned no more, because its job is long over; the text names its CID."""
    COMPUTED = "computed"
    """A root, a comparison or a verdict."""
    STAKED = "staked"
    """A bond is about to be put on a job; the text names its referee."""
    SENT = "sent"
    """A transaction is in a block: `receipt`."""
    WARNING = "warning"
    """Something went wrong, and the role goes on."""
    ALERT = "alert"
    """Something needs a person."""
    HEARTBEAT = "heartbeat"
    """A report at intervals: current work, waits, stake and deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message of a role. `text`: one sentence without a full stop. `job`, `game`: None if it is about none. `at`:
    seconds since 1970, by the clock of this machine."""

    role: str
    what: What
    text: str
    job: int | None = None
    game: int | None = None
    done: int = 0
    total: int = 0
    loss: float | None = None
    receipt: TransactionReceipt | None = None
    at: float = field(default_factory=time.time)


def time_of(notice: Notice) -> str:
    """Return time of a notice in UTC to the second, as in RFC 3339."""
    return datetime.fromtimestamp(notice.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plain(notice: Notice) -> dict[str, Any]:
    """Return a notice as plain JSON values, for programs."""
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


def of_warnings(role: str, notify: Notify) -> Callable[[str], None]:
    """Tell the warnings of a role's content store as its notices, each once."""
    known = Warnings()

    def told(text: str) -> None:
        notice = Notice(role=role, what=What.WARNING, text=text)
        if known.is_new(notice):
            notify(notice)

    return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The result of one `step()` of a role."""

    acted: bool = False
    """Whether something was done, so that another step at once may find more to do."""
    finished: bool = False
    """Whether the role has nothing left to do, ever."""
    working: bool = False
    """Whether long work is under way or another look is needed, so that a step in a moment may find more to do."""
    state: str = ""
    """The state in one clause: what the role waits for, or how it ended."""
    until: int | None = None
    """The instant (chain time) at which there is something to do even if no other party moves; None: unknown."""
    stake: int = 0
    """Wei of this account that the job holds now as a bond."""
    deadline: int | None = None
    """The last instant (chain time) for this role's move; None: it need not move."""


OnLook = Callable[[Progress, Exception | None], None]
"""Is told the result of every look, and the error of what could not be reached, if any. It runs between two looks, so
it must wait for nothing."""


def together(found: Sequence[Progress], state: str) -> Progress:
    """Return progress of several jobs together: the sum of their stakes, and their nearest deadlines."""
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
    """A filter that passes each warning once, until it changes.

    Two warnings are the same if they have the same text about the same job and game."""

    def __init__(self) -> None:
        self._told: set[tuple[int | None, int | None, str]] = set()

    def is_new(self, notice: Notice) -> bool:
        """Return whether a warning was not told before."""
        key = (notice.job, notice.game, notice.text)
        if key in self._told:
            return False
        if len(self._told) >= _MOST_REMEMBERED:
            self._told.clear()
        self._told.add(key)
        return True


_MOST_REMEMBERED = 10_000


OUTAGES = (ChainError, StoreError, OSError)
"""Errors of outages, which end by themselves or by hand: the chain or the store is away, the disk is full or
read-only."""


def sentence(error: BaseException) -> str:
    """Return an error in one sentence."""
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        return f"the disk cannot be used now ({error.strerror}{where}): make room, or make it writable"
    return str(error) or type(error).__name__
