"""What rank 0 and its helpers do in the tests of helped runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from roundlog.arithmetic import MachineError
from roundlog.capture import Task
from roundlog.execution import StoppedError
from roundlog.execution.ranks import DisagreementError, LostRankError, Ranks, rank_passes
from roundlog.execution.ranks.rank_states import KeptStates
from roundlog.training import helpers as module
from roundlog.training import rank_runs
from roundlog.training.helpers import Helpers, MakeExecution, help_with_runs
from roundlog.training.job import Job, JobLimits
from roundlog.training.options import RunOptions, StepEvent, prescribed
from roundlog.training.rank_runs import Outgoing
from roundlog.training.trainer import Trainer
from torch import nn

from tests.engine.ranks.on_trainings import Broken
from tests.engine.running.test_tensor_core_jobs import task
from tests.engine.tasks import TASKS

LIMITS = JobLimits()


class Lead:
    """Rank 0 of the tests: runs in a directory, what is told of them, and how many jobs were sent."""

    def __init__(self, ranks: Ranks, place: str) -> None:
        self.helpers = Helpers(ranks)
        self.warnings: list[str] = []
        self.sent = 0
        self._place, self._device = Path(place), ranks.device
        pieces = Outgoing.pieces

        def counted(outgoing: Outgoing) -> Any:
            self.sent += 1
            return pieces(outgoing)

        Outgoing.pieces = counted  # type: ignore[method-assign]

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


def run_bent(ranks: Ranks, place: str, broken: int, at: int) -> Any:
    """[roots, errors, warnings] where one rank receives a bent sum, once."""
    if ranks.rank == broken:
        rank_passes.sums_over = Broken(rank_passes.sums_over, at)
    if ranks.rank:
        return help_with_runs(ranks, LIMITS)
    lead = Lead(ranks, place)
    errors = []
    try:
        roots = [lead.train("linear")]
    except DisagreementError as error:
        errors.append(str(error))
        roots = [lead.train("linear")]
    roots.append(lead.train("conv"))
    lead.helpers.dismiss()
    return [roots, errors, lead.warnings]


def run_unfit(ranks: Ranks, place: str, most: int) -> Any:
    """[roots, warnings] of a job that a helper has no room for, of one with too few samples, of one that cannot be
    written to be sent, and of one that fits."""
    if ranks.rank:
        return help_with_runs(ranks, LIMITS, most if ranks.rank == 2 else module.MAX_JOB_BYTES)
    lead = Lead(ranks, place)
    roots = [lead.train("conv"), lead.of(two_samples())]
    lead.place_of(Job.from_task(lambda: TASKS["features"](steps=6))).mkdir()
    (lead.place_of(Job.from_task(lambda: TASKS["features"](steps=6))) / "sent").write_text("in the way")
    roots += [lead.train("features"), lead.train("linear")]
    lead.helpers.dismiss()
    return [roots, lead.warnings]


def run_with_products(ranks: Ranks, place: str, arithmetic: str) -> Any:
    """[roots, warnings] of a job of tensor cores whose products a helper cannot compute, and of one that it can."""
    if ranks.rank:
        checked = rank_runs.check_machine

        def check(device: torch.device, products: Collection[tuple[str, str]] = ()) -> None:
            checked(device, products)
            if (arithmetic, "bf16") in products:
                raise MachineError(f"a card does not compute products of bf16 as {arithmetic} has them")

        rank_runs.check_machine = check  # type: ignore[attr-defined]
        return help_with_runs(ranks, LIMITS)
    lead = Lead(ranks, place)
    roots = [lead.of(of_tensor_cores(name)) for name in ("hopper", "ampere")]
    lead.helpers.dismiss()
    return [roots, lead.warnings]


def run_and_lose(ranks: Ranks, place: str) -> Any:
    """[roots, warnings] where rank 1 ends in the midst of a run; what the others say."""
    if ranks.rank:
        if ranks.rank == 1:
            gather, left = Ranks.gather_all, [60]

            def dying(self: Ranks, mine: torch.Tensor, sizes: Any) -> list[torch.Tensor]:
                left[0] -= 1
                if not left[0]:
                    print("1", flush=True)
                    os._exit(0)
                return gather(self, mine, sizes)

            Ranks.gather_all = dying  # type: ignore[method-assign]
        try:
            return help_with_runs(ranks, LIMITS)
        except LostRankError as error:
            return str(error)
    lead = Lead(ranks, place)
    roots = [lead.train("linear"), lead.train("conv")]
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


def of_tensor_cores(arithmetic: str) -> Job:
    """A training of six steps in BF16."""
    return Job.from_task(task, arithmetic=arithmetic)


def two_samples() -> Job:
    """A training with two samples in a batch."""
    return _least_squares(rate=0.1, batch_size=2)


def _least_squares(rate: float, batch_size: int) -> Job:
    torch.manual_seed(5)
    model = nn.Linear(4, 1)
    return Job.from_task(
        lambda: Task(
            model=model,
            loss=lambda model, batch: model(batch["x"]).square().mean(),
            optimizer=torch.optim.SGD(model.parameters(), lr=rate),
            dataset={"x": torch.randn(12, 4)},
            batch_size=batch_size,
            steps=8,
            interval=2,
            seed=9,
        )
    )
