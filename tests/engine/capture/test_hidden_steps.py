"""Later steps that hide from what watches them: each is refused."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor

from tests.engine.capture.later_steps import Net, followed, task_of
from tests.engine.capture.random_branches import trained_both_ways


def _swaps(net: Net, x: Tensor) -> Tensor:
    y = net.active(x)
    net.active = net.b if net.n > 20 else net.a
    return y


def _keeps_none(net: Net, x: Tensor) -> Tensor:
    net.kept[len(net.kept)] = None
    return net.a(x) * (2 if len(net.kept) > 20 else 1)


def _is_false(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) * (2 if net.on is False else 1)
    net.on = net.n < 20
    return y


def _catches(net: Net, x: Tensor) -> Tensor:
    try:
        scale = 2 if bool(net.counted > 20) else 1
    except Exception:
        scale = 1
    net.counted.add_(1)
    return net.a(x) * scale


def _catches_a_length(net: Net, x: Tensor) -> Tensor:
    net.held.append(0)
    try:
        return net.a(x) * (2 if len(net.held) > 20 else 1)
    except Exception:
        return net.a(x)


def _draws_late(net: Net, x: Tensor) -> Tensor:
    return net.a(x) * (2 if net.n % 5 == 4 and random.random() > 0.5 else 1)


class Safe:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> bool:
        return True


def _raises_safely(net: Net, x: Tensor) -> Tensor:
    scale = 1
    with Safe():
        if net.counted > 20:
            raise ValueError
        scale = 2
    net.counted.add_(1)
    return net.a(x) * scale


def _compares_with_itself(net: Net, x: Tensor) -> Tensor:
    value = net.counted.item()
    net.counted.add_(1)
    return net.a(x) * (2 if value != value else 1)


@pytest.mark.parametrize(
    "forward",
    [
        _swaps,
        _keeps_none,
        _catches_a_length,
        _compares_with_itself,
        lambda n, x: n.a(x) * (2 if str(n.counted.add_(1).item()) == "25.0" else 1),
    ],
)
def test_what_an_adversary_hid_in_a_later_step_is_refused(forward: Callable[[Net, Tensor], Tensor]) -> None:
    model = Net(forward)
    model.active = model.a
    model.register_buffer("counted", torch.zeros(()))
    with pytest.raises(CaptureError) as caught:
        Job.from_task(task_of(model))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("forward", [_catches, _raises_safely, _draws_late])
def test_an_if_by_values_is_followed_whatever_catches_the_question(forward: Callable[[Net, Tensor], Tensor]) -> None:
    def make() -> Task:
        model = Net(forward)
        model.register_buffer("counted", torch.full((), 18.0))
        return task_of(model)

    found = trained_both_ways(make, 12)
    assert found.apart < 1e-5 and found.decided_both_ways


@pytest.mark.parametrize(
    "forward",
    [
        lambda n, x: n.a(x) * (2 if type(n.n) is int and n.n > 20 else 1),
        lambda n, x: n.a(x) * (2 if copy.deepcopy(n.n) > 20 else 1),
        _is_false,
    ],
)
def test_a_count_that_is_asked_in_odd_ways_is_followed(forward: Callable[[Net, Tensor], Tensor]) -> None:
    followed(lambda: task_of(Net(forward)))
