"""The strategy of a party: from what the contract shows, and from the party's own trees, to the one move that is due.

Nothing here knows what a leaf means. Levels differ by their trees alone, so a level below the last one of today plays
by the same code.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiebreak.chain.records import Game, Outcome, Phase, Side
from tiebreak.game.leaves import Leaves, Place
from tiebreak.game.moves import (
    Bisect,
    ClaimTimeout,
    Decision,
    Helpless,
    Need,
    OpenLevel,
    Over,
    ReleaseBond,
    RevealLeaf,
    Wait,
)

Trees = Mapping[Place, Leaves]


def next_move(game: Game, side: Side, trees: Trees, now: int) -> Decision:
    """What the party of `side` does at the instant `now` (seconds since 1970, of the next block).

    A party moves for itself as long as it has time, and claims a timeout only when every running clock is out and none
    of them is its own: the contract accepts no earlier claim, and no later one changes the outcome.
    """
    if game.phase is Phase.OVER:
        if game.outcome is Outcome.VOID and game.bond_held and side is Side.CHALLENGER:
            return ReleaseBond()
        return Over(game.outcome)
    if game.phase is Phase.REFEREE:
        if timeout_is_due(game, now):
            return ClaimTimeout()
        return Wait("the referee's verdict", game.referee_deadline + 1)
    if game.phase is Phase.NONE:
        raise ValueError("there is no such game")

    own = game.deadlines[side]
    if own and now <= own:
        return forced_move(game, side, trees)
    if own:
        # Nobody gains by hurrying the end of a game that it has lost.
        return Helpless(f"the {side.name.lower()}'s clock ran out at {own}")
    if timeout_is_due(game, now):
        return ClaimTimeout()
    return Wait(f"the {side.other.name.lower()}'s move", max(game.deadlines) + 1)


def timeout_is_due(game: Game, now: int) -> bool:
    """Whether `claimTimeout` would be accepted in a block at `now`. The instant of a deadline is its owner's."""
    if game.phase is Phase.REFEREE:
        return now > game.referee_deadline
    if game.phase in (Phase.BISECTION, Phase.OPENING):
        return all(now > deadline for deadline in game.deadlines if deadline)
    return False


def forced_move(game: Game, side: Side, trees: Trees) -> Bisect | OpenLevel | RevealLeaf | Need | Helpless:
    """The move that is due from `side`, for whoever holds that side's trees: the party, or somebody who helps it.

    Call it only while that side's clock runs.
    """
    level = game.current
    place = place_of(game)
    leaves = trees.get(place)
    if leaves is None:
        return Need(place)
    if len(leaves) != level.leaf_count or leaves.root != level.roots[side]:
        return Helpless(f"the {side.name.lower()}'s root at level {level.level.name} is not over the states at hand")

    if game.phase is Phase.BISECTION:
        node = level.index >> level.height
        opened = leaves.children(level.height, node)
        # The leftmost half that differs: what lies before it is agreed.
        half = 0 if opened.left != level.revealed.left else 1
        return Bisect(opened, leaves.children(level.height - 1, 2 * node + half))

    leaf = leaves.open(level.index, level.agreed_before)
    if level.level.is_last:
        return RevealLeaf(side, leaf)
    below = trees.get((*place, level.index))
    if below is None:
        return Need((*place, level.index))
    if below.payloads[-1] != leaf.payload:
        return Helpless(f"leaf {level.index} at level {level.level.name} does not follow from the states below it")
    return OpenLevel(side, leaf, below.as_next_root())


def place_of(game: Game) -> Place:
    """Place of the tree in which the game is now: the disputed leaf of every level above."""
    return tuple(level.index for level in game.levels[:-1])
