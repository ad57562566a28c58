"""What a step can reach beside its model's tensors: arrays, classes, caches, hooks, odd containers, iterators. Each is
followed and left as it was, or refused by name."""

from __future__ import annotations

import array
import collections
import functools
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from roundlog.capture import CaptureError
from roundlog.capture.tracing.surroundings import Surroundings
from roundlog.job import Job
from test_scripts import Net, refused, same, task_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

TABLE: dict[int, Tensor] = {}


def net() -> Net:
    return Net(lambda n, x: n.b(torch.tanh(n.a(x))))


# Arrays of numpy


def test_a_numpy_view_of_a_parameter_is_refused() -> None:
    model = Net(lambda n, x: n.a(x) + torch.from_numpy(weight[0]))
    weight = model.a.weight.data.numpy()
    refused(task_of(model), "weight is a numpy view of parameter/a.weight: capture does not see", "(.copy())")


def test_a_numpy_view_of_a_part_of_a_buffer_is_refused() -> None:
    model = Net(lambda n, x: n.a(x) + n.shift)
    model.register_buffer("shift", torch.zeros(6))
    model.kept = [model.shift.numpy()[2:3]]
    refused(task_of(model), "model.kept[0] is a numpy view of buffer/shift")


def test_an_array_beside_the_state_that_is_made_of_it_is_refused() -> None:
    centre = np.zeros(6, dtype=np.float32)

    def forward(n: Net, x: Tensor) -> Tensor:
        n.centre.mul_(0.9).add_(n.a(x).detach().mean(0))
        return n.a(x) - n.centre + float(centre.size)

    model = Net(forward)
    model.centre = torch.from_numpy(centre)
    refused(task_of(model), "centre is a numpy view of attribute/model.centre")


def test_writing_an_array_that_a_tensor_lies_in_is_refused() -> None:
    mask = np.ones(6, dtype=np.float32)

    def forward(n: Net, x: Tensor) -> Tensor:
        mask[0] *= 0.5
        return n.a(x) * n.mask

    model = Net(forward)
    model.mask = torch.from_numpy(mask)
    refused(task_of(model), "mask is a numpy view of model.mask")


def test_two_tensors_that_are_made_of_one_array_are_refused() -> None:
    model = Net(lambda n, x: n.a(x) + x @ n.alias)
    weight = np.zeros((6, 6), dtype=np.float32)
    model.a.weight.data, model.alias = torch.from_numpy(weight), torch.from_numpy(weight[:1].T)
    refused(task_of(model), "parameter/a.weight and model.alias share memory without PyTorch's knowing", ".detach()")


def test_an_array_beside_a_constant_that_is_made_of_it_is_captured() -> None:
    mask = np.arange(6, dtype=np.float32)
    model = Net(lambda n, x: n.a(x) * n.mask / len(mask) + torch.from_numpy(mask))
    model.mask = torch.from_numpy(mask)
    same(task_of(model))


def test_an_array_on_which_a_step_depends_is_refused_if_a_step_changes_it() -> None:
    factors = np.ones(6, dtype=np.float32)

    def forward(n: Net, x: Tensor) -> Tensor:
        factors[:] *= 0.9
        return n.a(x) * float(factors[0])

    refused(task_of(Net(forward)), "a step changes factors")
    assert bool((factors == 1).all())


@pytest.mark.parametrize(
    "counts",
    [np.zeros(2, dtype=np.int64), np.array([0, None], dtype=object), bytearray(2), array.array("l", [0, 0])],
    ids=["numbers", "objects", "bytearray", "array"],
)
def test_an_array_that_a_step_changes_is_refused_even_if_nothing_depends_on_it_yet(counts: np.ndarray) -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        counts[0] += 1
        return n.a(x)

    refused(task_of(Net(forward)), "every step changes counts")
    assert counts[0] == 0


# Classes and caches


def test_a_counter_of_a_class_is_refused_where_the_step_depends_on_it() -> None:
    class Counting(Net):
        calls = 0

    def forward(n: Net, x: Tensor) -> Tensor:
        type(n).calls += 1
        return n.a(x) * 0.5**n.calls

    refused(task_of(Counting(forward)), "a step changes Counting.calls")
    assert Counting.calls == 0


