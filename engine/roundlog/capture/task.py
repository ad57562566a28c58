"""What a user brings: an ordinary model, loss, optimizer and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from roundlog.capture.errors import CaptureError

Loss = Callable[[nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A training job before capture.

    model: any `nn.Module` in FP32, in the mode (`train`/`eval`) it is to be trained in. Its parameters and buffers at
        capture time are the initial state.
    loss: `loss(model, batch)` -> FP32 scalar; `batch` maps field names to tensors [batch_size, ...].
    optimizer: `torch.optim.SGD` or `torch.optim.AdamW` over the model's parameters, freshly made.
    dataset: field name -> tensor [rows, ...], float32, int64 or bool; all fields have the same number of rows.
    schedule: factor on every learning rate at a step (0, 1, ...), like `LambdaLR`'s.
    """

    model: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    dataset: Mapping[str, torch.Tensor]
    batch_size: int
    steps: int
    interval: int
    seed: int
    schedule: Callable[[int], float] = lambda step: 1.0

    @property
    def rows(self) -> int:
        return int(next(iter(self.dataset.values())).shape[0])

    def check(self) -> None:
        """Raises CaptureError, in one sentence, for a task that cannot be trained."""
        if not self.dataset:
            raise CaptureError("the dataset has no fields: give at least one tensor of rows")
        for name, field in self.dataset.items():
            if field.ndim == 0 or field.shape[0] == 0:
                raise CaptureError(f"dataset field {name} is empty: give at least one row")
            if field.dtype not in (torch.float32, torch.int64, torch.bool):
                raise CaptureError(f"dataset field {name} is {field.dtype}: convert it to float32, int64 or bool")
            if field.shape[0] != self.rows:
                raise CaptureError(f"dataset field {name} has {field.shape[0]} rows, the first field {self.rows}")
        if not 1 <= self.batch_size <= self.rows:
            raise CaptureError(f"a batch of {self.batch_size} does not fit a dataset of {self.rows} rows")
        if self.interval < 1 or self.steps < 1 or self.steps % self.interval:
            raise CaptureError(
                f"{self.steps} steps cannot be cut into checkpoints every {self.interval}: "
                "choose a number of steps that the interval divides"
            )
        if not 0 <= self.seed < 2**64:
            raise CaptureError(f"the seed {self.seed} does not fit 64 bits")
        for name, tensor in [*self.model.named_parameters(), *self.model.named_buffers()]:
            if tensor.dtype not in (torch.float32, torch.int64, torch.bool):
                raise CaptureError(f"{name} is {tensor.dtype}: convert the model with .float()")
