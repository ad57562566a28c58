"""Manners of a role: when it may leave, what it tells and how often, and how much time it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from roundlog.rounding import Rounding
from roundlog.training.job import Job
from roundlog.training.options import RunOptions
from roundlog.training.run import Run
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import Level, Phase, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.roles import engine
from tiebreak.roles.engine import Engine
from tiebreak.roles.job_role import Ending, JobRole
from tiebreak.roles.notices import Notice, Progress, Warnings, What, together
from tiebreak.roles.player import HEAD_START, earliest_deadline, end_overdue, start_waiting
from tiebreak.roles.policy import MeasuredPace, least_clock

from tests.engine.kept_jobs import kept_job


def warning(text: str, job: int = 1) -> Notice:
    return Notice(role="trainer", what=What.WARNING, text=text, job=job)


def test_another_reason_or_something_to_do_begins_anew() -> None:
    ending = Ending(0)
    for _ in range(5):
        assert not ending.seen("the job is over", 7)
        assert not ending.seen("there is no job", 7)
    ending.clear()
    assert not ending.seen("there is no job", 7)


def test_what_a_role_leaves_for_lies_as_deep_as_asked() -> None:
    ending = Ending(12)
    assert not any(ending.seen("the job is over", block) for block in range(100, 112) for _ in range(5))
    assert ending.seen("the job is over", 112)


def test_a_warning_is_told_once_until_it_changes() -> None:
    warnings = Warnings()
    told = [warnings.is_new(warning("block Qm1 is missing")) for _ in range(73)]
    assert told.count(True) == 1
    assert warnings.is_new(warning("block Qm2 is missing")) and warnings.is_new(warning("block Qm1 is missing", job=2))


def test_several_jobs_come_to_all_stakes_and_the_nearest_deadline() -> None:
    found = together(
        [
            Progress(stake=3, deadline=50, until=9),
            Progress(stake=4, deadline=20),
            Progress(finished=True, stake=100, deadline=1),
        ],
        "follows 2 jobs",
    )
    assert (found.stake, found.deadline, found.until, found.finished) == (7, 20, 9, False)


@pytest.fixture(scope="module")
def job() -> Job:
    return kept_job("convolution")


def test_the_least_clock_grows_with_blocks_steps_and_games(job: Job) -> None:
    base = least_clock(job.program, job.spec, MeasuredPace(block=12.0, step=0.1))
    assert base > 60 * 10  # what was accepted before lost by the clock after five moves
    assert least_clock(job.program, job.spec, MeasuredPace(block=24.0, step=0.1)) > base
    assert least_clock(job.program, job.spec, MeasuredPace(block=12.0, step=60.0)) > base
    assert least_clock(job.program, job.spec, MeasuredPace(block=12.0, step=0.1), games=100) > base
    # All intervals since the state before are executed, if not every state is kept.
    apart = least_clock(job.program, job.spec, MeasuredPace(block=12.0, step=60.0), intervals_apart=2)
    assert apart > least_clock(job.program, job.spec, MeasuredPace(block=12.0, step=60.0))
    assert apart == least_clock(job.program, job.spec, MeasuredPace(block=12.0, step=60.0), intervals_apart=1000)


def test_a_step_is_measured_as_it_is_executed_for_games(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, it may take more memory than an auditor in micro-batches has."""
    cut: list[int] = []

    class Watched(Run):
        def step(self, step: int, states: Sequence[torch.Tensor], rounding: Rounding) -> Sequence[torch.Tensor]:
            cut.append(self.options.micro_batches)
            return super().step(step, states, rounding)

    monkeypatch.setattr(engine, "Run", Watched)
    assert Engine(options=RunOptions(micro_batches=4)).step_seconds(job) > 0 and set(cut) == {4}


# Games whose clocks ran out, games that wait, and the clock that a role tells of.


NOW, BLOCK, ME = 1000, 12.0, "me"


class Chain(SimpleNamespace):
    """A job on a chain, with the orders of its role: (text, call, game)."""

    def __init__(self) -> None:
        super().__init__(job=7, address=ME, now=lambda: NOW, block_seconds=lambda: BLOCK)
        self.orders: list[tuple[str, ContractCall, int | None]] = []

    def order(self, text: str, call: ContractCall, *, game: int | None = None) -> bool:
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
    end_overdue(cast(JobRole, chain), games)
    assert [call for _, call, _ in chain.orders] == [ContractCall.of("claimTimeout", number) for number in (1, 5)]
    assert chain.orders[1][::2] == ("end a game of others whose clock ran out", 5)


def test_a_waiting_game_is_started_once_the_audits_are_open_and_there_is_room() -> None:
    audits, terms = SimpleNamespace(audit_opening_deadline=NOW - 1), SimpleNamespace(concurrent_games=2)
    waits = SimpleNamespace(audits=audits, terms=terms, queued_games=1, live_games=1)

    def calls(**changed: object) -> int:
        chain = Chain()
        start_waiting(cast(JobRole, chain), cast(JobView, SimpleNamespace(**{**vars(waits), **changed})))
        return len(chain.orders)

    assert calls() == 1
    assert calls(queued_games=0) == calls(live_games=2) == 0
    assert calls(audits=SimpleNamespace(audit_opening_deadline=NOW)) == 0
    assert calls(audits=SimpleNamespace(audit_opening_deadline=0)) == 0, "games start by themselves"


def test_a_game_in_which_others_move_hides_no_clock_that_runs() -> None:
    games = [cast(GameView, SimpleNamespace(deadlines=pair)) for pair in ((0, 70), (90, 0), (80, 60))]
    assert earliest_deadline(games, Side.TRAINER) == 80 and earliest_deadline(games, Side.CHALLENGER) == 60
    assert earliest_deadline(games[:1], Side.TRAINER) is None
