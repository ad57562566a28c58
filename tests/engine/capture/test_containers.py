"""Containers of every kind are put back by Python's own methods, odd objects are passed by, and iterators that a step
takes from are refused by name."""

from __future__ import annotations

import collections
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from roundlog.capture import CaptureError
from roundlog.capture.python_state.snapshot import Snapshot
from torch import Tensor

from tests.engine.capture.test_scripts import Net, refused, same, task_of


class Closed(collections.OrderedDict):
    """A dictionary whose methods are not to be called, as ModelOutput's."""

    def _raise(self, *arguments: object, **more: object) -> None:
        raise RuntimeError("closed")

    update = clear = pop = setdefault = keys = items = values = __setitem__ = __delitem__ = __iter__ = _raise


class ClosedList(list):
    clear = extend = append = __iter__ = Closed._raise


class ClosedSet(set):
    clear = update = add = __iter__ = Closed._raise


class Both:
    """Slots and a dictionary."""

    __slots__ = ("__dict__", "__mangled", "late", "n")

    def __init__(self) -> None:
        self.n, self.m, self.__mangled = 0, 0, 0

    def change(self) -> None:
        self.n, self.m, self.late, self.__mangled = 1, 1, 1, 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Both) and (self.n, self.m, self.__mangled) == (other.n, other.m, other.__mangled)


def _list() -> ClosedList:
    made = ClosedList()
    list.extend(made, [1, 2])
    return made


def _ordered() -> Closed:
    made = Closed()
    for key in "ab":
        collections.OrderedDict.__setitem__(made, key, [key])
    made.seen = 0
    return made


CHANGES: dict[str, tuple[Callable[[], object], Callable[[object], object], Callable[[object], object]]] = {
    "a closed dictionary": (
        _ordered,
        lambda d: (collections.OrderedDict.__delitem__(d, "a"), vars(d).update(seen=1)),
        lambda d: (list(collections.OrderedDict.items(d)), d.seen),
    ),
    "the order of a dictionary": (
        lambda: collections.OrderedDict(a=1, b=2),
        lambda d: d.move_to_end("a"),
        lambda d: list(d.items()),
    ),
    "a counter": (lambda: collections.Counter("aab"), lambda c: c.update("bc"), dict),
    "what a dictionary begins with": (
        lambda: collections.defaultdict([0].copy, {1: [1]}),
        lambda d: d[2].append(1),
        dict,
    ),
    "a closed list": (_list, lambda v: list.append(v, 3), lambda v: list(list.__iter__(v))),
    "a closed set": (ClosedSet, lambda s: set.add(s, 3), len),
    "the end of a queue": (lambda: collections.deque([1, 2], maxlen=2), lambda q: q.append(3), list),
    "slots beside a dictionary": (Both, Both.change, lambda b: (b == Both(), hasattr(b, "late"))),
    "what a method is bound to": (lambda: [].append, lambda append: append(1), lambda append: list(append.__self__)),
    "what a reference refers to": (
        lambda: weakref.ref(KEPT),
        lambda reference: reference().clear(),
        lambda reference: list(reference()),
    ),
    "what a mapping of references holds": (
        weakref.WeakValueDictionary,
        lambda d: d.update(a=KEPT),
        lambda d: dict(d),
    ),
}

KEPT = collections.UserList([1])


@pytest.mark.parametrize("name", CHANGES)
def test_containers_are_put_back_by_the_methods_of_python(name: str) -> None:
    make, change, shown = CHANGES[name]
    thing = make()
    before = shown(thing)
    with Snapshot({"thing": {"inside": thing}}):
        change(thing)
        assert shown(thing) != before
    assert shown(thing) == before


