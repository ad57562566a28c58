"""Things that the first step leaves behind, for the steps after it.

Tensors that a step makes are known in the trace of the first step as what it computes, and to later ones as numbers
that happened to come out when it was run once. A later step may read them if they are constants, or if they are states
of the program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from roundlog.capture.constants import Constants, written
from roundlog.capture.errors import CaptureError
from roundlog.capture.python_state.carried_tensors import tensors_in
from roundlog.capture.python_state.comparisons import Likeness
from roundlog.capture.python_state.containers import MISSING, Change, is_a
from roundlog.capture.python_state.logged_numbers import is_logged
from roundlog.capture.python_state.snapshot import Snapshot


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

    def constants_of(self, module: fx.GraphModule) -> frozenset[str]:
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
