"""One captured step of every kind of layer, against PyTorch's own in FP64."""

from __future__ import annotations

import copy

import pytest
import torch
from roundlog.capture import Task
from roundlog.execution import Batches
from roundlog.training.job import Job
from torch import nn

from tests.engine.capture.lowered_cases import BATCH, GROUPS, Case
from tests.engine.tasks import small_task
from tests.engine.trainings import steps_by_program

MAX_ERROR = 3e-6
"""Part of a tensor's largest element: some dozen FP32 roundings. A wrong formula errs by a million times as much."""


class OneOf(nn.Module):
    """A case as a module: its input is scaled by a weight, so that its gradient shows."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(case.shape) + 0.5)
        self.inner = case.module() if case.module else None
        self.case = case

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.weight
        if self.inner is None:
            assert self.case.function is not None
            y = self.case.function(x)
        else:
            y = self.inner(*[x] * (3 if isinstance(self.inner, nn.MultiheadAttention) else 1 + self.case.several))
        y = (y[0] if isinstance(y, tuple) else y).flatten()
        # Every element counts, and each differently.
        return (y * (torch.arange(len(y)) % 7 + 1)).mean()


def in_loss(models: nn.ModuleDict, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack([model(batch[name]) for name, model in models.items()]).sum()


def task_of(cases: dict[str, Case]) -> Task:
    torch.manual_seed(1)
    models = nn.ModuleDict({name: OneOf(case) for name, case in cases.items()})
    # After one step the momentum of every parameter is its gradient.
    optimizer = torch.optim.SGD(models.parameters(), lr=0.5, momentum=0.9)
    data = {name: torch.randn(BATCH, *case.shape) for name, case in cases.items()}
    return small_task(models, in_loss, data, optimizer=optimizer)


def one_step(job: Job) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and next state of the captured step."""
    ((result, _),) = steps_by_program(job, 1)
    return result.loss, dict(zip(job.program.state_names, result.states, strict=True))


@pytest.mark.slow_but("norms")
@pytest.mark.parametrize("name", GROUPS)
def test_a_captured_step_is_pytorchs_in_fp64(name: str) -> None:
    task = task_of(GROUPS[name])
    job = Job.from_task(lambda: task)
    loss, states = one_step(job)
    wide = copy.deepcopy(task.model).double()
    batch = {
        key: field.double() for key, field in zip(job.dataset, Batches(job.dataset, job.spec).load(0), strict=True)
    }
    expected = in_loss(wide, batch)
    expected.backward()
    wrong = {}
    for key, parameter in wide.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        ours = states.get(f"slot/{key}/momentum", torch.zeros_like(gradient))
        error = float((ours.double() - gradient).abs().max())
        if not error <= MAX_ERROR * max(float(gradient.abs().max()), 1e-3):
            wrong[key] = (error, float(gradient.abs().max()))
    for key, buffer in wide.named_buffers():
        if not torch.allclose(states[f"buffer/{key}"].double(), buffer.double(), rtol=MAX_ERROR, atol=1e-6):
            wrong[key] = (states[f"buffer/{key}"], buffer)
    assert not wrong
    exact = float(expected.detach())
    assert abs(loss - exact) <= MAX_ERROR * len(batch) * max(1, abs(exact))
