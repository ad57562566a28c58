"""Tensors whose memory does not hold their numbers (efficient zeros, lazy negatives and conjugates) are captured by
their numbers where they are gradients or data, or refused."""

from collections.abc import Callable

import pytest
import torch
from roundlog.capture import Task
from roundlog.training.job import Job
from torch import nn

from tests.engine.capture.calls import Calls, refused
from tests.engine.trainings import train_by_program, train_by_pytorch


def negative(*shape: int) -> torch.Tensor:
    """A tensor whose memory holds its negatives."""
    made = torch.randn(*shape, dtype=torch.complex64).conj().imag
    assert made.is_neg()
    return made


def zeros(*shape: int) -> torch.Tensor:
    return torch._efficientzerotensor(shape)


def test_a_gradient_that_is_an_efficient_zero_is_zero() -> None:
    class Signed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(6))
            self.v = nn.Parameter(torch.randn(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * torch.sgn(self.w) * self.v).square().mean()

    torch.manual_seed(0)
    model = Signed()
    task = Task(
        model=model,
        loss=lambda m, b: m(b["x"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        dataset={"x": torch.randn(8, 6)},
        batch_size=4,
        steps=2,
        interval=1,
        seed=0,
    )
    theirs, ours = train_by_pytorch(task, 2), train_by_program(Job.from_task(lambda: task), 2)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [negative, zeros])
def test_a_field_of_the_dataset_has_its_numbers(make: Callable[..., torch.Tensor]) -> None:
    model, x = nn.Linear(6, 6), make(8, 6)
    task = Task(
        model=model,
        loss=lambda m, b: m(b["x"]).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": x},
        batch_size=4,
        steps=2,
        interval=1,
        seed=0,
    )
    assert torch.equal(Job.from_task(lambda: task).dataset["x"].take(torch.arange(8)), x.clone())


LAZY = "is a lazy zero, negative or conjugate of PyTorch's: make it a copy"


@pytest.mark.parametrize("make", [negative, zeros])
def test_a_buffer_or_a_constant_that_is_lazy_is_refused(make: Callable[..., torch.Tensor]) -> None:
    module, held = Calls(lambda x: x), make(6)
    module.register_buffer("held", held)
    refused(module, f"held {LAZY}")
    refused(Calls(lambda x: x * held), f"held {LAZY}")


def test_a_lazy_negative_of_a_buffer_is_refused() -> None:
    module = Calls(lambda x: x * module.other[0])
    module.register_buffer("held", torch.randn(6))
    module.other = [torch._neg_view(module.held)]
    refused(module, rf"model.other\[0\] {LAZY}")
