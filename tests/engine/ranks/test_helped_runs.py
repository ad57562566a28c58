"""Runs that ranks execute one after another with rank 0: the roots of one process, whatever becomes of the helpers."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from roundlog.execution import StoppedError
from roundlog.execution.ranks import LostRankError, Ranks
from roundlog.execution.ranks.rank_states import KeptStates
from roundlog.training.job import Job, JobLimits
from roundlog.training.options import RunOptions, StepEvent, prescribed
from roundlog.training.rank_runs import Helpers, MakeExecution, help_with_runs
from roundlog.training.trainer import Trainer
from torch import nn

from tests.engine.ranks.rank_processes import call
from tests.engine.tasks import TASKS, small_task

pytestmark = pytest.mark.slow

LIMITS = JobLimits()


class Lead:
    """Rank 0 of the tests: runs in a directory, what is told of them, and how many jobs were sent."""

    def __init__(self, ranks: Ranks, place: str) -> None:
        self.helpers = Helpers(ranks)
        self.warnings: list[str] = []
        self.sent = 0
        self._place, self._device = Path(place), ranks.device
        written = Job.write_all_but_data

        def counted(job: Job, directory: Path) -> None:
            self.sent += 1
            written(job, directory)

        Job.write_all_but_data = counted  # type: ignore[method-assign]

    def train(self, name: str, on_step: Callable[[StepEvent], None] | None = None) -> str:
        """The checkpoint root of a training of a task by all ranks."""
        return self.of(Job.from_task(lambda: TASKS[name](steps=6)), on_step)

    def of(self, job: Job, on_step: Callable[[StepEvent], None] | None = None) -> str:
        """The checkpoint root of a training by all ranks."""

        def run(execution: MakeExecution) -> str:
            options = RunOptions(device=self._device, execution=execution, on_step=on_step)
            return Trainer(job, self.place_of(job), options).run().checkpoint_root.hex()

        return self.helpers.execute(job, run, prescribed, self.warnings.append)

    def place_of(self, job: Job) -> Path:
        """The directory of a job's run."""
        return self._place / job.spec.run_id.hex()

    def stops(self, job: Job) -> str:
        """The sentence of a training that stops."""
        try:
            return self.of(job)
        except StoppedError as error:
            return str(error)


def alone(name: str, place: Path) -> str:
    """The checkpoint root that one process comes to."""
    return Trainer(Job.from_task(lambda: TASKS[name](steps=6)), place).run().checkpoint_root.hex()


class GivesWay(Exception):
    """A run is told to give way."""


def run_many(ranks: Ranks, place: str) -> Any:
    """[roots, sentence of a run that stops, warnings, jobs sent] on rank 0; steps helped with on the others."""
    if ranks.rank:
        return help_with_runs(ranks, LIMITS)
    lead = Lead(ranks, place)
    found: list[str] = []

    def gives_way(event: StepEvent) -> None:
        if event.step == 2:
            raise GivesWay

    def another_comes(event: StepEvent) -> None:
        if event.step == 3:
            thread = threading.Thread(target=lambda: found.append(lead.train("features")))
            thread.start()
            thread.join()

    with suppress(GivesWay):
        found.append(lead.train("linear", gives_way))
    # Resumed, it is not sent again.
    for name in ("linear", "conv", "linear"):
        found.append(lead.train(name, another_comes if name == "conv" else None))
    stopped = lead.stops(diverging())
    lead.helpers.dismiss()
    return [found, stopped, lead.warnings, lead.sent]


def run_unfit(ranks: Ranks, place: str, most: int) -> Any:
    """[roots, warnings] of a job that a helper has no room for, of one with too few samples, of one that cannot be
    written to be sent, and of one that fits."""
    if ranks.rank:
        if ranks.rank == 2:
            # A file of more bytes than this has no room.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        return help_with_runs(ranks, LIMITS)
    lead = Lead(ranks, place)
    roots = [lead.train("conv"), lead.of(two_samples())]
    lead.place_of(Job.from_task(lambda: TASKS["features"](steps=6))).mkdir()
    (lead.place_of(Job.from_task(lambda: TASKS["features"](steps=6))) / "sent").write_text("in the way")
    roots += [lead.train("features"), lead.train("linear")]
    lead.helpers.dismiss()
    return [roots, lead.warnings]


