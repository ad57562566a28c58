"""Tensors that a step leaves, as the objects of the user's that they are: objects may share memory, and carry a history
of gradients. States of a program do neither."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from roundlog.capture.constants import written
from roundlog.capture.errors import CaptureError
from roundlog.capture.tracing.containers import Container, is_a


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
