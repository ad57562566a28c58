"""Counters that change a training from step 60 on. Each is noticed in the first steps, by its name."""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import logging
import random
import sys
import tempfile
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from roundlog import Task
from roundlog.capture import CaptureError, capture
from torch import Tensor, nn

from tests.engine.tasks import small_task

GLOBAL = 0


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count: int = 0
        self.list: list[int] = [0]

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if self.count > 60:
            return x * 2
        return x


def of_global(_: Any) -> int:
    global GLOBAL
    GLOBAL += 1
    return GLOBAL


def of_attribute(owner: Any, name: str = "hid_count") -> int:
    setattr(owner, name, getattr(owner, name, 0) + 1)
    return getattr(owner, name)


def of_module(_: Any) -> int:
    nn.Module.hid_count = getattr(nn.Module, "hid_count", 0) + 1
    return nn.Module.hid_count


def of_item(held: Any, key: Any = 0) -> int:
    held[key] += 1
    return int(held[key])


def of_level(held: logging.Logger) -> int:
    held.setLevel(held.level + 1)
    return held.level


def of_modules(_: Any) -> int:
    sys.modules[f"hid_{len(sys.modules)}"] = types.ModuleType("hid")
    return len(sys.modules)


def of_version(held: Tensor) -> int:
    held.zero_()
    return held._version


def of_context(held: contextvars.ContextVar[int]) -> int:
    held.set(held.get() + 1)
    return held.get()


def of_growing(held: Any) -> int:
    held.append(0)
    return len(held)


def of_default(_: Any, count: list[int] = [0]) -> int:  # noqa: B006
    count[0] += 1
    return count[0]


@functools.cache
def cached(number: int) -> int:
    return number


def of_cached(held: Any) -> int:
    held(0)[0] += 1
    return held(0)[0]


def of_hits(_: Any) -> int:
    cached(0)
    return cached.cache_info().hits


def of_set(held: set[Any]) -> int:
    made = Plain()
    made.hid_count = getattr(held.pop(), "hid_count", 0) + 1
    held.add(made)
    return made.hid_count


def through_closure() -> Callable[[], int]:
    """A counter of a class of a library and of a module of the user's, held by a closure alone."""
    kind, module = torch.optim.SGD, sys.modules[__name__]

    def count() -> int:
        kind.hid_count = getattr(kind, "hid_count", 0) + 1
        module.GLOBAL = module.GLOBAL + 1
        return kind.hid_count

    return count


def of_slot(held: Any) -> int:
    held.kept += 1
    return held.kept


def of_random(held: random.Random) -> int:
    return 61 if held.random() > 0.99 else 0


def of_numpy_random(held: np.random.Generator) -> int:
    return 61 if held.random() > 0.99 else 0


def of_file(held: Any) -> int:
    held.write("x")
    held.flush()
    return held.tell()


def of_name(held: Any) -> int:
    held.__name__ += "x"
    return len(held.__name__)


def of_weak(held: Any) -> int:
    return of_attribute(held())


class Plain:
    pass


class Slotted:
    __slots__ = ("kept",)


def slotted() -> Slotted:
    made = Slotted()
    made.kept = 0
    return made


KEPT = Plain()

WAYS: dict[str, tuple[Callable[[], Any], Callable[[Any], int]]] = {
    "a global": (Plain, of_global),
    "an attribute": (Plain, of_attribute),
    "a slot": (slotted, of_slot),
    "nn.Module": (Plain, of_module),
    "a list": (lambda: [0], of_item),
    "a deque that grows": (collections.deque, of_growing),
    "a numpy array": (lambda: np.zeros(1), of_item),
    "a bytearray": (lambda: bytearray(1), of_item),
    "itertools.count": (lambda: itertools.count(1), next),
    "a generator": (lambda: (n for n in range(10_000)), next),
    "a logger": (lambda: logging.getLogger("hid"), of_level),
    "sys.modules": (Plain, of_modules),
    "a tensor's _version": (lambda: torch.zeros(1), of_version),
    "a context variable": (lambda: contextvars.ContextVar("hid", default=0), of_context),
    "a default": (Plain, of_default),
    "a list in a bounded cache": (lambda: functools.lru_cache(8)(lambda number: [0]), of_cached),
    "a cache's hits": (Plain, of_hits),
    "an object in a set": (lambda: {Plain()}, of_set),
    "a class in a closure": (through_closure, lambda held: held()),
    "random.Random": (lambda: random.Random(1), of_random),
    "numpy's Generator": (lambda: np.random.default_rng(1), of_numpy_random),
    "a file": (lambda: tempfile.TemporaryFile("w+"), of_file),  # noqa: SIM115
    "a function's name": (lambda: lambda: 0, of_name),
    "a weak reference": (lambda: weakref.ref(KEPT), of_weak),
    "a partial": (lambda: functools.partial(of_item, [0]), lambda held: held()),
    "TorchScript's number": (lambda: torch.jit.script(Counting()), None),
}


def task_with(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor]) -> Task:
    data = {"x": torch.randn(8, 4), "y": torch.randn(8, 2)}
    return small_task(model, loss, data, batch_size=4, steps=100, interval=50)


def task_of(way: str) -> Task:
    make, count = WAYS[way]
    torch.manual_seed(0)
    model, held = nn.Linear(4, 2), make()

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        found = nn.functional.mse_loss(m(batch["x"]), batch["y"])
        if count is None:
            return held(found)
        return found * 2 if count(held) > 60 else found

    return task_with(model, loss)


@pytest.fixture(autouse=True)
def put_back():
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("hid_"):
            del sys.modules[name]
    for owner in (nn.Module, torch.optim.SGD):
        if "hid_count" in vars(owner):
            del owner.hid_count


@pytest.mark.parametrize("way", WAYS)
def test_a_counter_that_acts_late_is_noticed(way: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(functools.partial(task_of, way))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def late(way: str) -> Task:
    """A task with a tensor that the step replaces, by its own value before step 60."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.held = nn.Linear(4, 2), torch.zeros(2)
            self.list, self.pair = [torch.zeros(2)], (torch.zeros(2), 1)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            old = {"an attribute": self.held, "a tuple": self.pair[0]}.get(way, self.list[0])
            y = self.inner(x) + old
            new = torch.where(self.count > 60, y.detach().mean(0), old)
            if way == "an attribute":
                self.held = new
            elif way == "a tuple":
                self.pair = (new, 1)
            elif way == "an item":
                self.list[0] = new
            else:
                self.list = [new]
            return y

    torch.manual_seed(0)
    model = Net()
    return task_with(model, lambda m, batch: nn.functional.mse_loss(m(batch["x"]), batch["y"]))


@pytest.mark.slow_but("a tuple*")
@pytest.mark.parametrize(
    ("way", "name"), [("an attribute", "model.held"), ("a tuple", "model.pair[0]"), ("an item", "model.list[0]")]
)
def test_a_tensor_that_changes_late_is_state(way: str, name: str) -> None:
    assert f"attribute/{name}" in capture(lambda: late(way)).states


def test_a_list_that_is_replaced_is_refused_where_the_next_step_reads_it() -> None:
    with pytest.raises(CaptureError, match=r"the one that holds model\.list\[0\], which the next step reads: keep"):
        capture(lambda: late("a list"))
