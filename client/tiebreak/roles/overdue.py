"""Games whose clocks have run out: whoever is served by their end calls for it, the parties first."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tiebreak.chain.records import GameView, Side
from tiebreak.game import ClaimTimeout, timeout_is_due
from tiebreak.roles.job_role import JobRole
from tiebreak.roles.player import describe

HEAD_START = 2
"""Blocks in which only the parties of a game end it by the clock, so that not everybody pays for the same call."""


def end_overdue(role: JobRole, games: Mapping[int, GameView]) -> None:
    """Ends games in which every running clock, or the referee's, is out; those of others after a head start.

    Colluding parties would never end each other's games, behind which others are queued. Needs no evidence, and asks
    for nothing but games that are at hand."""
    now = role.context.now()
    for number, game in games.items():
        side = next((side for side in Side if game.party(side) == role.context.address), None)
        if side is None:
            late = math.ceil(HEAD_START * role.context.desk.block_seconds())
            text = "end a game of others whose clock ran out"
        elif game.deadlines[side]:
            continue  # nobody gains by hurrying the end of a game that it has lost
        else:
            late, text = 0, describe(game, ClaimTimeout())
        if timeout_is_due(game, now - late):
            role.order(text, "claimTimeout", number, job=game.job, game=number)
