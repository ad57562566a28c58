"""roundlog: training steps as programs, executed to the same bits on every machine.

    from roundlog import Auditor, Job, Task, Trainer, audit

    job = Job.from_task(make_task)        # a function that makes a task; a step of it, captured
    trained = Trainer(job, run_dir).run()  # checkpoints, their root, and a rounding log
    verdict = audit(job, ...)             # the same bits on another machine, or the interval that differs

These names are the public interface; what else a room offers stands in the `__init__` of its folder. They are loaded
when they are first used, since PyTorch takes seconds.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roundlog.capture import CaptureError, Task
    from roundlog.capture.portable import portable
    from roundlog.data import windows
    from roundlog.program import Program
    from roundlog.spec import TrainingSpec
    from roundlog.training.auditor import Auditor, Verdict, audit
    from roundlog.training.checkpoint import load_checkpoint
    from roundlog.training.export import load_into
    from roundlog.training.job import Job, JobError
    from roundlog.training.options import RunOptions
    from roundlog.training.trainer import Trainer

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
    "audit",
    "load_checkpoint",
    "load_into",
    "portable",
    "windows",
]


def lazy_face(module: str, file: str) -> Callable[[str], object]:
    """The `__getattr__` of a package: each of the names that its file imports under TYPE_CHECKING is loaded when it is
    first used, and found by Python from then on."""
    (for_types,) = (node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If))
    imports = [node for node in for_types.body if isinstance(node, ast.ImportFrom)]
    homes = {name.name: str(node.module) for node in imports for name in node.names}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"{module} has no {name}: its public names are {', '.join(sorted(homes))}")
        found = getattr(import_module(homes[name]), name)
        setattr(sys.modules[module], name, found)
        return found

    return load


__getattr__ = lazy_face(__name__, __file__)


def __dir__() -> list[str]:
    return __all__
