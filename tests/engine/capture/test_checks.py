"""Asserts, branches that only raise, prints and logs change nothing, and are followed; numbers that decide are refused
in a sentence with the line and the remedy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from roundlog.training.sameness import Sameness
from torch import Tensor, nn

from tests.engine.capture import checked_steps

Step = Callable[[Tensor], Tensor]


def task_of(function: Step) -> Task:
    """function: between two layers, from f32[4, 6] to f32[4, 6]."""
    torch.manual_seed(1)
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    model = nn.Sequential(first, second)
    return Task(
        model=model,
        loss=lambda m, b: second(function(first(b["x"]))).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset={"x": torch.randn(12, 6)},
        batch_size=4,
        steps=3,
        interval=1,
        seed=0,
    )


def followed(function: Step) -> None:
    """Captured, compared with PyTorch for three steps from two states, and none the larger for what it checks."""
    found: list[Sameness] = []
    job = Job.from_task(task_of(function), report=found.append)
    assert found[0].steps == 3 and found[0].in_fp64
    assert job.program == Job.from_task(task_of(torch.tanh)).program


def refused(function: Step, *sentences: str) -> None:
    with pytest.raises(CaptureError) as caught:
        Job.from_task(task_of(function))
    assert "\n" not in str(caught.value)
    for sentence in sentences:
        assert sentence in str(caught.value), str(caught.value)


CHECKS = [
    checked_steps.asserts,
    checked_steps.raises,
    checked_steps.raises_otherwise,
    checked_steps.asserts_in_a_context,
    checked_steps.raises_by_number,
    checked_steps.raises_in_a_loop,
    checked_steps.asserts_in_a_checkpoint,
    checked_steps.raises_in_a_hook,
]


@pytest.mark.slow_cases("raises_*", "asserts_*")
@pytest.mark.parametrize("function", CHECKS)
def test_what_only_checks_is_passed(function: Step) -> None:
    followed(function)


@pytest.mark.parametrize(
    "function",
    [
        checked_steps.catches,
        checked_steps.catches_of_a_function,
        checked_steps.suppresses,
        checked_steps.reacts,
        checked_steps.returns,
        checked_steps.replaces_nan,
    ],
)
def test_a_check_whose_error_is_caught_or_that_does_more_is_an_if(function: Step) -> None:
    job = Job.from_task(task_of(function))
    assert any(node.op == "where" and not job.program.nodes[node.inputs[0]].type.shape for node in job.program.nodes)


class Logs:
    """A record of the loss's calls, which shows a value every other time."""

    def __init__(self, show: Callable[[Tensor], object]) -> None:
        self.show, self.turn, self.shown = show, 0, []

    def __call__(self, y: Tensor) -> Tensor:
        if self.turn % 2 == 0:
            self.shown.append(self.show(y.square().mean()))
        self.turn += 1
        return torch.tanh(y)


SHOWN: dict[str, Callable[[Tensor], object]] = {
    "a number": lambda y: y.item(),
    "a tensor": lambda y: str(y),
    "a formatted tensor": lambda y: f"the mean is {y:.3f}",
    "a formatted number": lambda y: f"the mean is {y.detach().item():8.3f}",
    "a printed number": lambda y: print("the mean is", y.item()),
    "a printed count": lambda y: print((y > 0).sum().item(), f"{(y > 0).sum().item()} above 0"),
    "the text of a number": lambda y: str(y.item()),
    "a list of numbers as text": lambda y: f"{[y.item(), (y > 0).sum().item()]}",
    "a list": lambda y: y.tolist(),
    "a copy": lambda y: y.detach().clone(),
}


@pytest.mark.slow_cases("a number", "a formatted*", "a list", "a copy")
@pytest.mark.parametrize("what", SHOWN)
def test_what_is_printed_or_logged_in_some_turns_only_is_left_out(what: str) -> None:
    followed(Logs(SHOWN[what]))


def test_a_constant_is_formatted_as_it_is() -> None:
    scales = {"2.0": 2.0}
    scale = torch.tensor(2.0)
    job = Job.from_task(task_of(lambda y: torch.tanh(y * scales[f"{scale:.1f}"])))
    assert job.program == Job.from_task(task_of(lambda y: torch.tanh(y * 2.0))).program


@pytest.mark.parametrize(
    "take",
    [
        lambda y: float(y.mean()),
        lambda y: int(y.mean()),
        lambda y: y.detach().numpy(),
        lambda y: np.asarray(y.detach()),
    ],
)
def test_a_tensor_that_is_made_a_number_is_refused_with_the_line(take: Callable[[Tensor], object]) -> None:
    def function(y: Tensor) -> Tensor:
        take(y)
        return torch.tanh(y)

    refused(
        function,
        "the step turns a tensor that it computes into numbers of Python (at test_checks.py:",
        "remove this if it only prints or logs (.item() in print or in an f-string may stay",
        "or compute with the tensor itself",
    )
