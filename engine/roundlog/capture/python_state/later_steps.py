"""Steps after those that are traced: which other steps what steps change in Python makes of them.

Tensors that steps change are part of the program's state. Numbers (counters, flags) are followed by `counters.py`
through all steps of the task, so that each is known to be one of a few traced steps; those that come from values of
steps (sums of losses) may be shown, and lists may grow as long as nobody reads them. Everything else has to be after a
step as it was before."""

from __future__ import annotations

import gc
import types
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import fx

from roundlog.capture.constants import digest_of
from roundlog.capture.errors import CaptureError, UnknownValueError, a_kind
from roundlog.capture.optimizers import is_own
from roundlog.capture.python_state.containers import MISSING, Change, is_a
from roundlog.capture.python_state.counters import Counter, DependsOnValuesError, Number, Path, Paths, term_of, value_of
from roundlog.capture.python_state.first_step import AfterOne, Likeness, constants_of, difference, drawn_again
from roundlog.capture.python_state.followed_places import (
    REMEDY,
    Grown,
    Hidden,
    MoreStateError,
    Place,
    StepEnd,
    carried,
    refuse_reads,
)
from roundlog.capture.python_state.replaced_builtins import LoggedNumber, is_logged
from roundlog.capture.python_state.snapshot import Snapshot
from roundlog.capture.tracing.traced_step import MOST_STEPS, NUMBERS, JobSteps, TracedStep

if TYPE_CHECKING:
    from roundlog.capture.tracing.trace import Tracer

_NUMBER = (
    "; a number may be printed by a statement of its own, print(f'{step}'), and be given to operators of tensors as it "
    "is, without int() and float()"
)
"""Advice, for refusals."""

_NOT_THE_SAME = "the step is not the same from one time to the next"


