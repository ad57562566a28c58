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
from tiebreak.contract.enums import Side
from tiebreak.contract.structs import GameView
from tiebreak.roles import engine
from tiebreak.roles.engine import Engine
from tiebreak.roles.job_role import Ending
from tiebreak.roles.notices import Notice, Warnings, What
from tiebreak.roles.player import earliest_deadline
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


def test_a_game_in_which_others_move_hides_no_clock_that_runs() -> None:
    games = [cast(GameView, SimpleNamespace(deadlines=pair)) for pair in ((0, 70), (90, 0), (80, 60))]
    assert earliest_deadline(games, Side.TRAINER) == 80 and earliest_deadline(games, Side.CHALLENGER) == 60
    assert earliest_deadline(games[:1], Side.TRAINER) is None
