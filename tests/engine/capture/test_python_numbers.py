"""Numbers that steps change, where Python tells more of them than their values: by identity, by type, by errors, by
numpy, and by the order in which they stand."""

from __future__ import annotations

import contextvars
import ctypes
import math
import multiprocessing
import os
import queue
import random
import time
import types
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError, Task
from roundlog.training.job import Job
from torch import Tensor

from tests.engine.capture.later_steps import Net, followed, task_of

Forward = Callable[[Net, Tensor], Tensor]

STEPS = 14


def _task(forward: Forward, steps: int = STEPS) -> Task:
    net = Net(forward)
    net.k, net.order = 0, {"a": 1, "b": 2}
    return task_of(net, lambda m, b: (m(b["x"]) - 1).square().mean(), steps=steps, interval=steps)


def _is_true(net: Net, x: Tensor) -> Tensor:
    net.on = 3 < net.n < 8
    return net.a(x) * (2 if net.on is True else 1)


def _was_false(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) * (2 if net.on is False else 1)
    net.on = not 4 < net.n < 9
    return y


def _matches(net: Net, x: Tensor) -> Tensor:
    match net.on:
        case True:
            y = net.a(x) * 2
        case _:
            y = net.a(x) * 3
    net.on = not 4 < net.n < 9
    return y


def _becomes_a_flag(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) * (2 if net.k is True else 1)
    net.k = True if 4 < net.n < 8 else 0
    return y


def _becomes_a_fraction(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) * (2 if net.k.__class__ is float else 1) * (torch.arange(4) * net.k + 1).mean(dtype=torch.float32)
    net.k = 1.5 if 4 < net.n < 8 else 1
    return y


def _returns_after_an_error(net: Net, x: Tensor) -> Tensor:
    """The path of the error asks nothing more, so that it is the path of no other number."""
    try:
        factor = 1 / (net.n - 3)
    except ZeroDivisionError:
        return net.a(x) * 7
    return net.a(x) + 3 if 6 < net.n < 10 else net.a(x) * factor


def _returns_outside_of_a_domain(net: Net, x: Tensor) -> Tensor:
    try:
        factor = math.sqrt(net.n - 3)
    except ValueError:
        return net.a(x) * 7
    return net.a(x) + 3 if 6 < net.n < 10 else net.a(x) * factor


def _by_numpy(net: Net, x: Tensor) -> Tensor:
    decayed, cosine = np.exp(-net.n / 10), 0.5 * (1 + np.cos(np.pi * net.n / STEPS))
    share = np.clip(net.n / 10, 0, 1) + np.interp(net.n, [0, 5, 10], np.array([0.0, 1.0, 0.5]))
    return net.a(x) * decayed + net.b(x) * cosine * share + np.minimum(net.n, 5) / 10


FOLLOWED = (
    *(_is_true, _was_false, _matches, _becomes_a_flag, _becomes_a_fraction),
    *(_returns_after_an_error, _returns_outside_of_a_domain, _by_numpy),
)


@pytest.mark.slow_but("_is_true", "_returns_after_an_error")
@pytest.mark.parametrize("forward", FOLLOWED)
def test_what_python_tells_of_a_number_is_followed(forward: Forward) -> None:
    followed(lambda: _task(forward))


def test_a_job_of_one_step_has_its_number() -> None:
    followed(lambda: _task(lambda net, x: net.a(x) * (net.n + 1) ** 2, steps=1))


class Counting:
    """An object that somebody else keeps."""

    def __init__(self) -> None:
        self.n = 0


_KEPT: list[Counting] = []


def _in_a_namespace() -> Forward:
    here = types.SimpleNamespace(n=0)
    return lambda net, x: net.a(x) * (2 if setattr(here, "n", here.n + 1) or here.n > 6 else 1)


def _in_a_context() -> Forward:
    variable = contextvars.ContextVar("step", default=0)
    return lambda net, x: net.a(x) * (2 if variable.set(variable.get() + 1) and variable.get() > 6 else 1)


def _behind_a_proxy() -> Forward:
    _KEPT.append(Counting())
    here = weakref.proxy(_KEPT[-1])
    return lambda net, x: net.a(x) * (2 if setattr(here, "n", here.n + 1) or here.n > 6 else 1)


def _in_a_queue() -> Forward:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    waiting.put(0)

    def forward(net: Net, x: Tensor) -> Tensor:
        count = waiting.get_nowait() + 1
        waiting.put(count)
        return net.a(x) * (2 if count > 6 else 1)

    return forward


def _in_a_library() -> Forward:
    math.count = 0  # type: ignore[attr-defined]

    def forward(net: Net, x: Tensor) -> Tensor:
        math.count += 1  # type: ignore[attr-defined]
        return net.a(x) * (2 if math.count > 6 else 1)  # type: ignore[attr-defined]

    return forward


