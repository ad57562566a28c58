"""roundlog: training steps as programs, executed to the same bits on every machine.

    from roundlog import Auditor, Job, Task, Trainer, audit

    job = Job.from_task(task)             # a PyTorch step, captured
    trained = Trainer(job, run_dir).run()  # checkpoints, their root, and a rounding log
    verdict = audit(job, ...)             # the same bits on another machine, or the interval that differs

These names are the public interface; what else a room offers stands in the `__init__` of its folder. They are loaded
when they are first used, since PyTorch takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roundlog.capture import CaptureError, Task, portable
    from roundlog.data import arrow_fields, safetensors_fields, windows
    from roundlog.program import Program
    from roundlog.spec import TrainingSpec
    from roundlog.training.auditor import Auditor
    from roundlog.training.export import load_into
    from roundlog.training.job import Job, JobError
    from roundlog.training.options import RunOptions
    from roundlog.training.trainer import Trainer
    from roundlog.training.verdict import Verdict, audit

_ROOMS = {
    "Auditor": "roundlog.training.auditor",
    "CaptureError": "roundlog.capture",
    "Job": "roundlog.training.job",
    "JobError": "roundlog.training.job",
    "Program": "roundlog.program",
    "RunOptions": "roundlog.training.options",
    "Task": "roundlog.capture",
    "Trainer": "roundlog.training.trainer",
    "TrainingSpec": "roundlog.spec",
    "Verdict": "roundlog.training.verdict",
    "arrow_fields": "roundlog.data",
    "audit": "roundlog.training.verdict",
    "load_into": "roundlog.training.export",
    "portable": "roundlog.capture",
    "safetensors_fields": "roundlog.data",
    "windows": "roundlog.data",
}

__all__ = [
    "Auditor",
    "CaptureError",
    "Job",
    "JobError",
    "Program",
    "RunOptions",
    "Task",
    "Trainer",
    "TrainingSpec",
    "Verdict",
    "arrow_fields",
    "audit",
    "load_into",
    "portable",
    "safetensors_fields",
    "windows",
]


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"roundlog has no {name}: its public names are {', '.join(__all__)}")
    return getattr(import_module(_ROOMS[name]), name)


def __dir__() -> list[str]:
    return __all__
