"""Operators that write into tensors that they are given (`out=`) are captured as PyTorch does them, or refused."""

import pytest
import torch
import torch.nn.functional as F
from roundlog.capture import Task
from roundlog.training.job import Job
from torch import nn

from tests.engine.capture.calls import Calls, linear_through, refused
from tests.engine.trainings import train_by_program, train_by_pytorch


def ours(function):
    """A function of x: what it computes without gradients, times x."""

    def apply(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            made = function(x.detach())
        return x * made

    return apply


def divided(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    row = y[1]
    torch.div(x, 3.0, out=y)
    F.normalize(x[0], dim=0, out=y[0])
    torch.mul(x[2], 2.0, out=row)
    torch.add(y, 1.0, out=y)
    return y + row


def of_two(x: torch.Tensor) -> torch.Tensor:
    values, places = torch.zeros(6), torch.zeros(6, dtype=torch.int64)
    first = values[:1]
    found = torch.max(x, dim=1, out=(values, places))
    values.add_(1.0)
    return found[0] + first + places


def in_the_dtype_of_the_result(x: torch.Tensor) -> torch.Tensor:
    total, count = torch.zeros(6), torch.zeros(6)
    torch.sum(x > 0, dim=0, out=total)
    torch.arange(6, out=count)
    torch.cumsum(count, 0, out=count)
    return total + count


@pytest.mark.parametrize("function", [divided, of_two, in_the_dtype_of_the_result])
def test_what_is_written_into_out_is_captured(function) -> None:
    linear_through(ours(function))


def test_out_of_another_shape_is_refused() -> None:
    message = (
        r"aten\.mul\.out \(at test_out_forms\.py:\d+\) writes a result of shape \[4, 6\] into an out= of shape \[0\]"
    )
    refused(Calls(ours(lambda x: torch.mul(x, 2.0, out=torch.zeros(0)))), message)


@pytest.mark.slow_cases("1-spectral_norm1", "2-spectral_norm0")
@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
@pytest.mark.parametrize("iterations", [1, 2])
def test_spectral_norm_is_captured_wherever_it_is_used_twice(norm, iterations: int) -> None:
    def critic(m: nn.Module, batch) -> torch.Tensor:
        between = (batch["real"] + batch["fake"]) / 2
        between.requires_grad_()
        (slope,) = torch.autograd.grad(m(between).sum(), between, create_graph=True)
        return m(batch["fake"]).mean() - m(batch["real"]).mean() + (slope.norm(dim=1) - 1).square().mean()

    def make() -> Task:
        torch.manual_seed(0)
        model = nn.Sequential(norm(nn.Linear(6, 4), n_power_iterations=iterations), nn.Tanh(), nn.Linear(4, 1))
        return Task(
            model=model,
            loss=critic,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            dataset={"real": torch.randn(16, 6), "fake": torch.randn(16, 6)},
            batch_size=8,
            steps=2,
            interval=1,
            seed=0,
        )

    job, task = Job.from_task(make), make()
    theirs, by_us = train_by_pytorch(task, 2), train_by_program(job, 2)
    for name, tensor in theirs.items():
        torch.testing.assert_close(by_us[name], tensor, rtol=1e-4, atol=1e-5)