def test_a_class_that_only_the_loss_knows_is_seen() -> None:
    class Counting:
        calls = 0

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        Counting.calls += 1
        return m(batch["x"]).square().mean() * 0.5**Counting.calls

    refused(task_of(net(), loss), "a step changes Counting.calls")


def test_a_tensor_of_a_class_is_state() -> None:
    class Centred(Net):
        centre = torch.zeros(6)

    def forward(n: Net, x: Tensor) -> Tensor:
        y = n.a(x)
        type(n).centre = n.centre * 0.9 + y.detach().mean(0) * 0.1
        return y - n.centre

    before = Centred.centre
    job = same(task_of(Centred(forward)))
    assert "attribute/Centred.centre" in job.initial and bool((before == 0).all())


class Positions(nn.Module):
    """Remembers what it has made, on the class and in a global variable."""

    made: Tensor
    table: dict[int, Tensor] = {}  # noqa: RUF012

    @functools.cache  # noqa: B019
    def remembered(self, size: int) -> Tensor:
        return torch.arange(size).float().sin()

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def lately(self, size: int) -> Tensor:
        return torch.arange(size).float().tanh()

    @staticmethod
    @functools.lru_cache
    def shared(size: int) -> Tensor:
        return torch.arange(size).float().exp()

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-1]
        if not hasattr(Positions, "made"):
            Positions.made = torch.arange(size).float().cos()
        if size not in self.table:
            self.table[size] = torch.arange(size).float().sqrt()
        if size not in TABLE:
            TABLE[size] = torch.arange(size).float()
        known = Positions.made + self.table[size] + TABLE[size] + self.remembered(size) + self.lately(size)
        return x * (known + self.shared(size) / 100)


def test_caches_of_classes_and_functions_are_captured_and_hold_no_traced_tensors() -> None:
    model = Net(lambda n, x: n.b(n.positions(n.a(x))))
    model.positions = Positions()
    task = task_of(model)
    Job.from_task(task)
    assert not hasattr(Positions, "made") and not Positions.table and not TABLE
    for cached in (Positions.remembered, Positions.lately, Positions.shared):
        assert cached.cache_info().currsize == 0
    same(task)
    for found in (Positions.made, TABLE[6], Positions.shared(6), model.positions.remembered(6)):
        assert type(found) is Tensor and not isinstance(found, FakeTensor)


