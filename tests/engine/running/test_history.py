"""The history of a run: what it holds, and that nothing depends on it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.training import run_files
from roundlog.training.auditor import Auditor
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, StepEvent, Validation, ValidationError, draws_numbers
from roundlog.training.trainer import Trainer, TrainingResult

from tests.engine.kept_jobs import kept_job
from tests.engine.running.deaths import Point, killed_at

Trained = tuple[Path, Job, TrainingResult, list[StepEvent]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    directory = tmp_path_factory.mktemp("trained")
    job = kept_job("dropout_adamw")
    events: list[StepEvent] = []
    return directory, job, Trainer(job, directory / "run", RunOptions(on_step=events.append)).run(), events


def lines(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / run_files.HISTORY_FILE).read_text().splitlines()]


def without_times(directory: Path) -> list[dict[str, object]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines(directory)]


def test_a_history_has_loss_time_and_schedule_of_every_step(trained: Trained) -> None:
    directory, job, _, events = trained
    found: list[dict[str, Any]] = lines(directory / "run")
    assert [entry["step"] for entry in found] == list(range(8))
    for entry, event in zip(found, events, strict=True):
        assert torch.tensor(entry["loss"]).item() == event.loss, "the FP32 number itself"
        assert entry["seconds"] == pytest.approx(event.seconds, abs=1e-6) and len(entry) == 4
        assert list(entry["schedule"]) == list(job.program.schedule_names)
        assert torch.tensor(list(entry["schedule"].values())).equal(job.schedule[entry["step"]])


def test_an_auditor_keeps_the_same_history(trained: Trained, tmp_path: Path) -> None:
    directory, job, result, _ = trained
    assert Auditor(job, tmp_path / "audit").run().state_roots == result.state_roots
    assert without_times(tmp_path / "audit") == without_times(directory / "run")


class Tell:
    def __call__(self, event: object) -> None: ...


@pytest.mark.parametrize("point", [Point(Tell, "__call__", 6), Point(os, "fsync", 9)])
def test_a_killed_run_ends_with_the_history_of_a_whole_one(point: Point, trained: Trained, tmp_path: Path) -> None:
    directory, job, result, _ = trained
    killed_at(point, lambda: Trainer(job, tmp_path / "run", RunOptions(on_step=Tell())).run())
    written = lines(tmp_path / "run")
    if point.owner is Tell:
        assert len(written) == point.number, "a line is handed over before its step is told"
    from_step: list[int] = []
    again = Trainer(job, tmp_path / "run", RunOptions(on_resume=from_step.append)).run()
    assert again.state_roots == result.state_roots and again.history_problem is None
    assert without_times(tmp_path / "run") == without_times(directory / "run")
    (first,) = from_step
    assert lines(tmp_path / "run")[:first] == written[:first], "steps that are not repeated keep their lines"
    assert first == 2 * ((point.number - 1) // 2) if point.owner is Tell else first % 2 == 0


@pytest.mark.parametrize("damage", ["{}", "hello", '{"step":1e999}', '{"step":0,"loss":1,"seconds":1}', "\udcff"])
def test_damage_costs_the_lines_behind_it_and_no_result(damage: str, trained: Trained, tmp_path: Path) -> None:
    directory, job, result, _ = trained
    shutil.copytree(directory / "run", tmp_path / "run")
    path = tmp_path / "run" / run_files.HISTORY_FILE
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join([text[0], f"{damage}\n", *text[2:]]), errors="surrogateescape")
    again = Trainer(job, tmp_path / "run").run()
    assert again.state_roots == result.state_roots
    assert again.history_problem is not None and "line 2" in again.history_problem
    assert path.read_text() == text[0]


def test_a_history_that_cannot_be_written_does_not_end_a_run(trained: Trained, tmp_path: Path) -> None:
    _, job, result, _ = trained
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / run_files.HISTORY_FILE).symlink_to(tmp_path / "no" / "where")
    found = Trainer(job, tmp_path / "run").run()
    assert found.state_roots == result.state_roots and found.history_problem is not None


def rows_of(job: Job, step: int) -> dict[str, torch.Tensor]:
    from roundlog.execution import Batches

    return dict(zip(job.dataset, Batches(job.dataset, job.spec).load(step), strict=True))


@pytest.fixture
def no_dropout() -> Job:
    return kept_job("logistic_sgd")


def test_a_validation_on_the_batch_of_a_step_is_its_loss_to_the_bit(trained: Trained, tmp_path: Path) -> None:
    """With dropout, too, since the masks are those of that step."""
    directory, job, result, events = trained
    assert draws_numbers(job.program)
    for step in (0, 3, 5):
        seen: dict[int, float] = {}
        validation = Validation(job, rows_of(job, step), 1, seen.__setitem__)
        run_dir = tmp_path / str(step)
        assert Trainer(job, run_dir, RunOptions(validation=validation)).run().state_roots == result.state_roots
        assert seen[step] == events[step].loss
        assert list(seen) == list(range(9))
        assert [line for line in without_times(run_dir) if "loss" in line] == without_times(directory / "run")
        for path in (directory / "run" / "log").iterdir():
            assert (run_dir / "log" / path.name).read_bytes() == path.read_bytes()


def test_a_validation_is_the_mean_of_whole_batches(no_dropout: Job, tmp_path: Path) -> None:
    job = no_dropout
    assert not draws_numbers(job.program)
    batches = [rows_of(job, step) for step in (0, 1)]
    singles = []
    for batch in batches:
        singles.append(Validation(job, batch, 1).loss(0, list(job.initial.values()), torch.device("cpu")))
    both = {name: torch.cat([batch[name] for batch in batches] + [batches[0][name][:1]]) for name in batches[0]}
    validation = Validation(job, both, 1)
    assert validation.rows == 2 * job.spec.batch_size, "the row behind the last whole batch is left out"
    assert validation.loss(0, list(job.initial.values()), torch.device("cpu")) == sum(singles) / 2


def test_too_few_rows_and_no_steps_are_refused(trained: Trained) -> None:
    _, job, _, _ = trained
    one = {name: field[:1] for name, field in job.dataset.items()}
    with pytest.raises(ValidationError, match="less than one batch"):
        Validation(job, one, 1)
    with pytest.raises(ValidationError, match="give 1 or more"):
        Validation(job, rows_of(job, 0), 0)
