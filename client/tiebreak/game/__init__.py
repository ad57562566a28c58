"""The verification game as a party plays it: what it knows, and the one move that this forces. No chain, no files."""

from tiebreak.game.leaves import Leaves, Place
from tiebreak.game.moves import (
    Bisect,
    ClaimTimeout,
    Decision,
    Helpless,
    Move,
    Need,
    OpenLevel,
    Over,
    ReleaseBond,
    RevealLeaf,
    Wait,
)
from tiebreak.game.strategy import forced_move, next_move, place_of, timeout_is_due

__all__ = [
    "Bisect",
    "ClaimTimeout",
    "Decision",
    "Helpless",
    "Leaves",
    "Move",
    "Need",
    "OpenLevel",
    "Over",
    "Place",
    "ReleaseBond",
    "RevealLeaf",
    "Wait",
    "forced_move",
    "next_move",
    "place_of",
    "timeout_is_due",
]
