"""What code keeps by the type of a tensor: caches and tables are found as in training; what counts, or changes from
step to step, is followed or refused."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from roundlog.training.job import Job
from torch import Tensor, nn

from tests.engine.capture.script_tasks import Net, refused, same, task_of
from tests.engine.trainings import batch_of, train_by_program


def _makes_a_metaclass(net: Net, x: Tensor) -> Tensor:
    class Kind(type):
        scale = 2.0

    class Made(metaclass=Kind): ...

    assert type(Made) is Kind and isinstance(Made, Kind) and not isinstance(int, Kind) and type(Kind) is type
    return net.a(x) * Made.scale * (1.0 if type.__name__ == "type" and {type: 1}[type(int)] else 3.0)


CACHE: dict[Any, Any] = {}
TABLE: dict[type, Callable[[Tensor], Tensor]] = {Tensor: torch.tanh, nn.Parameter: torch.sin, int: torch.cos}


class Backend:
    """A thing of a library's that is made once for every kind of tensors."""

    def act(self, x: Tensor) -> Tensor:
        return torch.tanh(x)


@functools.singledispatch
def act(x: object) -> Tensor:
    raise TypeError(type(x))


@act.register
def _(x: Tensor) -> Tensor:
    return torch.tanh(x)


@act.register
def _(x: nn.Parameter) -> Tensor:
    return torch.sin(x)


@functools.cache
def backend(kind: type) -> Backend:
    assert kind in (Tensor, nn.Parameter)
    return Backend()


@functools.lru_cache(maxsize=4)
def lately(kind: type) -> Backend:
    assert kind in (Tensor, nn.Parameter)
    return Backend()


def _by_type(net: Net, x: Tensor) -> Tensor:
    found = CACHE.get(type(x))
    if found is None:
        found = CACHE[type(x)] = Backend()
    return net.a(found.act(x))


def _by_several(net: Net, x: Tensor) -> Tensor:
    key = (type(net.a(x)), type(net.a.weight), x.ndim)
    if key not in CACHE:
        CACHE[key] = len(CACHE) + 2.0
    return net.a(x) * CACHE[key]


def _compares(net: Net, x: Tensor) -> Tensor:
    exact = type(x) is Tensor and type(net.a(x)) in (Tensor,) and type(net.a.weight) is nn.Parameter
    others = isinstance(Tensor, type) and issubclass(type(Tensor), type) and type(Backend) is type
    return net.a(x) * (2.0 if exact and others and type(net.n) in (int,) else 0.0)


def _reads_how_many(net: Net, x: Tensor) -> Tensor:
    """A table whose length counts: a type that no training has must not stand in it."""
    CACHE.setdefault(type(x), 1)
    return net.a(x) * len(CACHE) + sum(CACHE.values())


@pytest.fixture(autouse=True)
def _empty() -> None:
    CACHE.clear()


@pytest.mark.parametrize(
    "forward",
    [
        _by_type,
        _by_several,
        _compares,
        _reads_how_many,
        _makes_a_metaclass,
        lambda n, x: n.a(TABLE[type(x)](x)) * TABLE[type(n.a.weight)](n.a.weight).sum(),
        lambda n, x: act(n.a(x)) * act(n.a.weight).sum(),
        lambda n, x: backend(type(x)).act(n.a(x)) + backend(type(n.a.weight)).act(x),
        lambda n, x: lately(type(x)).act(n.a(x)),
    ],
    ids=[
        "cache",
        "several types",
        "comparisons",
        "length",
        "metaclass",
        "table",
        "singledispatch",
        "functools.cache",
        "lru_cache",
    ],
)
def test_what_is_kept_by_type_is_found_as_in_training(forward: Callable[[Net, Tensor], Tensor]) -> None:
    model = Net(forward)
    model.n = 3
    same(task_of(model))
    assert "type" not in globals()


def _counts(net: Net, x: Tensor) -> Tensor:
    CACHE[type(x)] = CACHE.get(type(x), 0) + 1
    return net.a(x) * (2 if CACHE[type(x)] > 2 else 1)


def _stores(net: Net, x: Tensor) -> Tensor:
    y = net.a(x) + CACHE.get(type(x), 0.0)
    CACHE[type(x)] = y.detach().mean()
    return y


def _by_id(net: Net, x: Tensor) -> Tensor:
    CACHE[type(x), id(x)] = len(CACHE)
    return net.a(x) * CACHE[type(x), id(x)]


def _is_emptied(net: Net, x: Tensor) -> Tensor:
    net.n = int(net.n) + 1
    if net.n % 3 == 0:
        CACHE.clear()
    if type(x) not in CACHE:
        CACHE[type(x)] = net.n
    return net.a(x) * float(CACHE[type(x)])


def _begins_again(net: Net, x: Tensor) -> Tensor:
    """What the cached function changes, it changes once in training."""
    starts(net, type(x))
    net.n = int(net.n) + 1
    return net.a(x) * (2 if net.n > 2 else 1)


@functools.cache
def starts(net: Net, kind: type) -> None:
    net.n = 0


@functools.lru_cache(maxsize=8)
def starts_lately(net: Net, kind: type) -> None:
    net.n = 0


def _begins_again_lately(net: Net, x: Tensor) -> Tensor:
    starts_lately(net, type(x))
    net.n = int(net.n) + 1
    return net.a(x) * (2 if net.n > 2 else 1)


def _by_its_class(net: Net, x: Tensor) -> Tensor:
    CACHE[x.__class__] = CACHE.get(x.__class__, 0) + 1
    return net.a(x) * (2 if CACHE[x.__class__] > 2 else 1)


@pytest.mark.slow_cases("_begins_again", "_is_emptied")
@pytest.mark.parametrize("forward", [_counts, _stores, _is_emptied, _begins_again, _begins_again_lately])
def test_a_cache_that_changes_from_step_to_step_is_followed(forward: Callable[[Net, Tensor], Tensor]) -> None:
    model = Net(forward)
    model.n = 0
    task = task_of(model, steps=7)
    ours = train_by_program(Job.from_task(task), 7)
    for step in range(7):
        task.optimizer.zero_grad()
        task.loss(model, batch_of(task, step)).backward()
        task.optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[f"parameter/{name}"], parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "forward, sentence",
    [
        (_by_id, "CACHE"),
        (_by_its_class, "CACHE"),
    ],
    ids=["by id", "by __class__"],
)
def test_a_cache_that_changes_from_step_to_step_is_refused(
    forward: Callable[[Net, Tensor], Tensor], sentence: str
) -> None:
    model = Net(forward)
    model.n = 0
    refused(task_of(model, steps=6), sentence)


def test_a_count_by_type_that_decides_nothing_is_followed() -> None:
    counts: defaultdict[type, int] = defaultdict(int)

    def forward(net: Net, x: Tensor) -> Tensor:
        counts[type(x)] += 1
        return net.a(x) * (2 if counts[type(x)] > 100 else 1)

    same(task_of(Net(forward)))
    assert set(counts) <= {Tensor}


def test_a_module_that_names_something_else_type_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "type", lambda thing: "mine")
    model = Net(lambda n, x: n.a(x) * (2.0 if str(type(x)) == "mine" else 1.0))
    Job.from_task(task_of(model))
    assert str(type(model)) == "mine"
