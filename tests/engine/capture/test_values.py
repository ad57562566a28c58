"""Single operators on many numbers, extreme ones too: whole numbers, quotients and remainders have one right answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.execution import Batches
from roundlog.training.job import Job
from torch import Tensor, nn

from tests.engine.tasks import small_task
from tests.engine.trainings import train_by_program

Function = Callable[..., Tensor]


class Writes(nn.Module):
    """Leaves a function of the batch in a buffer."""

    def __init__(self, function: Function, fields: list[Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.function = function
        self.register_buffer("out", torch.zeros_like(function(*fields)))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        self.out.copy_(self.function(*batch.values()))
        return self.weight * 1


def task_of(function: Function, *fields: Tensor) -> Task:
    data = {f"x{number}": field for number, field in enumerate(fields)}
    return small_task(Writes(function, list(fields)), lambda m, batch: m(batch), data, seed=3)


def computed(function: Function, *fields: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Result of the captured function, and the fields in the order in which it met them."""
    job = Job.from_task(lambda: task_of(function, *fields))
    return train_by_program(job, 1)["buffer/out"], list(Batches(job.dataset, job.spec).load(0))


def same(function: Function, *fields: Tensor) -> None:
    ours, met = computed(function, *fields)
    theirs = function(*met)
    assert ours.dtype == theirs.dtype
    # Zeros have no sign here; everything else is compared with equality.
    assert torch.equal(ours, theirs)


def many_floats(count: int = 4000, largest: int = 40, seed: int = 0) -> Tensor:
    """Numbers of all magnitudes up to 2^largest, with whole and half ones among them."""
    random = np.random.default_rng(seed)
    wide = random.standard_normal(count) * 2.0 ** random.uniform(-largest, largest, count)
    grid = random.integers(-50, 50, count) / 2
    return torch.from_numpy(np.where(random.random(count) < 0.5, wide, grid)).float()


EXTREME_INTEGERS = torch.tensor([0, 1, -1, 2, -2, 2**31, -(2**31), 2**53 + 1, -(2**62), 2**63 - 1, -(2**63), 1 - 2**63])


def many_integers() -> Tensor:
    random = np.random.default_rng(1)
    wide = random.integers(-(2**63), 2**63 - 1, 500) >> random.integers(0, 63, 500)
    return torch.cat([torch.from_numpy(wide), EXTREME_INTEGERS])


def test_an_integer_is_what_is_left_when_the_fraction_is_cut_off() -> None:
    ends = torch.tensor([2.0**63, 2.0**24 + 2, 2.0**40, 1.5, 0.99999994, 2.0**-149, 0.0])
    ends = torch.cat([ends[1:], -ends, torch.nextafter(ends[:1], torch.zeros(1))])
    same(lambda x: x.long(), torch.cat([many_floats(largest=62).clamp(-(2.0**63), 2.0**62), ends]))


@pytest.mark.parametrize("value", [2.0**63, -(2.0**63) * 1.0000002, 3e38, torch.inf])
def test_a_float_that_no_int64_holds_stops_the_run(value: float) -> None:
    sentence = r"\(take, test_values\.py:\d+, a number that int64 does not hold\) has no value at element 1: an index "
    with pytest.raises(CaptureError, match="the captured step stops where yours goes on: .*" + sentence):
        computed(lambda x: x.long(), torch.tensor([1.0, value]))


@pytest.mark.slow_but("7")
@pytest.mark.parametrize("divisor", [1, 7, 2**31, 2**63 - 1])
def test_integers_are_divided_as_pytorch_divides_them(divisor: int) -> None:
    numbers = many_integers()
    same(lambda x: x // divisor, numbers)
    same(lambda x: x % divisor, numbers)