@pytest.mark.parametrize("make", [_in_a_namespace, _in_a_context, _behind_a_proxy, _in_a_library])
def test_a_count_in_an_odd_place_is_followed(make: Callable[[], Forward]) -> None:
    followed(lambda: _task(make()))


def _shared_by_processes() -> Forward:
    count = multiprocessing.Value("i", 0)

    def forward(net: Net, x: Tensor) -> Tensor:
        count.value += 1
        return net.a(x) * (2 if count.value > 6 else 1)

    return forward


def _of_c() -> Forward:
    count = ctypes.c_int(0)

    def forward(net: Net, x: Tensor) -> Tensor:
        count.value += 1
        return net.a(x) * (2 if count.value > 6 else 1)

    return forward


def _in_the_environment() -> Forward:
    os.environ["STEPS_TAKEN"] = "0"

    def forward(net: Net, x: Tensor) -> Tensor:
        os.environ["STEPS_TAKEN"] = str(int(os.environ["STEPS_TAKEN"]) + 1)
        return net.a(x) * (2 if int(os.environ["STEPS_TAKEN"]) > 6 else 1)

    return forward


def _in_an_order() -> Forward:
    def forward(net: Net, x: Tensor) -> Tensor:
        first = next(iter(net.order))
        net.order[first] = net.order.pop(first)
        return net.a(x) * (2 if next(iter(net.order)) == "a" else 1)

    return forward


def _in_an_order_with_counts() -> Forward:
    def forward(net: Net, x: Tensor) -> Tensor:
        first = next(iter(net.order))
        net.order[first] = net.order.pop(first) + 1
        return net.a(x) * (2 if next(iter(net.order)) == "a" else 1)

    return forward


def _in_what_a_name_stands_for() -> Forward:
    def forward(net: Net, x: Tensor) -> Tensor:
        y = net.a(x) * (2 if net.k is net.a.weight else 1)
        net.k = net.a.weight if net.n % 2 else net.b.weight
        return y

    return forward


def _in_a_generator_that_is_put_back() -> Forward:
    """From the fourth step on, every step draws the same."""

    def forward(net: Net, x: Tensor) -> Tensor:
        if net.n < 4:
            return net.a(x)
        with torch.random.fork_rng():
            factor = torch.rand(4)
        return net.a(x) * factor

    return forward


def _in_a_generator_that_is_seeded_afterwards() -> Forward:
    generator = torch.Generator().manual_seed(5)

    def forward(net: Net, x: Tensor) -> Tensor:
        factor = torch.rand(4, generator=generator)
        generator.manual_seed(5)
        return net.a(x) * factor

    return forward


def _in_the_time() -> Forward:
    return lambda net, x: net.a(x) * (1 + time.time() % 1)


def _in_the_systems_numbers() -> Forward:
    return lambda net, x: net.a(x) * random.Random().random()


def _in_numpys_numbers() -> Forward:
    return lambda net, x: net.a(x) * float(np.random.default_rng().random())


def _in_a_seed() -> Forward:
    return lambda net, x: net.a(x) * float(np.random.default_rng(net.n).random())


REFUSED = {
    "memory of processes": (_shared_by_processes, "every step changes count._obj.value"),
    "memory of C": (_of_c, "every step changes count.value"),
    "a queue": (_in_a_queue, "the step takes from waiting, an iterator (SimpleQueue)"),
    "the environment": (_in_the_environment, "every step changes os.environ._data[b'STEPS_TAKEN']"),
    "an order": (_in_an_order, "every step changes the order of model.order"),
    "an order, and counts": (_in_an_order_with_counts, "every step changes the order of model.order"),
    "a name": (_in_what_a_name_stands_for, "model.k"),
    "a generator": (_in_a_generator_that_is_put_back, "puts a generator of random numbers back after it has drawn"),
    "a generator of one's own": (_in_a_generator_that_is_seeded_afterwards, "puts a generator of random numbers back"),
    "the time": (_in_the_time, "the step is not the same from one time to the next"),
    "the system's numbers": (_in_the_systems_numbers, "the step is not the same from one time to the next"),
    "numpy's numbers": (_in_numpys_numbers, "the step is not the same from one time to the next"),
    "a seed of numpy's": (_in_a_seed, "the step gives model.n, which steps change, to something that takes plain"),
}


@pytest.mark.slow_but("an order", "the time")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_told_by_no_number_is_refused(name: str) -> None:
    make, sentence = REFUSED[name]
    with pytest.raises(CaptureError) as caught:
        Job.from_task(_task(make()))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