def run_with_a_fault(ranks: Ranks, place: str, fetching: bool) -> Any:
    """[errors, roots, warnings] where rank 0 fails in the midst of a step, or of fetching a state; what the others
    say."""
    if ranks.rank:
        try:
            return help_with_runs(ranks, LIMITS)
        except LostRankError as error:
            return str(error)
    owner, name, at = (KeptStates, "give_slot", 1) if fetching else (Ranks, "gather_all", 40)
    called, left = getattr(owner, name), [at]

    def failing(*given: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise OSError("the disk is gone")
        return called(*given)

    lead, errors = Lead(ranks, place), []
    lead.train("linear")
    setattr(owner, name, failing)
    try:
        lead.train("conv")
    except OSError as error:
        errors.append(str(error))
    roots = [lead.train("conv")]
    lead.helpers.dismiss()
    return [errors, roots, lead.warnings]


def diverging() -> Job:
    """A training whose numbers become infinite."""
    return _least_squares(rate=1e9, batch_size=4)


def two_samples() -> Job:
    """A training with two samples in a batch."""
    return _least_squares(rate=0.1, batch_size=2)


def _least_squares(rate: float, batch_size: int) -> Job:
    torch.manual_seed(5)
    model = nn.Linear(4, 1)
    return Job.from_task(
        lambda: small_task(
            model,
            lambda model, batch: model(batch["x"]).square().mean(),
            {"x": torch.randn(12, 4)},
            optimizer=torch.optim.SGD(model.parameters(), lr=rate),
            **{"batch_size": batch_size, "steps": 8, "interval": 2, "seed": 9},
        )
    )


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The roots of one process."""
    place = tmp_path_factory.mktemp("alone")
    return {name: alone(name, place / name) for name in ("linear", "conv", "features")}


def test_one_run_after_another_is_helped_with_and_a_job_is_sent_once(right: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(StoppedError) as stopped:
        Trainer(diverging(), tmp_path / "alone").run()
    (roots, said, warnings, sent), helped = call("test_helped_runs:run_many", 2, str(tmp_path))
    # One came while the helpers were in use.
    assert roots == [right[name] for name in ("linear", "features", "conv", "linear")] and warnings == []
    assert said == str(stopped.value)
    # Three steps, of which one is not on record, four, six, none of a run that has ended, and some until one stops.
    assert 3 + 4 + 6 < helped < 3 + 4 + 6 + 8
    assert sent == 4
    assert not list(tmp_path.rglob("sent"))


def test_what_the_helpers_cannot_take_part_in_rank_0_executes_alone(right: dict[str, str], tmp_path: Path) -> None:
    """A helper has no room for one job, which the other one has."""
    (roots, warnings), *helped = call("test_helped_runs:run_unfit", 3, str(tmp_path), 10_000)
    small = Trainer(two_samples(), tmp_path / "alone").run().checkpoint_root.hex()
    assert roots == [right["conv"], small, right["features"], right["linear"]]
    no_room, too_few, not_sent = warnings
    assert no_room.startswith("rank 0 executes this job alone: rank 2 (process ")
    assert "cannot take part: it cannot keep the job below " in no_room and "File too large" in no_room
    assert too_few == "rank 0 executes this job alone: 2 samples of a batch cannot be shared out among 3 ranks"
    assert not_sent.startswith("rank 0 executes this job alone: it cannot be sent to the other ranks (")
    assert helped == [6, 6]


@pytest.mark.parametrize("fetching", [pytest.param(False, marks=pytest.mark.long), True])
def test_an_error_of_rank_0_in_the_midst_of_a_step_lets_the_helpers_go(
    fetching: bool, right: dict[str, str], tmp_path: Path
) -> None:
    (errors, roots, warnings), said = call("test_helped_runs:run_with_a_fault", 2, str(tmp_path), fetching)
    assert errors == ["the disk is gone"] and roots == [right["conv"]]
    assert "rank 0 (process " in said and "could not end a step that all ranks execute" in said
    assert len(warnings) == 1 and "goes on alone" in warnings[0]
