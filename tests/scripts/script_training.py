"""A script trained both ways: by plain PyTorch, and by the program that was captured from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import roundlog.capture
import torch
from roundlog import Job, Task
from roundlog.capture import Captured, MakeTask
from roundlog.capture.draws import Replay, drawn_by_torch
from roundlog.capture.real_steps.eager_steps import share
from roundlog.capture.real_steps.patched_torch import without_checkpoints
from roundlog.randomness import batch_rows
from torch.optim.lr_scheduler import LRScheduler

from tests.engine.trainings import steps_by_program

Draws = list[torch.Tensor | None]


def captured_job(make_task: MakeTask) -> tuple[Job, Captured]:
    """The job of a task, and the capture that it was made of."""
    found: list[Captured] = []
    capture = roundlog.capture.capture

    def keep(make_task: MakeTask, *tell: Any) -> Captured:
        found.append(capture(make_task, *tell))
        return found[-1]

    with mock.patch("roundlog.capture.capture", keep):
        job = Job.from_task(make_task)
    return job, found[0]


def losses_by_program(job: Job, captured: Captured, steps: int) -> tuple[list[float], list[Draws]]:
    """The losses of so many steps, and the numbers that each drew, in the order in which the script draws them."""
    results = list(steps_by_program(job, steps, captured.origin.observed()))
    return [float(result.loss) for result, _ in results], [captured.origin.drawn(kept) for _, kept in results]


def losses_by_pytorch(task: Task, drawn: list[Draws]) -> list[float]:
    """The losses of a plain training loop over the task's own objects, which change. drawn: what each step draws."""
    model = getattr(task.model, "_orig_mod", task.model)  # of torch.compile
    optimizers, losses, schedules = (_several(part) for part in (task.optimizer, task.loss, task.schedule))
    schedules *= len(optimizers) // len(schedules)
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    found = []
    for step, draws in enumerate(drawn):
        rows = torch.from_numpy(batch_rows(task.seed, step, task.batch_size, task.rows))
        total = 0.0
        with Replay(draws):
            for optimizer, loss, schedule, own in zip(optimizers, losses, schedules, rates, strict=True):
                if not isinstance(schedule, LRScheduler):
                    for group, rate in zip(optimizer.param_groups, own, strict=True):
                        group["lr"] = rate * schedule(step)
                optimizer.zero_grad()
                for part in task.parts_at(step, task.batch(rows)):
                    value = share(task, loss(model, part))
                    value.backward()
                    total += value.item()
                if task.max_grad_norm is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), task.max_grad_norm)
                optimizer.step()
        for schedule in schedules:
            if isinstance(schedule, LRScheduler):
                schedule.step()
        found.append(total)
    return found


def _several(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(part.values())
    return list(part) if isinstance(part, list | tuple) else [part]


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """PyTorch's operators one by one, so that a script draws as often as its program does."""
    with (
        torch.compiler.set_stance("force_eager"),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        without_checkpoints(),
        drawn_by_torch(),
    ):
        yield
