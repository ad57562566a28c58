"""Capture: from a function that makes a task to a program, its initial state and its schedule."""

from __future__ import annotations

from dataclasses import replace

import torch

from roundlog.capture.captured import Captured, Origin
from roundlog.capture.errors import CaptureError, UnknownValueError
from roundlog.capture.lowering import lowered
from roundlog.capture.task import STORED
from roundlog.fresh_capture.fresh_tasks import FreshTasks
from roundlog.fresh_capture.numbered_task import NumberedTask
from roundlog.fresh_capture.real_steps import WatchedSteps, reachable, watched_steps
from roundlog.fresh_capture.stand_ins import held_states
from roundlog.fresh_capture.task_trace import TaskTrace, WrittenStateError
from roundlog.fresh_capture.warmed_task import warmed_task

_MOST_STATES = 64
"""Most tensors that the trace finds to be states when no watched step has changed them."""


def captured_task(fresh: FreshTasks) -> tuple[Captured, NumberedTask]:
    """The program of a task, and the fresh task whose tensors its origin names.

    Raises CaptureError, naming the operator and the user's source line, for what cannot be turned."""
    watched, by_values = watched_steps(fresh()), False
    for _ in range(_MOST_STATES):
        try:
            return _captured(fresh, watched, by_values=by_values)
        except WrittenStateError as error:
            if error.name in watched.states:
                raise
            watched = replace(watched, states=(*watched.states, error.name))
        except UnknownValueError:
            if by_values:
                raise
            by_values = True  # values of buffers that no step changes may decide; what is unknown even so is named
    raise CaptureError("a step writes into more and more tensors: keep them in buffers of the model")


def _captured(fresh: FreshTasks, watched: WatchedSteps, *, by_values: bool) -> tuple[Captured, NumberedTask]:
    warmed = warmed_task(fresh, watched)
    task = warmed.task
    found = reachable(task, watched.calls, elements=False)
    states = held_states(task, found, warmed.states)
    known = frozenset(
        name
        for name, state in states.items()
        if not name.startswith(("parameter/", "attribute/")) and (by_values or state.tensor.dtype not in STORED)
    )
    first, steps = TaskTrace(warmed, found, states, known).traced()
    try:
        job = lowered(first, steps, task.fields(), task.batch(torch.arange(task.batch_size)), task.seed)
    except CaptureError as error:
        raise UnknownValueError(str(error)) from error
    own = {name: state.tensor for name, state in states.items() if name in job.states}
    captured = Captured(
        program=job.program,
        states={name: tensor.detach().clone().contiguous() for name, tensor in job.states.items()},
        schedule=job.schedule,
        origin=Origin(
            tensors=own,
            trained=first.trained,
            gradients=job.gradients,
            paths=job.paths,
            known=first.known,
            trails=job.trails,
        ),
    )
    return captured, task
