"""Writes into tensors, views of them and `out=` are captured as PyTorch does them, or refused; so are tensors whose
memory does not hold their numbers (efficient zeros, lazy negatives and conjugates)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from roundlog.training.job import Job
from torch import nn

from tests.engine.capture.calls import Calls, linear_through, refused
from tests.engine.tasks import small_task


def write_through_views(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    first = y[0]
    early = first * 3.0
    y[:, 1:3].mul_(2.0)
    y.t()[4].add_(1.0)
    y.view(-1)[-6:].neg_()
    y[1] = first
    return y + early + first


def test_writes_through_views_reach_every_view() -> None:
    linear_through(write_through_views)


def test_writes_through_what_an_operator_has_written_reach_the_whole() -> None:
    """A part of a buffer is filled by `out=`, and added to, forward and backward."""

    class Filled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            buffer = x.new_zeros(len(x) + 2, 70)
            part = buffer[: len(x), : x.shape[1]]
            torch.mul(x, 3.0, out=part)
            part.add_(1.0)
            part[0].mul_(2.0)
            return buffer[: len(x) + 1, : x.shape[1]].sum(0) * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            buffer = torch.ones(len(grad), 70)
            torch.mul(grad, 2.0, out=buffer[:, : grad.shape[1]])
            return buffer[:, : grad.shape[1]]

    linear_through(Filled.apply)


@pytest.mark.slow
def test_changing_the_shape_of_a_tensor_in_place_writes_nothing() -> None:
    def turn(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.t_()
        y[0].mul_(3.0)
        first = y[1]
        first.unsqueeze_(0)
        return y * x + first

    linear_through(turn)


def test_changing_the_shape_of_a_tensor_in_place_is_refused_where_there_are_views_of_it() -> None:
    def turn(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        first = y[0]
        y.t_()
        return y * first

    refused(Calls(turn), r"changes the shape of a tensor in place.*use aten\.t$", x=torch.randn(6, 6), batch_size=6)


@pytest.mark.slow
def test_a_write_through_as_strided_reaches_the_elements_that_it_shows() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        # Views: of the tensor's shape, but turned; a part in the middle; every third of a transposed one.
        torch.as_strided(y, (6, 6), (1, 6)).mul_(torch.arange(36.0).reshape(6, 6))
        torch.as_strided(y, (2, 3), (7, 2), 5).add_(1.0)
        turned = y.t()
        torch.as_strided(turned, (4,), (3,), 2).neg_()
        return y + turned

    linear_through(write)


def test_a_write_into_elements_that_are_one_place_is_refused_by_its_line() -> None:
    def overlapping(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        torch.as_strided(y, (3, 3), (2, 1)).mul_(2.0)
        return y

    refused(Calls(overlapping), r"\(at test_writes_in_place\.py:\d+\).* one place in memory|single memory location")


def test_out_of_another_shape_is_refused() -> None:
    message = (
        r"aten\.mul\.out \(at test_writes_in_place\.py:\d+\) writes a result of shape \[4, 6\] into an out= of shape"
    )
    refused(Calls(lambda x: torch.mul(x.detach(), 2.0, out=torch.zeros(0)) * x), message)


def negative(*shape: int) -> torch.Tensor:
    """A tensor whose memory holds its negatives."""
    made = torch.randn(*shape, dtype=torch.complex64).conj().imag
    assert made.is_neg()
    return made


def zeros(*shape: int) -> torch.Tensor:
    return torch._efficientzerotensor(shape)


@pytest.mark.slow_but("negative")
@pytest.mark.parametrize("make", [negative, zeros])
def test_a_field_of_the_dataset_has_its_numbers(make: Callable[..., torch.Tensor]) -> None:
    model, x = nn.Linear(6, 6), make(8, 6)
    task = small_task(model, lambda m, b: m(b["x"]).square().mean(), {"x": x}, batch_size=4, steps=2)
    assert torch.equal(Job.from_task(lambda: task).dataset["x"].take(torch.arange(8)), x.clone())


@pytest.mark.parametrize("make", [negative, zeros])
def test_a_buffer_or_a_constant_that_is_lazy_is_refused(make: Callable[..., torch.Tensor]) -> None:
    module, held = Calls(lambda x: x), make(6)
    module.register_buffer("held", held)
    message = "held is a lazy zero, negative or conjugate of PyTorch's: make it a copy"
    refused(module, message)
    refused(Calls(lambda x: x * held), message)
