"""Tensors that steps keep where there were none, or others in a tuple, list or dictionary: trained beside PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor

from tests.engine.capture.later_steps import Net, followed, task_of


def _begins_as_none(net: Net, x: Tensor) -> Tensor:
    y = torch.tanh(net.a(x))
    net.h = y.detach() if net.h is None else 0.5 * net.h + 0.5 * y.detach()
    return y + net.h


def _is_reset(net: Net, x: Tensor) -> Tensor:
    if net.n % 7 == 0:
        net.h = None
    h = torch.zeros(4, 4) if net.h is None else net.h
    h = torch.tanh(net.a(x) + h)
    net.h = h.detach()
    return h


def _is_a_pair(net: Net, x: Tensor) -> Tensor:
    h, c = net.pair
    c = torch.tanh(net.a(x)) + 0.5 * c
    net.pair = (torch.tanh(c).detach(), c.detach())
    return c + net.b(h)


def _is_a_dictionary(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    net.kept = {"mean": y.detach().mean(0), "n": 1} if not net.kept else {"mean": 0.9 * net.kept["mean"], "n": 1}
    return y - net.kept["mean"]


def _fills_a_list(net: Net, x: Tensor) -> Tensor:
    y = torch.tanh(net.a(x))
    if net.n == 1:
        net.held = [torch.zeros(4), (y.detach()[0], [y.detach()[1]])]
    last, (one, (two,)) = net.held
    net.held = [last + 0.1, (two, [one + y.detach()[2]])]
    return y + last + one * 0.1


def _initializes_by_data(net: Net, x: Tensor) -> Tensor:
    if not hasattr(net, "scale"):
        net.scale = 1 / (x.std() + 0.1)
    return net.a(x) * net.scale


def _begins_late(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    if net.n == 10:
        net.late = y.detach() * 0.1
    elif net.n > 10:
        net.late = net.late * 0.9
    return y + net.late


def _is_written_late(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    if net.n % 5 == 0:
        net.late.mul_(0.5).add_(y.detach(), alpha=0.1)
    return y + net.late


def _begins_as_none_of_a_part(net: Net, x: Tensor) -> Tensor:
    net.h = x.sum(0) if net.h is None else 0.9 * net.h + 0.1 * x.sum(0)
    return net.a(x) + net.h


def _keeps_a_view_of_a_parameter(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) if net.h is None else net.a(x) + net.h
    net.h = net.a.weight.detach()[0]
    return y


KEPT = (
    *(_begins_as_none, _is_reset, _is_a_pair, _is_a_dictionary, _fills_a_list, _initializes_by_data, _begins_late),
    _is_written_late,
)


def _task(forward: Callable[[Net, Tensor], Tensor], micro_batches: int = 1) -> Task:
    net = Net(forward)
    net.h, net.pair, net.late = None, (torch.zeros(4, 4), torch.zeros(4, 4)), torch.zeros(4 // micro_batches, 4)
    return task_of(
        net, lambda m, b: (m(b["x"]) - 1).square().mean() + 0.01 * m.b.weight.sum(), micro_batches=micro_batches
    )


@pytest.mark.slow_but("_is_reset", "_is_a_pair", "_initializes_by_data")
@pytest.mark.parametrize("forward", KEPT)
def test_what_steps_keep_is_what_pytorch_keeps(forward: Callable[[Net, Tensor], Tensor]) -> None:
    job = followed(lambda: _task(forward))
    assert any(name.startswith("attribute/model.") for name in job.initial)


@pytest.mark.parametrize("forward", [_begins_as_none_of_a_part, _is_written_late])
def test_what_parts_of_a_batch_keep_is_what_pytorch_keeps(forward: Callable[[Net, Tensor], Tensor]) -> None:
    followed(lambda: _task(forward, micro_batches=2))


def test_a_view_of_a_parameter_stays_one() -> None:
    job = followed(lambda: _task(_keeps_a_view_of_a_parameter))
    assert not any(name.startswith("attribute/") for name in job.initial)


def _keeps_a_number(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    if net.n == 1:
        net.x = y.std().item()
        return y
    return y / net.x


def _keeps_a_number_from_none(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    if net.h is None:
        net.h = y.std().item()
        return y
    return y / net.h


def _keeps_the_time(net: Net, x: Tensor) -> Tensor:
    if net.h is None:
        net.h = time.perf_counter()
        return net.a(x)
    return net.a(x) * net.h


def _keeps_a_text(net: Net, x: Tensor) -> Tensor:
    y = net.a(x)
    if net.h is None:
        net.h = f"{y.std().item():.3f}"
        return y
    return y * float(net.h)


class Statistics:
    def __init__(self, mean: Tensor) -> None:
        self.mean = mean


def _keeps_an_object(net: Net, x: Tensor) -> Tensor:
    if net.h is None:
        net.h = Statistics(x.mean(0))
        return net.a(x)
    return net.a(x) - net.h.mean


def _keeps_other_shapes(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) if net.h is None else net.a(x) + net.h.sum()
    net.h = y.detach() if net.h is None else y.detach()[:2]
    return y


REFUSED = {
    "a number of values": (_keeps_a_number, "uses model.x, a number of Python that steps compute from their values"),
    "a number, None at first": (_keeps_a_number_from_none, "uses model.h, a number of Python that steps compute"),
    "the time": (_keeps_the_time, "uses model.h, a number of Python that steps compute"),
    "a text of values": (_keeps_a_text, "model.h"),
    "an object with tensors": (_keeps_an_object, "it reads a tensor that the first step has made"),
    "tensors of other shapes": (_keeps_other_shapes, "model.h"),
}


@pytest.mark.slow_but("the time")
@pytest.mark.parametrize("name", REFUSED)
def test_what_only_one_run_of_a_step_has_made_is_refused(name: str) -> None:
    forward, sentence = REFUSED[name]
    net = Net(forward)
    net.h = None
    with pytest.raises(CaptureError) as caught:
        Job.from_task(task_of(net, lambda m, b: (m(b["x"]) - 1).square().mean()))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
