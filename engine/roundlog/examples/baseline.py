"""Training of a task by PyTorch alone, as everybody writes it: what a task means; in FP32, or in BF16 under autocast.
Good for comparisons only, since its bits are those of the machine that it runs on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import nn

from roundlog.capture import CaptureError, Task
from roundlog.capture.real_steps.eager_steps import EagerTraining

Loss = Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]

FP32, BF16 = "fp32", "bf16"


def computed_in(precision: str, loss: Loss) -> Loss:
    """A loss in "fp32" as it is; in "bf16" under `torch.autocast`: parameters and the loss stay FP32. Raises
    CaptureError for any other word."""
    if precision == FP32:
        return loss
    if precision != BF16:
        raise CaptureError(f"a precision of {precision!r} is not known: choose {FP32} or {BF16}")

    def under_autocast(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, batch)

    return under_autocast


class PlainTraining:
    """Steps of a task on copies of its model, optimizer and scheduler."""

    def __init__(
        self, task: Task, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> None:
        """dtype: float32, or float64 for parameters, buffers and data in twice the precision. device: of the model;
        None: where the task's is."""
        # Copied together, so that the optimizer's groups hold the copied parameters; .to() keeps them the same objects.
        self.model, optimizer, schedule = copy.deepcopy((task.model, task.optimizer, task.schedule))
        self.model.to(device, dtype)
        copied = dataclasses.replace(task, model=self.model, optimizer=optimizer, schedule=schedule)
        for phase in copied.phases():
            for state in phase.optimizer.state.values():  # that of Adagrad, before its first step
                state.update({name: item.to(device, dtype) for name, item in state.items() if name != "step"})
        self._dtype = dtype
        self._training = EagerTraining(copied)

    def step(self, step: int, batch: Mapping[str, torch.Tensor]) -> float:
        """Step `step` (0, 1, ...) on a batch, field name -> [batch_size, ...]; gives the loss."""
        cast = {name: field.to(self._dtype) if field.is_floating_point() else field for name, field in batch.items()}
        return self._training.step(step, cast)
