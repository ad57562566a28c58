"""Things that the first step leaves behind, for the steps after it; and whether what stands in one place at two times
says the same to Python code, and whether two traces are of the same step.

Tensors that a step makes are known in the trace of the first step as what it computes, and to later ones as numbers
that happened to come out when it was run once. A later step may read them if they are constants, or if they are
states of the program."""

from __future__ import annotations

import functools
import itertools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from roundlog.capture.constants import Constants, written
from roundlog.capture.draws import draw_of
from roundlog.capture.errors import CaptureError, source_of
from roundlog.capture.python_state.containers import IMMUTABLE, MISSING, Change, attributes_of, is_a, slots_of
from roundlog.capture.python_state.followed_places import tensors_in
from roundlog.capture.python_state.replaced_builtins import is_logged
from roundlog.capture.python_state.snapshot import Snapshot


class Likeness:
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


def difference(one: fx.GraphModule, two: fx.GraphModule) -> str | None:
    """Difference of two traces of a step, in words; None if they compute the same. What depends on no parameter, no
    data and no random number is compared by its value: the first step may compute what later ones find in a cache."""
    draws: dict[str, str] = {}
    for a, b in itertools.zip_longest(_described(one), _described(two)):
        if a is None or b is None:
            return f"one time it computes {_what((a or b)[0])}, another time not"
        if a[1] != b[1]:
            if _what(a[0]) == _what(b[0]):
                return f"{_what(a[0])} is given other arguments every time"
            return f"one time it computes {_what(a[0])}, another time {_what(b[0])}"
        mine, other = draw_of(a[0]), draw_of(b[0])
        if mine is None or other is None:
            continue
        if draws.setdefault(mine.state, other.state) != other.state:
            return f"{_what(a[0])} draws again what was drawn before, but not every time"
    return None


def drawn_again(first: fx.GraphModule, later: fx.GraphModule) -> str | None:
    """Draws of a later step from a state in which the first step has drawn already, in words; None if nothing."""
    states = {draw.state for node in first.graph.nodes if (draw := draw_of(node)) is not None}
    for node in later.graph.nodes:
        if (draw := draw_of(node)) is not None and draw.state in states:
            return f"{_what(node)} draws the same random numbers every time, from a state that every step puts back"
    return None


def _described(module: fx.GraphModule) -> Iterator[tuple[fx.Node, object]]:
    """Descriptions of all nodes that are not constant: what each computes."""
    constants = Constants(module, module.graph, by_pytorch=True)
    numbers: dict[fx.Node, int] = {}

    def argument(node: fx.Node) -> object:
        return constants.digest(node) if node in constants else ("node", numbers[node])

    for node in module.graph.nodes:
        if node in constants:
            continue
        numbers[node] = len(numbers)
        target = "" if node.op in ("placeholder", "get_attr") else str(node.target)
        inputs = fx.node.map_arg((node.args, dict(node.kwargs)), argument)  # type: ignore[arg-type]
        yield node, (node.op, target, str(inputs))


def _what(node: fx.Node) -> str:
    if node.op == "output":
        return "other results"
    source = source_of(node)
    return str(node.target) + (f" (at {source})" if source else "")


@dataclass(frozen=True, slots=True)
class Held:
    """Tensors outside of the state that a traced step holds."""

    read: list[torch.Tensor]
    """Tensors that the first step has made."""
    written: dict[str, torch.Tensor]
    """Tensors that were there before and that it writes into, by the name of the state that they have to be."""


