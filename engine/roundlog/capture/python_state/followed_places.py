"""Places in Python's objects that are followed from step to step, what stands in for their contents while a step is
traced, and what a traced step leaves, tensors among it.

State may stand in no tensor of its own from the start: what is None, or is not there, before the first step, and
tuples, lists and dictionaries of tensors, which a step puts where others stood. Its tensors become states of the
program. Where there are none before the first step, they start as zeros, which the first step does not read: it is
traced as it is.

What a step leaves may share memory, and carry a history of gradients. States of a program do neither."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec, keystr, tree_flatten, tree_flatten_with_path, tree_leaves, tree_map

from roundlog.capture.constants import written
from roundlog.capture.errors import CaptureError
from roundlog.capture.python_state.containers import MISSING, Change, Container, ContainerItem, Location, is_a
from roundlog.capture.python_state.counters import Number
from roundlog.capture.python_state.snapshot import Snapshot
from roundlog.capture.task import STORED
from roundlog.data import is_lazy_view


class MoreStateError(CaptureError):
    """Steps depend on tensors that have to be part of the state."""

    def __init__(
        self, sentence: str, changes: Sequence[Change] = (), tensors: Mapping[str, torch.Tensor] | None = None
    ):
        """changes: what steps put where something else stood. tensors: what they write into, by name."""
        super().__init__(sentence)
        self.changes = changes
        self.tensors = {} if tensors is None else tensors


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """A place whose tensors each step leaves to the next."""

    name: str
    container: Container
    key: Any
    before: Any
    """Content of the place before the first step."""
    spec: TreeSpec
    tensors: dict[int, str]
    """Number of a leaf that is a tensor -> name of the state."""
    start: dict[str, torch.Tensor]
    """The states before the first step."""
    is_new: bool
    """Whether there is no such state before the first step."""

    @property
    def location(self) -> Location:
        return self.container.location_of(self.key)

    def leaves(self, thing: Any) -> dict[str, torch.Tensor]:
        """Tensors of what a step has left here, by name of the state. Raises CaptureError for another form of it."""
        leaves, spec = tree_flatten(thing)
        if spec != self.spec or not all(is_a(leaves[place], torch.Tensor) for place in self.tensors):
            raise CaptureError(
                f"steps leave something of another form in {self.name} than the first one: give it the same tensors, "
                "of the same shapes, at every step"
            )
        return {name: leaves[place] for place, name in self.tensors.items()}

    def others(self, thing: Any) -> list[Any]:
        """The leaves that are no tensors."""
        return [leaf for place, leaf in enumerate(tree_flatten(thing)[0]) if place not in self.tensors]


def carried(change: Change, parameters: Mapping[int, str] | None = None) -> Carried | None:
    """Place of a change that a step makes, where later steps find its tensors; None if there are none, or it is a list
    that grows. parameters: id -> name, of those that the places of an optimizer's state are named by."""
    if change.before is MISSING and change.container.list is not None:
        return None
    found, spec = tree_flatten_with_path(change.after)
    place = (parameters or {}).get(id(change.key))
    name = f"attribute/{change.name if place is None else f'{change.container.path}[{place}]'}"
    tensors = {
        place: (name + keystr(path), leaf) for place, (path, leaf) in enumerate(found) if is_a(leaf, torch.Tensor)
    }
    if not tensors or any(leaf.dtype not in STORED or is_lazy_view(leaf) for _, leaf in tensors.values()):
        return None
    before, old = tree_flatten(change.before)
    kept = old == spec and all(_alike(before[place], leaf) for place, (_, leaf) in tensors.items())
    start = {
        name: before[place].detach() if kept else torch.zeros(leaf.shape, dtype=leaf.dtype)
        for place, (name, leaf) in tensors.items()
    }
    names = {place: name for place, (name, _) in tensors.items()}
    shown = name.removeprefix("attribute/")
    return Carried(shown, change.container, change.key, change.before, spec, names, start, is_new=not kept)


def _alike(one: Any, two: torch.Tensor) -> bool:
    return is_a(one, torch.Tensor) and (one.shape, one.dtype) == (two.shape, two.dtype) and not is_lazy_view(one)


def tensors_in(thing: Any) -> list[torch.Tensor]:
    """Tensors of a tuple, list or dictionary, and of what is in it; or the one tensor itself."""
    return [leaf for leaf in tree_flatten(thing)[0] if is_a(leaf, torch.Tensor)]