class LaterSteps:
    """The steps of a task after its first one."""

    def __init__(
        self, steps: int, tracer: Tracer, snapshot: Snapshot, own: Collection[str], after_one: AfterOne
    ) -> None:
        """steps: of the task. snapshot: everything, as it stands after the first step. own: names of the numbers that
        the optimizer and its schedule change by themselves. after_one: what the first step has changed."""
        self._after_one = after_one
        self._steps = steps
        self._tracer = tracer
        self._snapshot = snapshot
        # No value itself: what is found to hold a list is taken for code that may read it.
        every = [
            (container.name_of(key), Place(container, key), _is_number(value))
            for container in snapshot.containers
            for key, value in container.saved.items()
        ]
        self._own = [place for name, place, is_number in every if is_number and name in own]
        theirs = [phase.called("optimizer") for phase in tracer.optimizers.phases if not is_own(phase.optimizer)]
        self._changed_elsewhere = tuple(f"{name}." for name in theirs)
        states = {f"{name}.state" for name in theirs}
        self._hidden = [place for name, place, _ in every if name in states]
        """Places of the optimizers' states."""
        self._rates = {name: place for name, place, _ in every if name in tracer.optimizers.rates}
        self._counted = dict(self._rates)
        """The numbers that steps change, by name."""
        self._logged: dict[str, Place] = {}
        """The numbers that steps compute from their values, by name."""
        for name, place, is_number in every:
            if is_number and name in after_one.unsteady:
                self._logged[self._unused(name)] = place
        self._growing = {
            container.path: self._places_of(container.list)
            for container in snapshot.containers
            if container.list is not None and container.path in after_one.grown
        }
        """Places of the lists that steps make longer, by name."""
        if held := [path for path, places in self._growing.items() if not places]:
            raise CaptureError(f"every step changes {held[0]}: {REMEDY}")
        self._alike: dict[str, str] = {}
        """Number -> one that is the same at every step, as the counts are that an optimizer has of its parameters."""
        self._apart: set[str] = set()
        """Numbers that are not what others of their name are."""
        self._ended = StepEnd()
        self._read: set[int] = set()
        """Ids of the tensors that steps read as constants."""
        self._unread: list[Change] = []
        """Changes of tensors that no step has read by now."""

    def followed(self, first: TracedStep) -> JobSteps:
        """All steps of the task. first: its first one, which is traced already. Raises CaptureError for one that
        cannot be followed, MoreStateError for tensors that have to be part of the state."""
        try:
            self._gradients = first.gradients
            while (found := self._follows(first.graph)) is None:  # a number that has been found may decide about others
                pass
            return found
        except CaptureError as error:
            stepped = self._tracer.optimizers.stepped
            if stepped is None or ".state[" not in str(error):
                raise
            raise CaptureError(
                f"the loss takes a step of an optimizer{stepped}: give the task several optimizers with a "
                "loss each, which take their steps in turn (optimizer=[a, b], loss=[of_a, of_b])"
            ) from error

    def _follows(self, first: fx.GraphModule) -> JobSteps | None:
        """As `_follow`; a number that becomes another by the values of a step comes from them."""
        try:
            return self._follow(first)
        except DependsOnValuesError as error:
            self._logged |= {name: self._counted.pop(name) for name in error.names}
            return None

    def _follow(self, first: fx.GraphModule) -> JobSteps | None:
        """All steps, if they could be followed; otherwise more numbers have been found."""
        self._read, self._unread = set(), []
        numbers: dict[str, Number] = {name: place.first for name, place in self._counted.items()} | self._rates_at(1)
        keys = {name: (_name_in(name), repr(number)) for name, number in numbers.items() if name not in self._apart}
        first_of = {key: name for name, key in reversed(keys.items())}
        self._alike = {name: first_of[keys[name]] if name in keys else name for name in numbers}
        paths: list[Paths] = []
        graphs, graph_of_path = [first], []
        last = max(2, self._steps) - 1
        which = np.zeros(last + 1, dtype=np.int64)
        given = np.zeros((last + 1, NUMBERS))
        taken: dict[int, tuple[int, dict[str, Number]]] = {}  # number of a path -> last step on it, and its numbers
        for step in range(1, last + 1):
            before = numbers
            number, found = next(
                ((n, f) for n, path in enumerate(paths) if (f := path.following(before)) is not None),
                (len(paths), None),
            )
            if found is None:
                if len(paths) == MOST_STEPS:
                    asked = _words(name for path in paths for name in path.asked) or _words(numbers)
                    raise CaptureError(
                        f"the step depends on {asked}, which steps change, in more than {MOST_STEPS} ways: {REMEDY}"
                        f"{_NUMBER}"
                    )
                known = self._apart | self._tracer.histories.names
                path, graph = self._trace(numbers)
                if self._apart | self._tracer.histories.names != known:
                    return None
                if self._find_logged():  # first, since a step that uses one is told so by its name
                    return None
                if self._find(graph):
                    return None
                if again := drawn_again(first, graph):
                    raise CaptureError(f"{_NOT_THE_SAME}: at step {step} {again}: {REMEDY}")
                paths.append(path)
                graph_of_path.append(self._number_of(graphs, graph))
                self._refuse_left_behind(first, graph, step, is_first=not graph_of_path[-1])
                found = path.following(numbers)
                if found is None:
                    raise CaptureError(f"the step depends on {_words(numbers)}, which steps change: {REMEDY}{_NUMBER}")
            numbers, columns = found[0] | self._rates_at(step + 1), found[1]
            which[step] = graph_of_path[number]
            given[step, : len(columns)] = columns
            taken[number] = step, before
        # A counter is not a number in every respect, and a step may depend on what nobody sees (the time, say): each
        # path is traced once more, with the numbers themselves of another step.
        plain: list[tuple[int, fx.GraphModule]] = []
        for number, (step, before) in taken.items():
            if not self._counted and not graph_of_path[number]:
                continue  # the first step, and one after it, are two traces already
            graph = self._trace(before, plainly=True)[1]
            if paths[number].uses_columns:
                plain += [(step, graph)] if step < self._steps else []
            else:
                self._compare(graphs[which[step]], graph, step, self._counted)
            self._tracer.optimizers.confirm_factors()
        return JobSteps(tuple(graphs), which[: self._steps], given[: self._steps], tuple(plain))

    def _rates_at(self, step: int) -> dict[str, Number]:
        """The learning rates that optimizers of the user's read at a step."""
        return {name: self._tracer.optimizers.rates[name](min(step, self._steps - 1)) for name in self._rates}

    def _number_of(self, graphs: list[fx.GraphModule], graph: fx.GraphModule) -> int:
        """Number of a graph among graphs that differ from each other. A new one is put at their end."""
        for number, other in enumerate(graphs):
            if difference(other, graph) is None:
                return number
        graphs.append(graph)
        return len(graphs) - 1

    def _is_carried(self, change: Change) -> bool:
        """Whether a change is one of tensors that are part of the state, in the same form as before."""
        one = self._tracer.carried_as(change.before)
        if one is None:
            return False
        one.leaves(change.after)  # which refuses another form
        pairs = zip(one.others(change.before), one.others(change.after), strict=True)
        return all(Likeness((), ()).between(*pair) for pair in pairs)

    def _refuse_left_behind(self, first: fx.GraphModule, graph: fx.GraphModule, step: int, *, is_first: bool) -> None:
        """Raises MoreStateError for tensors that the first step has made and a later one reads, or that only a later
        one writes into, and CaptureError if they cannot be states. is_first: whether both graphs compute the same."""
        followed = {id(tensor) for tensor in self._tracer.originals.values()}
        held = self._after_one.found_by(graph, followed, self._tracer.used, self._snapshot)
        constants = constants_of(first) if held.read else frozenset[str]()
        read = [tensor for tensor in held.read if digest_of(tensor) not in constants]  # made of other things
        if read:
            found = [self._after_one.holding(tensor) for tensor in read]
            made = [change for change in found if change is not None and carried(change) is not None]
            sentence = f"{_NOT_THE_SAME}: at step {step} it reads a tensor that the first step has made: {REMEDY}"
            raise MoreStateError(sentence, made) if len(made) == len(found) else CaptureError(sentence)
        if held.written:
            raise MoreStateError(f"{_NOT_THE_SAME}: it writes into {min(held.written)}", tensors=held.written)
        if self._after_one.unlike and not is_first:
            raise CaptureError(
                f"{_NOT_THE_SAME}: the first step leaves {min(self._after_one.unlike)}, which is another every time: "
                f"{REMEDY}"
            )

    def _compare(self, one: fx.GraphModule, graph: fx.GraphModule, step: int, changed: Iterable[str]) -> None:
        if (found := difference(one, graph)) is not None:
            names = _words(changed)
            raise CaptureError(
                f"{_NOT_THE_SAME}: at step {step} {found}"
                + (f"; a step changes {names}" if names else "")
                + f": {REMEDY}"
            )

    def _trace(
        self, numbers: Mapping[str, Number], plainly: bool = False, *, again: bool = False
    ) -> tuple[Paths, fx.GraphModule]:
        """A step that begins with these numbers. plainly: with the numbers themselves, so that the paths are empty.
        again: a generator of random numbers moved the first time."""
        paths, own = Paths(), Path()
        hidden = {place.name: Hidden() for place in self._hidden}
        grown = {name: Grown() for name in self._growing}
        self._ended = StepEnd()

        def begin() -> Path:
            path = paths.begin()
            self._snapshot.restore()
            self._tracer.histories.put(self._snapshot.containers, self._tracer.originals)
            for name, place in self._counted.items():
                place.put(numbers[name] if plainly else path.given(self._alike[name], numbers[name]))
            for name, place in self._logged.items():
                place.put(LoggedNumber(name))
            for place in self._own:
                place.put(Counter.named(own, place.name, place.first))
            for place in self._hidden:
                place.put(hidden[place.name])
            for name, places in self._growing.items():
                for place in places:
                    place.put(grown[name])
            return path

        def end() -> None:
            self._ended.add(self._snapshot)
            for name, place in self._counted.items():
                left = place.get()
                if is_logged(left):
                    self._ended.logged.append(name)
                    if not plainly:
                        continue  # `_find_logged` sees it, and no step follows this path
                if type(left) is not Counter and not _is_number(left):
                    self._ended.wrong.append(f"a step leaves {a_kind(left)} in {name}, where a number was: {REMEDY}")
                elif name in self._rates and value_of(left) != numbers[name]:
                    self._ended.wrong.append(f"a step changes {name}: change it by the task's schedule")
                paths.leave(name, term_of(left))

        try:
            traced = self._tracer.trace(begin, end)
            graph = traced.graph
            refuse_reads(hidden, grown)  # the code that reads may have caught the error
        except CaptureError as error:
            refuse_reads(hidden, grown)
            names = _words([*own.asked, *self._counted, *(place.name for place in self._own)])
            cannot = type(error) is UnknownValueError and "PyTorch cannot trace" in str(error)
            if cannot and self._counted and not plainly and self._is_traced(numbers):
                raise CaptureError(
                    f"the step gives {names}, which steps change, to something that takes plain ones alone ({error}): "
                    "compute with numbers by Python's operators, math and numpy, and give them to operators of tensors"
                ) from error
            if Counter.__name__ not in str(error):
                raise
            raise CaptureError(f"the step makes tensors of {names}, which steps change: {REMEDY}") from error
        if uneven := set(self._gradients).symmetric_difference(traced.gradients):
            raise CaptureError(
                f"{min(uneven)} has a gradient at some steps and none at others, which optimizers tell apart: compute "
                "with it at every step, and choose by a factor of 0 or 1"
            )
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
        self._tracer.histories.refuse()
        self._apart |= set() if plainly else paths.apart(self._alike)
        return paths, graph

    def _is_traced(self, numbers: Mapping[str, Number]) -> bool:
        """Whether a step can be traced with these numbers themselves."""
        try:
            self._trace(numbers, plainly=True)
        except CaptureError:
            return False
        return True

    def _find(self, graph: fx.GraphModule) -> bool:
        """Whether there are numbers that a step changes and that are not counted yet. Raises CaptureError for other
        changes that a later step may depend on."""
        if toggled := self._ended.toggled:
            raise CaptureError(
                f"a step changes whether {toggled[0]} requires a gradient: freeze before the first step, or undo it"
            )
        self._snapshot.refuse_advanced()
        if arrays := self._ended.arrays:
            raise CaptureError(f"every step changes {arrays[0]}, an array of numpy's: {REMEDY}")
        attributes = [getattr(graph, str(node.target)) for node in graph.graph.nodes if node.op == "get_attr"]
        self._read |= {id(attribute) for attribute in attributes} | self._tracer.used
        seen = self._snapshot.seen()
        growing = (place for found in self._growing.values() for place in found)
        places = [*self._counted.values(), *self._logged.values(), *self._own, *self._hidden, *growing]
        known = {place.location for place in places}
        before = len(self._counted) + len(self._growing)
        # A thing that a step puts somewhere is no change as long as no step reads it, and a later one may.
        changes, self._unread = (*self._unread, *self._ended.changes), []
        for change in changes:
            if change.location in known:
                continue
            if self._tracer.follows(change.before) and not self._after_one.has_put(change):
                continue
            if self._changed_elsewhere and change.name.startswith(self._changed_elsewhere):
                raise CaptureError(f"a step changes {change.name}: change it by the task's schedule")
            if _is_number(change.before) and (_is_number(change.after) or type(change.after) is Counter):
                self._counted[self._unused(change.name)] = Place(change.container, change.key)
                known.add(change.location)
            elif change.before is MISSING and (places := self._places_of(change.container.list)):
                self._growing[change.container.path] = places
            elif self._is_carried(change):
                continue
            elif Likeness(self._read, seen).between(change.before, change.after):
                self._unread.append(change)
            else:
                made = self._after_one.change_of(change)
                sentence = f"every step changes {_described(change)}: {REMEDY}"
                raise MoreStateError(sentence, [made]) if made and carried(made) else CaptureError(sentence)
        return len(self._counted) + len(self._growing) != before

    def _find_logged(self) -> bool:
        """Whether there are numbers that a step has computed from its values, and that were not known to be such."""
        logged = {name: place for name, place in self._counted.items() if name in self._ended.logged}
        self._counted = {name: place for name, place in self._counted.items() if name not in logged}
        known = {place.location for place in (*self._logged.values(), *logged.values())}
        self._logged |= logged
        for change in self._ended.changes:
            new = change.location not in known and is_logged(change.after)
            if new and _is_number(change.before):
                known.add(change.location)
                logged[change.name] = self._logged[self._unused(change.name)] = Place(change.container, change.key)
        return bool(logged)

    def _places_of(self, thing: object) -> list[Place]:
        """Places of a list; none if it is not an ordinary one, or if something else holds it, which may read it."""
        holders = [holder for holder in gc.get_referrers(thing) if type(holder) in _HOLDERS]
        # (list, thing) are the arguments of what puts it back.
        if any(type(holder) is not tuple or holder[0] is not list for holder in holders):
            return []
        return [
            Place(container, key)
            for container in self._snapshot.containers
            for key, value in container.saved.items()
            if value is thing and type(value) is list
        ]

    def _unused(self, name: str) -> str:
        while name in self._counted or name in self._logged:
            name += "'"
        return name


def _is_number(thing: object) -> bool:
    return is_a(thing, (int, float)) and type(thing).__module__ == "builtins"


def _name_in(name: str) -> str:
    """A name as messages have it: the same one for things of several containers that are called the same."""
    return name.rstrip("'")


def _words(names: Iterable[str]) -> str:
    return ", ".join(list(dict.fromkeys(map(_name_in, names)))[:3])


def _described(change: Change) -> str:
    if change.before is None or change.before is MISSING:
        is_tensor = is_a(change.after, torch.Tensor)
        kind = "a number" if is_logged(change.after) else "a tensor" if is_tensor else a_kind(change.after)
        return f"{change.name} (nothing before, then {kind})"
    return change.name


_HOLDERS = (tuple, types.MethodType, types.BuiltinMethodType)
