"""The table of tasks and ranks (`scripts/matrix_of_ranks.py`); test_ranks holds ranks against one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from machines.ranks import Found
from machines.tasks import SHARED, SHARED_IN_BF16
from matrix_of_ranks import FOLLOWERS, SIZES, Result, run
from roundlog.capture import Task
from roundlog.training.job import Job


@pytest.mark.long
@pytest.mark.matrix
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("tasks", [SHARED, SHARED_IN_BF16], ids=["fp32", "bf16"])
def test_every_task_has_one_root_for_all_numbers_of_ranks(
    tasks: dict[str, Callable[[int], Task]], tmp_path: Path
) -> None:
    jobs = {name: tmp_path / "jobs" / name for name in tasks}
    for name, directory in jobs.items():
        Job.from_task(functools.partial(tasks[name], 50)).write(directory)
    assert run(jobs, tmp_path).wrong() == []


def test_another_root_or_a_finding_is_told() -> None:
    trained = {("a", size): Found("00", 0) for size in SIZES}
    followed = {("a", size, by): Found("00", 0) for size in SIZES for by in FOLLOWERS}
    assert Result(trained, followed).wrong() == []
    assert Result(trained, {**followed, ("a", 8, 3): Found("00", 1)}).wrong() == [
        "1 entries of the logs of a are wrong or missing"
    ]
    other = Found("01", 0)
    assert Result({**trained, ("a", 3): other}, followed).wrong() == ["a has 2 roots"]
    assert Result(trained, {**followed, ("a", 8, 3): other}).wrong() == ["a has 2 roots"]
