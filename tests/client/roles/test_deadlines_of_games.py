"""The earliest clock among several games: a game in which others have to move has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tiebreak.contract.enums import Side
from tiebreak.contract.structs import GameView
from tiebreak.roles.player import earliest_deadline


def games(*deadlines: tuple[int, int]) -> list[GameView]:
    return [cast(GameView, SimpleNamespace(deadlines=pair)) for pair in deadlines]


def test_a_game_in_which_others_move_hides_no_clock_that_runs() -> None:
    assert earliest_deadline(games((0, 70), (90, 0), (80, 60)), Side.TRAINER) == 80
    assert earliest_deadline(games((0, 70), (90, 0), (80, 60)), Side.CHALLENGER) == 60
    assert earliest_deadline(games((0, 70), (0, 60)), Side.TRAINER) is None
    assert earliest_deadline([], Side.CHALLENGER) is None
