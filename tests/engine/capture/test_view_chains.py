"""Writes in place through random chains of views: a captured step is PyTorch's, or refused where the order of writes
would matter."""

from __future__ import annotations

import pytest
import torch
from roundlog.capture import CaptureError, Task, capture
from roundlog.training.job import Job
from torch import nn

from tests.engine.capture.calls import Calls, linear_through, refused
from tests.engine.capture.view_chains import SHAPE, chain
from tests.engine.trainings import train_by_program, train_by_pytorch

CHAINS = 20
MANY_CHAINS = 250
TOGETHER = 10
"""Chains in one program."""


class Chained(nn.Module):
    """Each chain of views on a tensor of its own, which a weight scales, so that its gradient shows."""

    def __init__(self, seeds: list[int]) -> None:
        super().__init__()
        self.seeds, self.chains = seeds, [chain(seed) for seed in seeds]
        self.weights = nn.ParameterList(torch.rand(SHAPE) + 0.5 for _ in seeds)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([one(x[0] * w) for one, w in zip(self.chains, self.weights, strict=True)]).sum()


def task_of(seeds: list[int]) -> Task:
    torch.manual_seed(seeds[0])
    model = Chained(seeds)
    return Task(
        model=model,
        loss=lambda m, b: m(b["x"]),
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        dataset={"x": torch.randn(1, *SHAPE)},
        batch_size=1,
        steps=1,
        interval=1,
        seed=0,
    )


def is_possible(seed: int) -> bool:
    """Whether PyTorch trains through the chain: some writes into views are errors to it."""
    task = task_of([seed])
    try:
        train_by_pytorch(task, 1)
    except RuntimeError:
        return False
    return True


def refusal(seed: int) -> str:
    """Reason for which a chain is refused; empty if it is not."""
    try:
        capture(lambda: task_of([seed]))
    except CaptureError as error:
        return str(error)
    return ""


def compare(seeds: list[int]) -> int:
    """Hold the captured chains against PyTorch's. Gives how many there were."""
    reasons = {seed: refusal(seed) for seed in seeds}
    possible = [seed for seed in seeds if is_possible(seed)]
    for seed in possible:
        assert not reasons[seed] or "several elements are one place" in reasons[seed], (seed, reasons[seed])
    taken = [seed for seed in possible if not reasons[seed]]
    for first in range(0, len(taken), TOGETHER):
        task = task_of(taken[first : first + TOGETHER])
        theirs, ours = train_by_pytorch(task, 1), train_by_program(Job.from_task(lambda task=task: task), 1)
        for number, seed in enumerate(task.model.seeds):
            name = f"parameter/weights.{number}"
            torch.testing.assert_close(
                ours[name], theirs[name], rtol=1e-5, atol=1e-5, msg=lambda m, s=seed: f"{s}: {m}"
            )
    return len(taken)


@pytest.mark.slow
def test_writes_through_chains_of_views_are_pytorchs() -> None:
    assert compare(list(range(CHAINS))) > CHAINS // 2


@pytest.mark.long
def test_writes_through_many_chains_of_views_are_pytorchs() -> None:
    assert compare(list(range(CHAINS, CHAINS + MANY_CHAINS))) > MANY_CHAINS // 2


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

    def expanded(x: torch.Tensor) -> torch.Tensor:
        y = x[0].clone()
        y.expand(4, 6).add_(1.0)
        return y

    for function in (overlapping, expanded):
        refused(
            Calls(function),
            r"\(at test_view_chains\.py:\d+\).* one place in memory|single memory location.*\(at test_view",
        )


def test_memory_outside_of_a_tensor_is_not_looked_at() -> None:
    refused(
        Calls(lambda x: torch.as_strided(x.clone()[1:3], (5,), (6,), 0)),
        r"^the step fails in PyTorch itself: .* out of bounds for storage.*\(at test_view_chains\.py",
    )
