"""What a role tells while it works, for a command line or a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """`text` is one sentence without a full stop. `job` and `game` are None where it is about none."""

    role: str
    what: What
    text: str
    job: int | None = None
    game: int | None = None
    done: int = 0
    total: int = 0
    loss: float | None = None
    receipt: Receipt | None = None


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
    state: str = ""
    """How things stand: what it waits for, or how it ended."""
    until: int | None = None
    """The instant (chain time) from which there is something to do even if nobody else moves; None: unknown."""