def test_what_cannot_be_put_back_is_named_and_leaves_the_rest_as_it_was() -> None:
    class Failing:
        __dict__ = property(lambda self: self.own())

        def own(self, own: dict[str, int] = {"a": 1}) -> dict[str, int]:  # noqa: B006
            if failing:
                raise RuntimeError("not now")
            return own

    failing: list[int] = []
    before, after = [1], [2]
    with (
        pytest.raises(CaptureError, match=r"^thing\.odd cannot be put back as it was before capture: not now$"),
        Snapshot({"thing": {"before": before, "odd": Failing(), "after": after}}),
    ):
        failing.append(1)
        before.clear()
        after.clear()
    assert (before, after) == ([1], [2]) and failing == []


class Odd:
    """Fails wherever it can."""

    def _raise(self, *arguments: object) -> None:
        raise RuntimeError("odd")

    __getattribute__ = __eq__ = __hash__ = __repr__ = __len__ = __bool__ = __iter__ = _raise
    __class__ = property(_raise)  # type: ignore[assignment]


class OddClass(type):
    """So does its class."""

    __eq__ = lambda self, other: np.zeros(3)  # type: ignore[assignment]  # noqa: E731
    __hash__ = None  # type: ignore[assignment]
    __mro__ = property(Odd._raise)  # type: ignore[assignment]


class OfOddClass(metaclass=OddClass):
    __slots__ = ("n",)


class Arrays(dict):
    __hash__ = None  # type: ignore[assignment]
    __eq__ = lambda self, other: np.zeros(3)  # type: ignore[assignment]  # noqa: E731
    given = property(Odd._raise)


def test_odd_objects_of_the_users_are_passed_by() -> None:
    odd, arrays, counts = Odd(), Arrays(), {"n": 0}
    kept = [odd, arrays, (1, odd), np.float64(1), weakref.proxy(KEPT), type("Late", (), {}), type(odd)]
    kept += [
        OfOddClass(),
        OfOddClass,
        np.ma.masked_array([1.0, 2.0], [0, 1]),
        threading.local(),
        sys.stdout,
        iter(kept),
    ]

    def forward(n: Net, x: Tensor) -> Tensor:
        arrays["x"], counts["n"] = Odd(), counts["n"] + len(kept)
        return n.a(x)

    same(task_of(Net(forward)))


def test_long_chains_of_objects_have_short_names() -> None:
    chain: list[object] = []
    for _ in range(3000):
        chain = [chain]
    snapshot = Snapshot({"thing": chain})
    assert not snapshot.changes()


# Iterators


def rates() -> Iterator[float]:
    yield from (0.5, 0.25) * 30


@pytest.mark.parametrize(
    ("iterator", "what"),
    [
        (itertools.count(1), "iterator, an iterator (count)"),
        (itertools.cycle([1.0, 0.5]), "iterator, an iterator (cycle)"),
        (iter([1.0] * 60), "iterator, an iterator (list_iterator)"),
        (zip([1.0] * 60), "iterator[0], an iterator (list_iterator)"),
        (enumerate(itertools.repeat(1.0)), "iterator, an iterator (enumerate)"),
        (rates(), "iterator, an iterator (generator)"),
    ],
    ids=["count", "cycle", "list", "zip", "enumerate", "generator"],
)
def test_an_iterator_that_a_step_takes_from_is_refused(iterator: Iterator[float], what: str) -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        next(iterator)
        return n.a(x)

    refused(task_of(Net(forward)), f"the step takes from {what} that cannot be wound back", "by the batch")


def test_a_cycle_is_refused_in_its_second_round() -> None:
    rounds = itertools.cycle([1.0, 0.5])
    for _ in range(3):
        next(rounds)
    refused(task_of(Net(lambda n, x: n.a(x) * next(rounds))), "the step takes from rounds, an iterator (cycle)")


def test_iterators_that_no_step_takes_from_are_left_alone() -> None:
    left = [itertools.count(1), itertools.cycle([1.0, 0.5]), iter([1, 2]), rates(), iter({1: 2}), map(abs, [-1])]
    for iterator in left:
        next(iterator)
    same(task_of(Net(lambda n, x: n.a(x) * len(left))))
    assert [next(iterator) for iterator in left[:4]] == [2, 0.5, 2, 0.25]
