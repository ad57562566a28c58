"""Tasks to learn from and to try the tools on. Each is a function that returns a `roundlog.capture.Task`."""

from roundlog.examples.baseline import BF16, FP32, PlainTraining
from roundlog.examples.digits import digits

__all__ = ["BF16", "FP32", "PlainTraining", "digits"]