def test_what_a_cache_remembers_from_the_start_stays() -> None:
    """A teacher that is made at its first use is one and the same for ever."""

    @functools.cache
    def teacher() -> nn.Linear:
        return nn.Linear(6, 6)

    @functools.lru_cache(maxsize=2)
    def other() -> nn.Linear:
        return nn.Linear(6, 6)

    def loss(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (m(batch["x"]) - teacher()(batch["x"]) - other()(batch["x"])).square().mean()

    known = teacher(), other()
    same(task_of(net(), loss))
    assert (teacher(), other()) == known


def test_a_cache_of_limited_size_that_a_step_fills_further_holds_no_traced_tensors() -> None:
    @functools.lru_cache
    def positions(size: int) -> Tensor:
        return torch.arange(size).float()

    positions(3)
    task = task_of(Net(lambda n, x: n.a(x) * positions(6)))
    Job.from_task(task)
    assert positions.cache_info().currsize == 0
    same(task)


def test_an_attribute_of_a_function_that_a_library_wraps_is_seen() -> None:
    @torch.no_grad()
    def factor() -> float:
        factor.calls += 1
        return 0.5**factor.calls

    factor.calls = 0
    refused(task_of(Net(lambda n, x: n.a(x) * factor())), "a step changes factor.calls: keep")
    assert factor.calls == 0


def test_a_teacher_in_a_cache_that_a_step_moves_is_state() -> None:
    @functools.lru_cache(maxsize=2)
    def teacher() -> nn.Linear:
        return nn.Linear(6, 6)

    def loss(m: Net, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            teacher().weight.mul_(0.9).add_(m.a.weight, alpha=0.1)
        return (m(batch["x"]) - teacher()(batch["x"])).square().mean()

    teacher()
    job = same(task_of(net(), loss))
    assert "attribute/teacher().weight" in job.initial


def test_a_cached_value_of_a_parameter_is_refused() -> None:
    @functools.cache
    def norm(weight: Tensor) -> Tensor:
        return weight.detach().norm()

    refused(task_of(Net(lambda n, x: n.a(x) / norm(n.a.weight))), "the step is not the same from one time to the next")


def test_a_global_variable_that_a_step_makes_is_gone_afterwards() -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        global made_by_a_step
        made_by_a_step = n.a(x)
        return made_by_a_step

    Job.from_task(task_of(Net(forward)))
    assert "made_by_a_step" not in globals()


def test_a_variable_of_a_closure_that_a_step_makes_is_gone_afterwards() -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        nonlocal made
        made = n.a(x)
        return made

    Job.from_task(task_of(Net(forward)))
    with pytest.raises(NameError):
        made  # noqa: B018, F821
    made = None


@pytest.fixture
def settings() -> Iterator[types.ModuleType]:
    module = types.ModuleType("settings_of_a_user")
    exec("calls = 0\nkept = {}\ndef count():\n    global calls\n    calls += 1\n    return 0.5**calls\n", vars(module))
    sys.modules[module.__name__] = module
    globals()["settings_of_a_user"] = module
    yield module
    del sys.modules[module.__name__], globals()["settings_of_a_user"]


def test_variables_of_the_users_modules_are_seen(settings: types.ModuleType) -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        settings_of_a_user.kept["x"] = n.a(x)  # noqa: F821
        return n.a(x) * settings_of_a_user.count()  # noqa: F821

    refused(task_of(Net(forward)), "a step changes", "calls")
    assert (settings.calls, settings.kept) == (0, {})


def test_what_a_step_puts_on_a_class_of_a_library_is_gone_afterwards() -> None:
    def forward(n: Net, x: Tensor) -> Tensor:
        nn.Linear.kept = n.a(x)
        return nn.Linear.kept

    Job.from_task(task_of(Net(forward)))
    assert not hasattr(nn.Linear, "kept")


# Hooks of tensors


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_what_a_hook_of_a_parameter_closes_over_is_seen(register: str) -> None:
    state = {"calls": 0}

    def hook(thing: Tensor) -> Tensor | None:
        state["calls"] += 1
        if register == "register_hook":
            return thing * 0.5 ** state["calls"]
        thing.grad.mul_(0.5 ** state["calls"])
        return None

    model = net()
    getattr(model.a.weight, register)(hook)
    refused(task_of(model), "a step changes state.calls")
    assert state["calls"] == 0


def test_a_moving_scale_in_a_hook_is_state() -> None:
    scale = torch.ones(())

    def hook(gradient: Tensor) -> Tensor:
        scale.mul_(0.9)
        return gradient * scale

    model = net()
    model.a.weight.register_hook(hook)
    job = same(task_of(model))
    assert "attribute/scale" in job.initial


def test_hooks_that_a_step_puts_on_a_parameter_are_gone_afterwards() -> None:
    calls = []

    def forward(n: Net, x: Tensor) -> Tensor:
        n.a.weight.register_hook(lambda g: calls.append(1))
        n.a.bias.register_post_accumulate_grad_hook(lambda p: calls.append(2))
        return n.a(x)

    model = Net(forward)
    refused(task_of(model), "every step changes model.a.weight._backward_hooks")
    model.a(torch.ones(6)).sum().backward()
    assert calls == [] and model.a.weight._backward_hooks is None
    forward(model, torch.ones(6)).sum().backward()
    assert sorted(calls) == [1, 2]


# Containers


class Closed(collections.OrderedDict):
    """As ModelOutput: its methods are not to be called."""

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
    with Surroundings({"thing": {"inside": thing}}):
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
        Surroundings({"thing": {"before": before, "odd": Failing(), "after": after}}),
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
        arrays["x"], counts["n"] = kept[0], counts["n"] + len(kept)
        kept[0] = Odd()
        return n.a(x)

    same(task_of(Net(forward)))


def test_long_chains_of_objects_have_short_names() -> None:
    chain: list[object] = []
    for _ in range(3000):
        chain = [chain]
    around = Surroundings({"thing": chain})
    assert not around.changes()


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
