"""Tasks to learn from and to try the tools on. Each is a function that returns a `roundlog.capture.Task`."""

from roundlog.examples.baseline import BF16, FP32, PlainTraining, computed_in
from roundlog.examples.digits import data as digits_data
from roundlog.examples.digits import digits
from roundlog.examples.digits import loss as digits_loss
from roundlog.examples.gpt2 import GPT2Block

__all__ = ["BF16", "FP32", "GPT2Block", "PlainTraining", "computed_in", "digits", "digits_data", "digits_loss"]
