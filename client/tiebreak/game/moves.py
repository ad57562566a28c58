"""What a party can decide to do about a game."""

from __future__ import annotations

from dataclasses import dataclass

from tiebreak.chain.records import Children, LeafOpening, NextRoot, Outcome, Side
from tiebreak.game.leaves import Place


@dataclass(frozen=True, slots=True)
class Bisect:
    """Open the node at the place reached into `opened`, and the one below it into `next`."""

    opened: Children
    next: Children


@dataclass(frozen=True, slots=True)
class OpenLevel:
    """Open the disputed leaf and the root of the level below it. Only the party itself may send this."""

    side: Side
    leaf: LeafOpening
    next: NextRoot


@dataclass(frozen=True, slots=True)
class RevealLeaf:
    """Open the disputed leaf of the last level."""

    side: Side
    leaf: LeafOpening


@dataclass(frozen=True, slots=True)
class ClaimTimeout:
    """Whoever had to move has let its time run out."""


@dataclass(frozen=True, slots=True)
class ReleaseBond:
    """Another game rejected the claim first; fetch the bond back."""


Move = Bisect | OpenLevel | RevealLeaf | ClaimTimeout | ReleaseBond
"""Something to be sent now."""


@dataclass(frozen=True, slots=True)
class Need:
    """The tree at `place` is needed before a move can be made; ask again with it."""

    place: Place


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until somebody else moves, or until the instant `until` (seconds since 1970) has come."""

    what: str
    until: int


@dataclass(frozen=True, slots=True)
class Helpless:
    """No move can save this game: `why` says what is wrong."""

    why: str


@dataclass(frozen=True, slots=True)
class Over:
    """The game has ended."""

    outcome: Outcome


Decision = Move | Need | Wait | Helpless | Over
