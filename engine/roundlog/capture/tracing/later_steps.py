"""Steps after those that are traced: whether what steps change in Python ever makes one another step.

Tensors that steps change are part of the program's state. Numbers (counters, flags) are followed by `counters.py`
through all steps of the task; those that come from values of steps (sums of losses) may be shown, and lists may grow as
long as nobody reads them. Everything else has to be after a step as it was before."""

from __future__ import annotations

import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from roundlog.capture.errors import CaptureError, a_kind
from roundlog.capture.task import Task
from roundlog.capture.tracing.containers import IMMUTABLE, MISSING, Change, Container, attributes_of, is_a, slots_of
from roundlog.capture.tracing.counters import Counter, DependsOnValuesError, Number, Path, Paths, term_of
from roundlog.capture.tracing.difference import difference
from roundlog.capture.tracing.logged import LoggedNumber, is_logged
from roundlog.capture.tracing.surroundings import Surroundings
from roundlog.capture.tracing.trace import Tracer

_MOST_PATHS = 8
"""Largest number of sets of answers that are traced: beyond it, a step counts as another one every time."""

_REMEDY = (
    "keep what steps change in buffers that hold tensors from the start, draw random numbers by torch, and print and "
    "log outside of the step"
)
_COUNT = "; a count that the step prints may stand in a tensor (count.add_(1), print(count.item()))"
"""Advice, for refusals."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a number."""

    container: Container
    key: Any

    @property
    def name(self) -> str:
        return self.container.name_of(self.key)

    @property
    def first(self) -> Number:
        """The number before the second step."""
        number: Number = self.container.saved[self.key]
        return number

    def get(self) -> Any:
        return self.container.read().get(self.key)

    def put(self, number: object) -> None:
        self.container.restore({**self.container.read(), self.key: number})


class _Unread:
    """Stands in for something that a step may not read, while it is traced, and notices whoever does."""

    is_read = False

    def _noticed(self, *arguments: Any, **options: Any) -> Any:
        self.is_read = True
        raise CaptureError("the step reads what it may not")  # replaced by the sentence of `_trace`


class _Grown(_Unread, list[Any]):
    """A list that steps make longer."""

    _noticed = _Unread._noticed
    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __reversed__ = _noticed
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = __rmul__ = __str__ = __repr__ = _noticed
    pop = remove = clear = index = count = copy = sort = reverse = insert = _noticed


class _Hidden(_Unread, dict[Any, Any]):
    """The state of an optimizer."""

    _noticed = _Unread._noticed
    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __reversed__ = _noticed
    get = keys = values = items = pop = popitem = setdefault = copy = update = clear = _noticed


@dataclass(slots=True)
class _Ended:
    """What a traced step has left, on any of its paths."""

    changes: list[Change] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """Generators of random numbers."""
    toggled: list[str] = field(default_factory=list)
    """Tensors that require a gradient, or do not any more."""
    arrays: list[str] = field(default_factory=list)
    """Arrays that hold other values."""
    logged: list[str] = field(default_factory=list)
    """Numbers that come from values."""
    wrong: list[str] = field(default_factory=list)
    """Refusals."""

    def add(self, around: Surroundings) -> None:
        """The end of one path."""
        self.changes += around.changes()
        self.moved += around.moved_generators()
        self.toggled += around.toggled()
        self.arrays += around.changed_arrays()


