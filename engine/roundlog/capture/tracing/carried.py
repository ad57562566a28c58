"""State that stands in no tensor of its own from the start: what is None, or is not there, before the first step, and
tuples, lists and dictionaries of tensors, which a step puts where others stood.

Its tensors become states of the program. Where there are none before the first step, they start as zeros, which the
first step does not read: it is traced as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, keystr, tree_flatten, tree_flatten_with_path

from roundlog.capture.errors import CaptureError
from roundlog.capture.task import STORED
from roundlog.capture.tracing.containers import MISSING, Change, Container, Location, is_a
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
