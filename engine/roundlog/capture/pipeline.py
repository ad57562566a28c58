"""Capture: a task, its traced steps, the program that these are lowered to, and where its values come from."""

from __future__ import annotations

import torch
from torch.torch_version import TorchVersion

from roundlog.capture.captured import Captured, Origin, model_tensors
from roundlog.capture.errors import CaptureError, UnknownValueError
from roundlog.capture.lowering import lowered
from roundlog.capture.python_state import snapshot_of
from roundlog.capture.task import STORED, Task
from roundlog.capture.tracing.eager import plain_model
from roundlog.capture.tracing.rehearsal import traced

_OLDEST = "2.11"
"""PyTorch that the rules are made for. Jobs run with 2.10 as well, the last one that AArch64 has without CUDA."""


def capture(task: Task) -> Captured:
    """Turn a task into a program, its initial state and its schedule. The task's model, optimizer and loss stay as they
    are. Raises CaptureError, naming the operator and the user's source line, for what cannot be turned."""
    if TorchVersion(torch.__version__) < _OLDEST:
        raise CaptureError(
            f"PyTorch {torch.__version__} runs and audits jobs, but captures none: install PyTorch {_OLDEST} or newer, "
            "or capture on another machine"
        )
    task.check()
    tensors = model_tensors(plain_model(task.model))
    buffers = frozenset(name for name in tensors if not name.startswith("parameter/"))
    # Programs have no states of other dtypes.
    known = frozenset(name for name in buffers if tensors[name].dtype not in STORED)
    try:
        return _captured(task, known, decides=False)
    except UnknownValueError:
        pass
    # Values that are known decide nothing; what is unknown even so is followed, or named.
    return _captured(task, buffers, decides=True)


def _captured(task: Task, known: frozenset[str], *, decides: bool) -> Captured:
    """The task with these buffers as constants, as far as no step changes them. decides: whether the step may decide by
    values that it computes."""
    with snapshot_of(task) as snapshot:
        trace, course, attributes = traced(task, snapshot, known, decides=decides)
        try:
            job = lowered(trace, course, task.fields(), task.batch(torch.arange(task.batch_size)), task.seed)
        except CaptureError as error:
            raise UnknownValueError(str(error)) from error
    own = {**model_tensors(plain_model(task.model)), **attributes}
    return Captured(
        program=job.program,
        states={name: tensor.detach().clone().contiguous() for name, tensor in job.states.items()},
        schedule=job.schedule,
        origin=Origin(
            tensors={name: tensor for name, tensor in own.items() if name in job.states},
            trained=trace.trained,
            gradients=job.gradients,
            paths=job.paths,
            known=trace.known,
            trails=job.trails,
        ),
    )
