"""Task with numbers that change from step to step, which it states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from roundlog.capture.errors import CaptureError
from roundlog.capture.task import Task

StepNumbers = Callable[[int], float] | Sequence[float] | NDArray[Any]
"""A number at each step: a function of the step (0, 1, ...), or one number a step."""


@dataclass(frozen=True, kw_only=True)
class NumberedTask(Task):
    """A training job before capture, as `roundlog.Task`.

    numbers: name -> what changes from step to step, rounded to FP32. The loss reads a name from its batch, as a tensor
        of no axes (float32, or int64 where the number at step 0 is an int). A name with a dot or a bracket is the place
        of a number of Python's as the script has it, `model.step`, or `loss.step` for a variable of the loss's closure;
        its value is that with which a step begins.
    """

    numbers: Mapping[str, StepNumbers] = field(default_factory=dict)

    @staticmethod
    def of(task: Task) -> NumberedTask:
        """A task as one that may have numbers."""
        if isinstance(task, NumberedTask):
            return task
        return NumberedTask(**{one.name: getattr(task, one.name) for one in fields(Task)})

    def check(self) -> None:
        """Raises CaptureError, in one sentence, for a task that cannot be trained."""
        Task.check(self)
        for name, source in self.numbers.items():
            if name in self.dataset:
                raise CaptureError(f"numbers has {name}, which is a field of the dataset: choose another name")
            if not callable(source) and len(source) < self.steps:
                raise CaptureError(
                    f"numbers[{name!r}] has {len(source)} numbers: give one for each of {self.steps} steps"
                )

    def number(self, name: str, step: int) -> float:
        """A number at a step. Raises CaptureError for what is none."""
        source = self.numbers[name]
        value = source(step) if callable(source) else source[step]
        value = value.item() if isinstance(value, np.generic | Tensor) and value.ndim == 0 else value
        if type(value) not in (int, float) or not math.isfinite(value):
            raise CaptureError(f"numbers[{name!r}] is {value!r} at step {step}: give a finite int or float")
        return value

    def held_numbers(self) -> list[str]:
        """Names of the numbers that stand in places of the script's."""
        return [name for name in self.numbers if not name.isidentifier()]

    def parts_at(self, step: int, batch: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """The parts of the batch of a step, each with the numbers that the loss reads from it."""
        names = (name for name in self.numbers if name.isidentifier())
        return self.parts_with({name: torch.tensor(self.number(name, step)) for name in names}, batch)

    def parts_with(self, numbers: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """The parts of a batch, each with these numbers."""
        return [{**part, **numbers} for part in self.parts(batch)]
