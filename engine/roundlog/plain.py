"""The same training by PyTorch alone, as everybody writes it: what a task means. Good for comparisons only, since its
bits are those of the machine that it runs on."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch

from roundlog.capture import Task
from roundlog.capture.schedule import rates
from roundlog.capture.task import micro_batches


class PlainTraining:
    """Steps of a task on copies of its model and optimizer."""

    def __init__(
        self, task: Task, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
    ) -> None:
        """dtype: float32, or float64 for parameters, buffers and data in twice the precision. device: of the model;
        None: where the task's is."""
        self.task = task
        # Copied together, so that the optimizer's groups hold the copied parameters; .to() keeps them the same objects.
        self.model, self.optimizer = copy.deepcopy((task.model, task.optimizer))
        self.model.to(device, dtype)
        for state in self.optimizer.state.values():  # that of Adagrad, before its first step
            state.update({name: item.to(device, dtype) for name, item in state.items() if name != "step"})
        self._dtype = dtype
        self._rates = rates(task.optimizer, task.schedule, task.steps)

    def step(self, step: int, batch: Mapping[str, torch.Tensor]) -> float:
        """Step `step` (0, 1, ...) on a batch, field name -> [batch_size, ...]; gives the loss."""
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group.update(rate.at(step))
        self.optimizer.zero_grad()
        total = 0.0
        cast = {name: field.to(self._dtype) if field.is_floating_point() else field for name, field in batch.items()}
        for part in micro_batches(cast, self.task.micro_batches):
            loss = self.task.loss(self.model, part) / self.task.micro_batches
            loss.backward()
            total += float(loss.detach())
        if self.task.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.task.max_grad_norm)
        self.optimizer.step()
        return total