class LaterSteps:
    """The steps of a task after its first one."""

    def __init__(
        self, task: Task, tracer: Tracer, around: Surroundings, own: Collection[str], by_values: Collection[str] = ()
    ) -> None:
        """around: everything, as it stands after the first step. own: names of the numbers that the optimizer and its
        schedule change by themselves. by_values: names of the numbers and lists that the first step
        leaves by its values."""
        self._steps = task.steps
        self._tracer = tracer
        self._around = around
        self._own = [
            _Place(container, key)
            for container in around.containers
            for key, value in container.saved.items()
            if _is_number(value) and container.name_of(key) in own
        ]
        states = {f"{turn.called('optimizer')}.state" for turn in task.turns()}
        self._hidden = [
            _Place(container, key)
            for container in around.containers
            for key in container.saved
            if container.name_of(key) in states
        ]
        """Places of the optimizers' states."""
        self._counted: dict[str, _Place] = {}
        """The numbers that steps change, by name."""
        self._logged = {
            container.name_of(key): _Place(container, key)
            for container in around.containers
            for key in container.saved
            if container.name_of(key) in by_values
        }
        """The numbers that steps compute from their values, by name."""
        self._growing = {
            container.path: self._places_of(container.list)
            for container in around.containers
            if container.list is not None and container.path in by_values
        }
        """Places of the lists that steps make longer, by name."""
        if held := [path for path, places in self._growing.items() if not places]:
            raise CaptureError(f"every step changes {held[0]}: {_REMEDY}")
        self._ended = _Ended()

    def confirm(self, first: fx.GraphModule, changed: Iterable[str]) -> None:
        """Raises CaptureError if one of these steps is another than the first, which is traced already. changed: what
        the first has changed, in words."""
        words = list(changed)
        try:
            while not self._follows(first, words):  # a number that has been found may decide about others
                pass
        except CaptureError as error:
            if self._tracer.stepped is None or ".state[" not in str(error):
                raise
            raise CaptureError(
                f"the loss takes a step of an optimizer{self._tracer.stepped}: give the task several optimizers with a "
                "loss each, which take their steps in turn (optimizer=[a, b], loss=[of_a, of_b])"
            ) from error

    def _follows(self, first: fx.GraphModule, changed: list[str]) -> bool:
        """As `_follow`; a number that becomes another by the values of a step comes from them."""
        try:
            return self._follow(first, changed)
        except DependsOnValuesError as error:
            self._logged |= {name: self._counted.pop(name) for name in error.names}
            return False

    def _follow(self, first: fx.GraphModule, changed: list[str]) -> bool:
        """Whether all steps could be followed; otherwise more numbers have been found."""
        numbers: dict[str, Number] = {name: place.first for name, place in self._counted.items()}
        paths: list[Paths] = []
        last = max(2, self._steps) - 1
        for step in range(1, last + 1):
            before = numbers
            following = next((found for path in paths if (found := path.following(before)) is not None), None)
            if following is None:
                if len(paths) == _MOST_PATHS:
                    asked = _words(name for path in paths for name in path.asked)
                    raise CaptureError(f"the step depends on {asked}, which steps change: {_REMEDY}{_COUNT}")
                path, graph = self._trace(numbers)
                if self._find_logged():  # first, since a step that uses one is told so by its name
                    return False
                self._compare(first, graph, step, path.asked or changed)
                if self._find(graph):
                    return False
                paths.append(path)
                following = path.following(numbers)
                if following is None:
                    raise CaptureError(f"the step depends on {_words(numbers)}, which steps change: {_REMEDY}{_COUNT}")
            # A counter is not a number in every respect: numbers themselves have the last word.
            if self._counted and step in (last // 2, last):
                self._compare(first, self._trace(numbers, plainly=True)[1], step, self._counted)
                self._tracer.confirm_factors()
            numbers = following
        return True

    def _compare(self, first: fx.GraphModule, graph: fx.GraphModule, step: int, changed: Iterable[str]) -> None:
        if (found := difference(first, graph)) is not None:
            names = _words(changed)
            raise CaptureError(
                f"the step is not the same from one time to the next: at step {step} {found}"
                + (f"; a step changes {names}" if names else "")
                + f": {_REMEDY}"
            )

    def _trace(
        self, numbers: Mapping[str, Number], plainly: bool = False, *, again: bool = False
    ) -> tuple[Paths, fx.GraphModule]:
        """A step that begins with these numbers. plainly: with the numbers themselves, so that the paths are empty.
        again: a generator of random numbers moved the first time."""
        paths, own = Paths(), Path()
        hidden = {place.name: _Hidden() for place in self._hidden}
        grown = {name: _Grown() for name in self._growing}
        self._ended = _Ended()

        def begin() -> None:
            path = paths.begin()
            self._around.restore()
            for name, place in self._counted.items():
                place.put(numbers[name] if plainly else Counter.named(path, name, numbers[name]))
            for name, place in self._logged.items():
                place.put(LoggedNumber(name))
            for place in self._own:
                place.put(Counter.named(own, place.name, place.first))
            for place in self._hidden:
                place.put(hidden[place.name])
            for name, places in self._growing.items():
                for place in places:
                    place.put(grown[name])

        def end() -> None:
            self._ended.add(self._around)
            for name, place in self._counted.items():
                left = place.get()
                if is_logged(left):
                    self._ended.logged.append(name)
                    if not plainly:
                        continue  # `_find_logged` sees it, and no step follows this path
                if type(left) is not Counter and not _is_number(left):
                    self._ended.wrong.append(f"a step leaves {a_kind(left)} in {name}, where a number was: {_REMEDY}")
                paths.leave(name, term_of(left))

        try:
            graph = self._tracer.trace(begin, end).graph
            _refuse_reads(hidden, grown)  # the code that reads may have caught the error
        except CaptureError as error:
            _refuse_reads(hidden, grown)
            if Counter.__name__ not in str(error):
                raise
            names = _words([*own.asked, *self._counted, *(place.name for place in self._own)])
            raise CaptureError(f"the step makes tensors of {names}, which steps change: {_REMEDY}") from error
        if moved := self._ended.moved:
            if not again:  # another thread of the process may have drawn from it meanwhile
                return self._trace(numbers, plainly, again=True)
            raise CaptureError(f"the step draws from {moved[0]}, which a program cannot: draw random numbers by torch")
        if own.asked:
            raise CaptureError(
                f"the step reads {_words(own.asked)}, which is another at every step: compute with constants, or "
                "with a field of the dataset"
            )
        if self._ended.wrong:
            raise CaptureError(self._ended.wrong[0])
        return paths, graph

    def _find(self, graph: fx.GraphModule) -> bool:
        """Whether there are numbers that a step changes and that are not counted yet. Raises CaptureError for other
        changes that a later step may depend on."""
        if toggled := self._ended.toggled:
            raise CaptureError(
                f"a step changes whether {toggled[0]} requires a gradient: freeze before the first step, or undo it"
            )
        self._around.refuse_advanced()
        if arrays := self._ended.arrays:
            raise CaptureError(f"every step changes {arrays[0]}, an array of numpy's: {_REMEDY}")
        attributes = [getattr(graph, str(node.target)) for node in graph.graph.nodes if node.op == "get_attr"]
        read = {id(attribute) for attribute in attributes}
        seen = self._around.seen()
        growing = (place for found in self._growing.values() for place in found)
        places = [*self._counted.values(), *self._logged.values(), *self._own, *self._hidden, *growing]
        known = {(id(place.container), place.key) for place in places}
        before = len(self._counted) + len(self._growing)
        for change in self._ended.changes:
            if (id(change.container), change.key) in known or self._tracer.follows(change.before):
                continue
            if change.name.startswith(("optimizer.", "optimizer[")):
                raise CaptureError(f"a step changes {change.name}: change it by the task's schedule")
            if _is_number(change.before) and (_is_number(change.after) or type(change.after) is Counter):
                self._counted[self._unused(change.name)] = _Place(change.container, change.key)
                known.add((id(change.container), change.key))
            elif change.before is MISSING and (places := self._places_of(change.container.list)):
                self._growing[change.container.path] = places
            elif not _Likeness(read, seen).between(change.before, change.after):
                raise CaptureError(f"every step changes {_described(change)}: {_REMEDY}")
        return len(self._counted) + len(self._growing) != before

    def _find_logged(self) -> bool:
        """Whether there are numbers that a step has computed from its values, and that were not known to be such."""
        logged = {name: place for name, place in self._counted.items() if name in self._ended.logged}
        self._counted = {name: place for name, place in self._counted.items() if name not in logged}
        known = {(id(place.container), place.key) for place in (*self._logged.values(), *logged.values())}
        self._logged |= logged
        for change in self._ended.changes:
            new = (id(change.container), change.key) not in known and is_logged(change.after)
            if new and _is_number(change.before):
                known.add((id(change.container), change.key))
                logged[change.name] = self._logged[self._unused(change.name)] = _Place(change.container, change.key)
        return bool(logged)

    def _places_of(self, thing: object) -> list[_Place]:
        """Places of a list; none if it is not an ordinary one, or if something else holds it, which may read it."""
        holders = [holder for holder in gc.get_referrers(thing) if type(holder) in _HOLDERS]
        # (list, thing) are the arguments of what puts it back.
        if any(type(holder) is not tuple or holder[0] is not list for holder in holders):
            return []
        return [
            _Place(container, key)
            for container in self._around.containers
            for key, value in container.saved.items()
            if value is thing and type(value) is list
        ]

    def _unused(self, name: str) -> str:
        while name in self._counted or name in self._logged:
            name += "'"
        return name


def apart(ends: Sequence[Sequence[Change]], seen: Collection[int]) -> set[str]:
    """Names of the numbers that some paths of the first step leave other than others do, and of the lists that they
    make longer. Steps after it are followed from what one path has left, and would not show what follows from the
    others. ends: the changes of every path. seen: ids of what was there before. Raises CaptureError for anything else
    of Python's that paths leave so."""
    if len(ends) < 2:
        return set()
    found: set[str] = set()
    alike = _Likeness((), seen)
    left = [{(id(change.container), change.key): change.after for change in end} for end in ends]
    for change in (change for end in ends for change in end):
        place = (id(change.container), change.key)
        things = [after.get(place, change.before) for after in left]
        if not any(map(is_logged, things)) and all(alike.between(things[0], thing) for thing in things):
            continue
        if change.before is MISSING and change.container.list is not None:
            found.add(change.container.path)
        elif all(is_logged(thing) or _is_number(thing) for thing in things):
            found.add(change.name)
        else:
            raise CaptureError(f"a step changes {change.name} by values that it computes: {_REMEDY}")
    return found


def _refuse_reads(hidden: Mapping[str, _Hidden], grown: Mapping[str, _Grown]) -> None:
    """Raises CaptureError if one of these has been read."""
    if states := [name for name in hidden if hidden[name].is_read]:
        raise CaptureError(f"the step reads {states[0]}, which every step changes: keep what the step needs in buffers")
    if read := [name for name in grown if grown[name].is_read]:
        raise CaptureError(f"the step reads {read[0]}, which every step makes longer: {_REMEDY}{_COUNT}")


def _is_number(thing: object) -> bool:
    return is_a(thing, (int, float)) and type(thing).__module__ == "builtins"


def _words(names: Iterable[str]) -> str:
    return ", ".join(list(dict.fromkeys(names))[:3])


def _described(change: Change) -> str:
    if change.before is None or change.before is MISSING:
        kind = "a number" if is_logged(change.after) else a_kind(change.after)
        return f"{change.name} (nothing before, then {kind})"
    return change.name


class _Likeness:
    """Whether what stands in the place of something says the same to Python code, whatever is in its tensors."""

    def __init__(self, read: Collection[int], seen: Collection[int]) -> None:
        """read: ids of the tensors that the step reads as constants. seen: ids of what was there before the step."""
        self._read = read
        self._old = seen
        self._compared: set[tuple[int, int]] = set()

    def between(self, one: Any, two: Any) -> bool:
        if one is two or (id(one), id(two)) in self._compared:
            return True
        kind = type(one)
        if kind is not type(two) and not (is_a(one, torch.Tensor) and is_a(two, torch.Tensor)):
            return False
        self._compared.add((id(one), id(two)))
        if kind in _VALUES or is_a(one, (np.generic, Enum)):
            return bool(one == two) and repr(one) == repr(two)
        if is_a(one, RemovableHandle):  # they are numbered
            return True
        if id(two) in self._old:  # one of several that were there has been chosen
            return False
        if is_a(one, torch.Tensor):
            return id(one) not in self._read and bool(one.shape == two.shape and one.dtype == two.dtype)
        if is_a(one, (set, frozenset)):
            return bool(one == two)
        if is_a(one, np.ndarray):
            return bool(one.shape == two.shape and one.dtype == two.dtype and one.tobytes() == two.tobytes())
        if is_a(one, dict):
            same = list(one) == list(two) and all(self.between(one[key], two[key]) for key in one)
            return same and (kind in (dict, OrderedDict, defaultdict) or self._attributes(one, two) is not False)
        if is_a(one, (list, tuple, deque)):
            return len(one) == len(two) and all(self.between(a, b) for a, b in zip(one, two, strict=True))
        if is_a(one, types.MethodType):
            return one.__func__ is two.__func__ and self.between(one.__self__, two.__self__)
        if is_a(one, types.FunctionType):
            cells = ([cell.cell_contents for cell in function.__closure__ or ()] for function in (one, two))
            same = one.__code__ is two.__code__ and self.between(one.__defaults__, two.__defaults__)
            return same and all(self.between(a, b) for a, b in zip(*cells, strict=True))
        if is_a(one, functools.partial):
            return all(self.between(getattr(one, part), getattr(two, part)) for part in ("func", "args", "keywords"))
        alike = self._attributes(one, two)
        # An object of a class written in C may hold anything.
        return alike if alike is not None else not kind.__flags__ & IMMUTABLE

    def _attributes(self, one: Any, two: Any) -> bool | None:
        """Whether two objects have the same attributes; None if they have none at all."""
        mine, other = (attributes_of(thing, slots_of(type(thing))) for thing in (one, two))
        return None if mine is None or other is None else self.between(mine[0](), other[0]())


_VALUES = (bool, int, float, str, bytes, complex, range, slice, type(None), torch.dtype, torch.device, torch.Size)
_HOLDERS = (tuple, types.MethodType, types.BuiltinMethodType)
