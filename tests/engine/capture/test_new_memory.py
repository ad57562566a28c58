"""Assignments to `.data`, trained beside PyTorch, and what they refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.training.job import Job
from torch import Tensor

from tests.engine.capture.later_steps import Net, followed, task_of


def _prunes(net: Net, x: Tensor) -> Tensor:
    net.a.weight.data = net.a.weight.data * (torch.arange(4) != 2)
    return net.a(x)


def _keeps_the_old(net: Net, x: Tensor) -> Tensor:
    old = net.a.weight.data
    net.a.weight.data = old * 0.9
    return net.a(x) + old.sum() * 0.1


def _between_forward_and_backward(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    net.b.weight.data = net.b.weight.data * 0.5 + y.detach().mean() * 0.01
    return net.b(y)


def _writes_then_assigns(net: Net, x: Tensor) -> Tensor:
    net.a.weight.data[1] = 0
    net.a.weight.data = net.a.weight.data.clamp(-0.3, 0.3)
    net.a.weight.data.mul_(0.99)
    return net.a(x)


@pytest.mark.parametrize("forward", [_prunes, _keeps_the_old, _between_forward_and_backward, _writes_then_assigns])
def test_assigned_data_are_what_pytorch_trains(forward: Callable[[Net, Tensor], Tensor]) -> None:
    followed(lambda: task_of(Net(forward), lambda m, b: (m(b["x"]) - 1).square().mean()))


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_teacher_by_assigned_data(micro_batches: int) -> None:
    def make() -> object:
        net = Net()
        slow = copy.deepcopy(net)

        def loss(m: Net, batch: dict[str, Tensor]) -> Tensor:
            for k, q in zip(slow.parameters(), m.parameters(), strict=True):
                k.data = k.data * 0.9 + q.data * 0.1
            return (m(batch["x"]) - slow(batch["x"]).detach() - 1).square().mean()

        return task_of(net, loss, micro_batches=micro_batches)

    followed(make)


def _shares(net: Net, x: Tensor) -> Tensor:
    net.b.weight.data = net.a.weight.data
    return net.a(x) + net.b(x)


def _shares_what_is_new(net: Net, x: Tensor) -> Tensor:
    net.a.weight.data = new = net.a.weight.data * 0.9
    net.b.weight.data = new
    return net.a(x) + net.b(x)


def _of_what_it_computes(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    y.data = y.data * 2
    return y


@pytest.mark.parametrize("forward", [_shares, _shares_what_is_new, _of_what_it_computes])
def test_memory_that_is_shared_is_refused(forward: Callable[[Net, Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError, match=r"the step assigns to the \.data of a tensor \(at test_new_memory"):
        Job.from_task(task_of(Net(forward)))