class SharedMemory:
    """States that share memory after a step, over all traced steps of a job."""

    def __init__(self, trained: Iterable[str]) -> None:
        """trained: names of the states that an optimizer writes into."""
        self._together: set[frozenset[str]] = set()
        self._written = set(trained)
        self._read: set[str] = set()

    def add_tensors(self, tensors: Mapping[str, torch.Tensor], clipped: Mapping[str, torch.Tensor]) -> None:
        """The end of one path. tensors: what stands for every state, in the trace. clipped: gradients that are clipped
        in place afterwards."""
        names: dict[int, set[str]] = {}
        for name, tensor in (*tensors.items(), *clipped.items()):
            if tensor.numel():
                names.setdefault(tensor.untyped_storage()._cdata, set()).add(name)
        self._together |= {frozenset(several) for several in names.values() if len(several) > 1}
        self._written |= clipped.keys()

    def add_graph(self, graph: fx.Graph, states: Iterable[str]) -> None:
        """A path's graph. states: names of its first placeholders."""
        changing = written(graph)
        for node, name in zip(graph.nodes, states, strict=False):
            if any(user.op != "output" for user in node.users):
                self._read.add(name)
            if node in changing:
                self._written.add(name)

    def refuse(self) -> None:
        """Raises CaptureError for a state that steps read, and that changes with another one, which they write into."""
        for several in sorted(map(sorted, self._together)):
            for name in several:
                others = [other for other in several if other != name and other in self._written]
                if name in self._read and others and name.startswith(("attribute/", "buffer/")):
                    raise CaptureError(shared(name.partition("/")[2], others[0]))


def shared(name: str, other: str) -> str:
    """Refusal of what is kept in a place and is no copy. other: name of the state that it shares memory with."""
    other = other.partition("/")[2] or other
    return f"what a step keeps in {name} shares memory with {other}, which changes under it: keep a copy (.clone())"


class Histories:
    """Tensors of the state that steps leave with a history of gradients. The step after them may differentiate through
    it: PyTorch then fails, or adds to gradients what no program would."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.reached: set[str] = set()
        """Names of those that a step has differentiated."""

    def put(self, containers: Collection[Container], originals: Mapping[str, torch.Tensor]) -> None:
        """Have tensors with a history stand where such tensors of the user's, by name, do."""
        if not self.names:
            return
        found = {id(originals[name]): self._with_history(name, originals[name]) for name in self.names}

        def replaced(thing: Any) -> Any:
            return found.get(id(thing), thing)

        for container in containers:
            for key, item in container.saved.items():
                # A tuple of other things stays the one that it is: another one would be a change.
                if any(id(leaf) in found for leaf in (tree_leaves(item) if is_a(item, tuple) else (item,))):
                    container.put(key, tree_map(replaced, item) if is_a(item, tuple) else replaced(item))

    def _with_history(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in the same memory, computed from others."""
        with torch.enable_grad():
            found = tensor.detach().clone().requires_grad_() * 1
        found.register_hook(lambda gradient: self.reached.add(name))
        found.data = tensor.data
        return found

    def refuse(self) -> None:
        """Raises CaptureError for one that a step has differentiated."""
        if self.reached:
            raise CaptureError(
                f"a step keeps {min(self.reached).partition('/')[2]} with its history of gradients, and the next one "
                "differentiates through it: keep it without (.detach())"
            )


REMEDY = (
    "keep what steps change in buffers that hold tensors from the start, draw random numbers by torch, and print and "
    "log outside of the step"
)
_COUNT = "; a count that the step prints may stand in a tensor (count.add_(1), print(count.item()))"
"""Advice, for refusals."""


class _Unread:
    """Stands in for something that a step may not read, while it is traced, and notices when it is read."""

    is_read = False

    def _noticed(self, *arguments: Any, **options: Any) -> Any:
        self.is_read = True
        raise CaptureError("the step reads what it may not")  # replaced by the sentence of `_trace`


class Grown(_Unread, list[Any]):
    """A list that steps make longer."""

    _noticed = _Unread._noticed
    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __reversed__ = _noticed
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __mul__ = __rmul__ = __str__ = __repr__ = _noticed
    pop = remove = clear = index = count = copy = sort = reverse = insert = _noticed


class Hidden(_Unread, dict[Any, Any]):
    """The state of an optimizer."""

    _noticed = _Unread._noticed
    __len__ = __iter__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __reversed__ = _noticed
    get = keys = values = items = pop = popitem = setdefault = copy = update = clear = _noticed


def refuse_reads(hidden: Mapping[str, Hidden], grown: Mapping[str, Grown]) -> None:
    """Raises CaptureError if one of these has been read."""
    if states := [name for name in hidden if hidden[name].is_read]:
        raise CaptureError(f"the step reads {states[0]}, which every step changes: keep what the step needs in buffers")
    if read := [name for name in grown if grown[name].is_read]:
        raise CaptureError(f"the step reads {read[0]}, which every step makes longer: {REMEDY}{_COUNT}")


@dataclass(frozen=True, slots=True)
class Place(ContainerItem):
    """Place of a number."""

    @property
    def first(self) -> Number:
        """The number before the second step."""
        number: Number = self.container.saved[self.key]
        return number

    def get(self) -> Any:
        return self.container.read().get(self.key)

    def put(self, number: object) -> None:
        self.container.put(self.key, number)


@dataclass(slots=True)
class StepEnd:
    """Things that a traced step has left, on any of its paths."""

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

    def add(self, snapshot: Snapshot) -> None:
        """The end of one path."""
        self.changes += snapshot.changes()
        self.moved += snapshot.moved_generators()
        self.toggled += snapshot.toggled()
        self.arrays += snapshot.changed_arrays()
