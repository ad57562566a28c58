"""Tensors that steps leave as objects of Python's: in one memory with others, or with a history of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor, optim

from tests.engine.capture.later_steps import Net, followed, task_of

Forward = Callable[[Net, Tensor], Tensor]


def _task(forward: Forward, *, as_buffers: bool = False, **more: Any) -> Task:
    net = Net(forward)
    for name in ("one", "two"):
        if as_buffers:
            net.register_buffer(name, torch.zeros(4))
        else:
            setattr(net, name, torch.zeros(4))
    net.weight, net.later, net.pair = torch.zeros(4, 4), None, (torch.zeros(4), torch.zeros(4))
    net.held = [torch.zeros(4), torch.zeros(4)]
    loss = lambda m, b: (m(b["x"]) - 1).square().mean() + 0.01 * (m.b.weight.sum() + m.b.bias.sum())  # noqa: E731
    return task_of(net, loss, **{"steps": 8, "interval": 8, **more})


def _takes_another_name(net: Net, x: Tensor) -> Tensor:
    """The step before is gone: both names are of one tensor."""
    net.one.mul_(0.9).add_(x.mean(0))
    change = net.one - net.two
    net.two = net.one
    return net.a(x) + change


def _takes_another_name_late(net: Net, x: Tensor) -> Tensor:
    net.one.add_(x.mean(0))
    if net.n == 4:
        net.two = net.one
    return net.a(x) + net.one - net.two


def _takes_another_name_on_a_path(net: Net, x: Tensor) -> Tensor:
    net.one.add_(x.mean(0))
    y = net.a(x) + net.one - net.two
    if x.mean() > 0:
        net.two = net.one
    return y


def _makes_two_of_one(net: Net, x: Tensor) -> Tensor:
    net.one.add_(x.mean(0))
    y = net.a(x) + net.one - net.two
    net.one = net.two = torch.tanh(x.mean(0))
    return y


def _puts_one_in_two_places(net: Net, x: Tensor) -> Tensor:
    one, two = net.pair
    one.mul_(0.5).add_(x.mean(0))
    mean = torch.tanh(x.mean(0))
    net.pair = (mean, mean)
    return net.a(x) + one - 2 * two


def _fills_a_list_with_one(net: Net, x: Tensor) -> Tensor:
    net.held[0].mul_(0.5).add_(x.mean(0))
    y = net.a(x) + net.held[0] - net.held[1]
    net.held[1] = net.held[0]
    return y


def _keeps_a_weight(net: Net, x: Tensor) -> Tensor:
    moved = (net.a.weight.detach() - net.weight).abs().sum()
    net.weight = net.a.weight.data
    return net.a(x) + moved


def _keeps_a_row_of_a_weight(net: Net, x: Tensor) -> Tensor:
    moved = (net.a.weight.detach()[0] - net.one).abs().sum()
    net.one = net.a.weight.detach()[0]
    return net.a(x) + moved


SHARED: dict[str, tuple[Forward, str]] = {
    "another name": (_takes_another_name, "model.two shares memory with model.one"),
    "another name, late": (_takes_another_name_late, "model.two shares memory with model.one"),
    "another name on a path": (_takes_another_name_on_a_path, "model.two shares memory with model.one"),
    "two names of one": (_makes_two_of_one, "model.two shares memory with model.one"),
    "a tuple of one": (_puts_one_in_two_places, "model.pair[1] shares memory with model.pair[0]"),
    "a list of one": (_fills_a_list_with_one, "model.held[1] shares memory with model.held[0]"),
    "a weight": (_keeps_a_weight, "model.weight shares memory with a.weight"),
    "a row of a weight": (_keeps_a_row_of_a_weight, "model.one shares memory with a.weight"),
}


def _refused(task: Task, sentence: str) -> None:
    with pytest.raises(CaptureError) as caught:
        Job.from_task(task)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow_but("another name", "a row of a weight")
@pytest.mark.parametrize("name", SHARED)
def test_a_tensor_that_changes_with_another_one_is_refused(name: str) -> None:
    forward, sentence = SHARED[name]
    _refused(_task(forward), sentence + ", which changes under it: keep a copy (.clone())")


def test_a_buffer_that_changes_with_another_one_is_refused() -> None:
    _refused(_task(_takes_another_name, as_buffers=True), "two shares memory with one, which changes under it")


class Inertia(optim.Optimizer):
    """Goes on by a part of its last step, for which it keeps the parameter itself."""

    def __init__(self, params: Any, copied: bool) -> None:
        super().__init__(params, {"lr": 0.05, "copied": copied})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        (group,) = self.param_groups
        for p in group["params"]:
            before = self.state[p].get("before", p.clone())
            self.state[p]["before"] = p.clone() if group["copied"] else p.data
            p.add_(p.grad, alpha=-group["lr"])
            p.add_(p - before, alpha=0.5)


@pytest.mark.parametrize("copied", [True, False])
def test_a_parameter_that_an_optimizer_keeps_itself_is_always_the_one_of_now(copied: bool) -> None:
    def make() -> Task:
        task = _task(lambda net, x: net.a(x))
        return task_of(task.model, task.loss, optimizer=Inertia(task.model.parameters(), copied))

    followed(make)


@pytest.mark.parametrize("clipped", [None, 0.05])
def test_a_gradient_that_is_kept_before_it_is_clipped_in_place_is_refused(clipped: float | None) -> None:
    def make() -> Task:
        task = _task(lambda net, x: net.a(x) + net.weight, max_grad_norm=clipped)
        net = task.model
        net.a.weight.register_post_accumulate_grad_hook(lambda p: setattr(net, "weight", p.grad))
        return task

    if clipped is None:
        followed(make)
    else:
        _refused(make(), "model.weight shares memory with gradient of a.weight")


def _names_what_is_never_written(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) + net.one - 3 * net.two
    net.one = net.two = torch.tanh(x.mean(0))
    return y


def _swaps(net: Net, x: Tensor) -> Tensor:
    net.one, net.two = net.two, net.one
    net.one.mul_(0.9).add_(x.mean(0))
    return net.a(x) + net.one - 3 * net.two


def _detaches_later(net: Net, x: Tensor) -> Tensor:
    y = torch.tanh(net.a(x)) + net.weight.detach()
    net.weight = y
    return y


@pytest.mark.parametrize("forward", [_names_what_is_never_written, _swaps, _detaches_later])
def test_objects_that_do_not_change_under_each_other_are_followed(forward: Forward) -> None:
    followed(lambda: _task(forward))


def _averages(net: Net, x: Tensor) -> Tensor:
    """PyTorch goes back through all steps: nothing of this graph is freed."""
    net.one = 0.9 * net.one + net.b.bias
    return net.a(x) + net.one


def _begins_with_none(net: Net, x: Tensor) -> Tensor:
    net.later = net.b.bias * 1.0 if net.later is None else 0.9 * net.later + net.b.bias
    return net.a(x) + net.later


def _in_a_tuple(net: Net, x: Tensor) -> Tensor:
    net.pair = (0.9 * net.pair[0] + net.b.bias, net.pair[1] + 1)
    return net.a(x) + net.pair[0]


def _of_a_layer(net: Net, x: Tensor) -> Tensor:
    y = torch.tanh(net.a(x)) + net.weight
    net.weight = y
    return y


def _late(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) + net.one
    if net.n == 3:
        net.one = net.b.bias * 2
    return y


@pytest.mark.slow_but("False-_averages", "True-_late")
@pytest.mark.parametrize("forward", [_averages, _begins_with_none, _in_a_tuple, _of_a_layer, _late])
@pytest.mark.parametrize("as_buffers", [False, True])
def test_a_tensor_whose_history_the_next_step_differentiates_is_refused(forward: Forward, as_buffers: bool) -> None:
    _refused(_task(forward, as_buffers=as_buffers), ".detach()")
