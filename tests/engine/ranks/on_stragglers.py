"""What ranks do in the tests of stragglers: one of them is stuck while its heart beats."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from roundlog.arithmetic import DisturbedError
from roundlog.execution.ranks import Ranks, RanksExecutor, dismiss, serve
from roundlog.execution.ranks.membership import RankWait
from roundlog.execution.ranks.ranks_executor import RankStep
from roundlog.operators import StepInputs
from roundlog.rounding import Recorder
from roundlog.training.helpers import Helpers, help_with_runs
from roundlog.training.job import JobLimits

from tests.engine.ranks import on_ranks

PATIENCE, STUCK = 2.0, 6.5
"""Seconds after which a rank tells, and for which one is stuck."""


def listen(ranks: Ranks) -> list[str]:
    """The sentences that this rank is going to tell."""
    told: list[str] = []
    ranks.membership.stragglers.on_late = told.append
    ranks.membership.stragglers._patience = dict.fromkeys(RankWait, PATIENCE)
    return told


def run_with_a_stuck_rank(ranks: Ranks, stuck: int, where: str) -> list[Any]:
    """[sentences told, problems seen, steps (rank 0) or collectives (the others)] where one rank is stuck before it
    reads its inputs, in a step, or between two; or is disturbed in a step, which all execute again."""
    on_ranks.run_swaps(ranks)  # the first steps take longer
    ranks.numbers(0)
    told, problems = listen(ranks), set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            problems.add(ranks.membership.stragglers.problem)

    threading.Thread(target=look, daemon=True).start()
    program, states = on_ranks.swapping()
    data, schedule = [torch.arange(6.0).view(3, 2)], torch.zeros(0)
    run, gather, left = RankStep.run, Ranks.gather_all, [3]

    def inputs_of(step: int, states: Sequence[torch.Tensor]) -> StepInputs:
        if where == "inputs" and step == 2 and ranks.rank == stuck:
            time.sleep(STUCK)
        return StepInputs(states=states, data=data, schedule=schedule, seed=1, step=step, device=torch.device("cpu"))

    def gather_late(self: Ranks, mine: torch.Tensor, sizes: Any) -> list[torch.Tensor]:
        left[0] -= 1
        if not left[0]:
            time.sleep(STUCK)
        return gather(self, mine, sizes)

    def disturbed(self: RankStep, *given: Any) -> Any:
        found = run(self, *given)
        left[0] -= 1
        if not left[0]:
            raise DisturbedError("somebody has changed the rounding")
        return found

    if where == "step" and ranks.rank == stuck:
        Ranks.gather_all = gather_late  # type: ignore[method-assign]
    if where == "disturbed":
        # All raise it at the same place.
        RankStep.run = disturbed  # type: ignore[method-assign]
    if ranks.rank:
        serve(program, ranks, inputs_of)
        count = ranks.membership.stragglers.own.come
    else:
        count = _lead(RanksExecutor(program, ranks), inputs_of, states, where)
        dismiss(ranks)
    ended.set()
    return [told, sorted(problems - {None}), count]


def _lead(executor: RanksExecutor, inputs_of: Any, states: Sequence[torch.Tensor], where: str) -> int:
    done = 0
    while done < 4:
        if where == "between" and done == 2:
            time.sleep(STUCK)
        try:
            states = executor.run(inputs_of(done, states), Recorder(4)).states
        except DisturbedError:
            # As a run does.
            continue
        done += 1
    return done


def run_without_a_run(ranks: Ranks, seconds: float) -> list[str]:
    """What is told where rank 0 has no run for some seconds."""
    told = listen(ranks)
    if ranks.rank:
        help_with_runs(ranks, JobLimits())
    else:
        time.sleep(seconds)
        Helpers(ranks).dismiss()
    return told
