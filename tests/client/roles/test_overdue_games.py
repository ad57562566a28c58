"""Calls that end games whose clocks ran out and start games that wait, and the clock that a role tells of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tiebreak.contract.enums import Level, Phase, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.roles.job_role import JobOnChain
from tiebreak.roles.player import HEAD_START, earliest_deadline, end_overdue, start_waiting

NOW, BLOCK, ME = 1000, 12.0, "me"


class Chain(SimpleNamespace):
    """A job on a chain, with the orders of its role: (text, call, game)."""

    def __init__(self) -> None:
        calls = SimpleNamespace(claim_timeout=lambda game: f"timeout {game}", start_game=lambda job: f"start {job}")
        super().__init__(job=7, address=ME, calls=calls, now=lambda: NOW, block_seconds=lambda: BLOCK)
        self.orders: list[tuple[str, str, int | None]] = []

    def order(self, text: str, call: str, *, game: int | None = None) -> bool:
        self.orders.append((text, call, game))
        return True


def game(trainer: str, challenger: str, *deadlines: int, phase: Phase = Phase.BISECTION) -> GameView:
    parties = {Side.TRAINER: trainer, Side.CHALLENGER: challenger}
    place = {"current": SimpleNamespace(level=Level.CHECKPOINT), "search": SimpleNamespace(index=0, height=0)}
    shown = SimpleNamespace(phase=phase, deadlines=deadlines, party=parties.get, referee_deadline=0, **place)
    return cast(GameView, shown)


def test_own_timeouts_are_claimed_at_once_and_those_of_others_after_a_head_start() -> None:
    late = NOW - int(HEAD_START * BLOCK)
    games = {
        1: game(ME, "other", 0, NOW - 1),  # the other's clock ran out
        2: game(ME, "other", 0, NOW),  # it has this second
        3: game(ME, "other", NOW - 1, 0),  # the own clock ran out
        4: game("a", "b", 0, NOW - 1),  # others', just now
        5: game("a", "b", 0, late - 1),  # others', a head start ago
        6: game("a", "b", 0, late),
        7: game("a", "b", 0, 0, phase=Phase.QUEUED),
    }
    chain = Chain()
    end_overdue(cast(JobOnChain, chain), games)
    assert [call for _, call, _ in chain.orders] == ["timeout 1", "timeout 5"]
    assert chain.orders[1] == ("end a game of others whose clock ran out", "timeout 5", 5)


def test_a_waiting_game_is_started_once_the_audits_are_open_and_there_is_room() -> None:
    audits, terms = SimpleNamespace(audit_opening_deadline=NOW - 1), SimpleNamespace(concurrent_games=2)
    waits = SimpleNamespace(audits=audits, terms=terms, queued_games=1, live_games=1)

    def calls(**changed: object) -> int:
        chain = Chain()
        start_waiting(cast(JobOnChain, chain), cast(JobView, SimpleNamespace(**{**vars(waits), **changed})))
        return len(chain.orders)

    assert calls() == 1
    assert calls(queued_games=0) == calls(live_games=2) == 0
    assert calls(audits=SimpleNamespace(audit_opening_deadline=NOW)) == 0
    assert calls(audits=SimpleNamespace(audit_opening_deadline=0)) == 0, "games start by themselves"


def test_a_game_in_which_others_move_hides_no_clock_that_runs() -> None:
    games = [cast(GameView, SimpleNamespace(deadlines=pair)) for pair in ((0, 70), (90, 0), (80, 60))]
    assert earliest_deadline(games, Side.TRAINER) == 80 and earliest_deadline(games, Side.CHALLENGER) == 60
    assert earliest_deadline(games[:1], Side.TRAINER) is None