class AfterOne:
    """Changes of the first step."""

    def __init__(
        self, snapshot: Snapshot, made: Sequence[Change], unsteady: Mapping[str, bool], grown: frozenset[str]
    ) -> None:
        """snapshot: everything, as it was before. made: changes by the user's own step. unsteady: names of the places
        where it leaves something else than its trace; whether that is a number. grown: see `grown_apart`."""
        self._snapshot = snapshot
        self.grown = grown
        self._made = list(made)
        # Looked up once, here: later steps write into what the first one has made.
        self._of_tensor = {id(tensor): change for change in reversed(made) for tensor in tensors_in(change.after)}
        self.unsteady = frozenset(unsteady)
        self.unlike = frozenset(name for name, is_number in unsteady.items() if not is_number)
        """Names of those places where no number is left."""

    def change_of(self, change: Change) -> Change | None:
        """A later step's change, as one of what stood in its place before the first step; None if it is not found."""
        for one in self._made:
            if one.after is change.before:
                return one
        for container in self._snapshot.containers:
            for key, value in container.saved.items():
                if value is change.before and container.name_of(key) == change.name:
                    return Change(container, key, value, change.after)
        return self.holding(change.before) if is_a(change.before, torch.Tensor) else None

    def has_put(self, change: Change) -> bool:
        """Whether what stood in the place of a later step's change was put there by the first step."""
        return any(one.after is change.before and one.name == change.name for one in self._made)

    def holding(self, tensor: torch.Tensor) -> Change | None:
        """The first step's change that has put a tensor somewhere."""
        return self._of_tensor.get(id(tensor))

    def found_by(
        self, module: fx.GraphModule, followed: Collection[int], used: Collection[int], later: Snapshot
    ) -> Held:
        """Tensors outside of the state that a later step holds. followed: ids of the tensors that are part of the
        state. used: ids of those that the step has read as constants. later: everything, as it is after the first step.
        """
        changing = written(module.graph)
        held = Held([], {})
        for node in module.graph.nodes:
            tensor: Any = getattr(module, str(node.target)) if node.op == "get_attr" else None
            if not isinstance(tensor, torch.Tensor) or id(tensor) in followed:
                continue
            if id(tensor) in self._snapshot.tensors and node in changing:
                held.written[f"attribute/{self._snapshot.tensors[id(tensor)][0]}"] = tensor
        # Not those of the graph: a tensor whose number a step takes stands in none.
        new = (number for number in later.tensors if number in used and number not in self._snapshot.tensors)
        held.read.extend(later.tensors[number][1] for number in new if number not in followed)
        return held


def constants_of(module: fx.GraphModule) -> frozenset[str]:
    """Digests of the constants that a graph computes, and of those that it holds."""
    constants = Constants(module, module.graph, by_pytorch=True)
    return frozenset(constants.digest(node) for node in module.graph.nodes if node in constants)


def unsteady(shown: Sequence[Sequence[Change]], made: Sequence[Change]) -> dict[str, bool]:
    """Names of the places where a step leaves something else than its trace does on one of its paths: what it computes
    from values, or is another every time; with whether that is a number. shown: changes on each path."""
    found: dict[str, bool] = {}
    own = {change.location: change for change in made}
    for changes in shown:
        traced = {change.location: change for change in changes}
        for place in {*own, *traced}:
            change = own.get(place) or traced[place]
            left, shows = ((there[place].after if place in there else change.before) for there in (own, traced))
            if not Likeness((), ()).between(shows, left):
                number = change.after
                is_number = type(number) in (bool, int, float) or is_logged(number)
                found[change.name] = is_number and found.get(change.name, True)
    return found


def grown_apart(ends: Sequence[Sequence[Change]], seen: Collection[int]) -> frozenset[str]:
    """Names of the lists that some paths of the first step make longer by other items than others do. Steps after it
    are followed from what one path has left, and would not show what follows from the others. ends: the changes of
    every path. seen: ids of what was there before. Raises CaptureError for anything else that paths leave so, but for
    numbers, which `unsteady` finds."""
    found = set[str]()
    if len(ends) < 2:
        return frozenset()
    alike = Likeness((), seen)
    left = [{change.location: change.after for change in end} for end in ends]
    for change in (change for end in ends for change in end):
        things = [after.get(change.location, change.before) for after in left]
        if not any(map(is_logged, things)) and all(alike.between(things[0], thing) for thing in things):
            continue
        if change.before is MISSING and change.container.list is not None:
            found.add(change.container.path)
        elif not all(is_logged(thing) or type(thing) in (bool, int, float) for thing in things):
            raise CaptureError(
                f"a step changes {change.name} by values that it computes: keep what steps change in buffers that "
                "hold tensors from the start"
            )
    return frozenset(found)
