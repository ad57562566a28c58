"""Capture of an ordinary PyTorch training task as a program: forward, loss, backward and optimizer update of one
step."""

from roundlog.capture.checkpoint import load_checkpoint
from roundlog.capture.errors import CaptureError
from roundlog.capture.lowering import Captured, capture
from roundlog.capture.task import Task

__all__ = ["CaptureError", "Captured", "Task", "capture", "load_checkpoint"]
