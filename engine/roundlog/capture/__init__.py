"""Capture of an ordinary PyTorch training task as a program: forward, loss, backward and optimizer update of one
step."""

from roundlog.capture.captured import Captured
from roundlog.capture.errors import CaptureError, DefectError, is_refusal, is_users_error, raising_defects
from roundlog.capture.fresh_tasks import MakeTask
from roundlog.capture.huggingface import generated_tokens
from roundlog.capture.pipeline import capture
from roundlog.capture.portable import paused, portable, torchs_own
from roundlog.capture.task import Task
