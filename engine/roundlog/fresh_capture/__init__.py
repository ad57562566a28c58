"""Capture of a training task that a function makes, as a program. It is going to take the place of `roundlog.capture`'s
own tracing, and lowers by its rules; nothing uses it yet but its tests (docs/design.md)."""

from roundlog.fresh_capture.capture_task import captured_task
from roundlog.fresh_capture.fresh_tasks import FreshTasks
from roundlog.fresh_capture.numbered_task import NumberedTask

__all__ = ["FreshTasks", "NumberedTask", "captured_task"]
