"""Snapshot of all that the Python code of a training step can reach: tensors, arrays, containers, generators, saved and
put back.

A model, a loss and their hooks are ordinary Python: they keep tensors in attributes, lists and closures, count calls,
draw from generators. Capture runs that code, so it has to know what the code changes, and to leave it as it was."""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds
from torch.utils._pytree import tree_flatten

from roundlog.capture.draws import GENERATOR, generator_key
from roundlog.capture.errors import CaptureError, reason
from roundlog.capture.python_state.containers import Change, Container
from roundlog.capture.python_state.replaced_builtins import Variable
from roundlog.capture.python_state.stateful_objects import Array, Cache, Position, RandomGenerator
from roundlog.capture.python_state.walk import Walk
from roundlog.capture.task import Task
from roundlog.data import reach


def snapshot_of(task: Task) -> Snapshot:
    """Snapshot of all that a task's step can reach."""
    roots: dict[str, object] = {"model": task.model}
    for part in ("loss", "optimizer", "schedule"):
        roots |= {phase.called(part): getattr(phase, part) for phase in task.phases()}
    roots |= {} if task.of_batch is None else {"of_batch": task.of_batch}
    roots["os.environ"] = os.environ
    named = dict(roots)
    for phase in task.phases():
        groups = getattr(phase.optimizer, "param_groups", [])  # what is no optimizer is refused later, by its name
        # Wherever else they are found first: a loss may read the optimizer.
        name = f"{phase.called('optimizer')}.param_groups"
        named |= {name: groups, **{f"{name}[{number}]": group for number, group in enumerate(groups)}}
    return Snapshot(roots, {id(thing): name for name, thing in named.items()})


class Snapshot:
    """Snapshot of all that can be reached from some roots. As a context manager it puts everything back at the end:
    containers, what arrays hold, the memory that tensors have, their gradients, and the states of generators."""

    def __init__(self, roots: Mapping[str, object], names: Mapping[int, str] | None = None) -> None:
        """roots: name in messages -> object. names: id of an object -> its name, wherever it is found first."""
        walk = Walk(names or {})
        walk.generators += [
            RandomGenerator("", torch.get_rng_state, torch.set_rng_state),
            RandomGenerator("", GENERATOR.get_state, GENERATOR.set_state, generator_key(GENERATOR)),
            RandomGenerator("Python's random", random.getstate, random.setstate),
            RandomGenerator("numpy.random", np.random.get_state, np.random.set_state),
        ]
        for name, root in roots.items():
            walk.add(name, root)
        self.tensors = walk.tensors
        """id -> (name, tensor)."""
        self.containers = walk.containers
        self._walk = walk  # also keeps alive what was seen, so that ids stay their own
        self._advanced: list[Position] = []
        self._memory = {id(t): (t, t.data, t.grad if t.is_leaf else None) for _, t in self.tensors.values()}
        self._trained = {id(t): t.requires_grad for _, t in self.tensors.values() if t.is_leaf}

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Put everything back, memory first. Raises CaptureError, once the rest stands, for what cannot be."""
        for tensor, data, gradient in self._memory.values():
            tensor.data = data
            if tensor.is_leaf:
                tensor.grad = gradient
                tensor.requires_grad_(self._trained.get(id(tensor), tensor.requires_grad))
        # By the next step, an iterator that goes round may look as if nobody had asked it.
        self._advanced += [position for position in self._walk.positions if position.has_moved()]
        failed: list[tuple[str, Exception]] = []
        things: list[RandomGenerator | Array | Cache | Container] = [*self._walk.generators, *self._walk.arrays]
        for thing in [*things, *self._walk.caches, *self.containers]:
            try:
                thing.put_back()
            except Exception as error:  # whatever a class of the user's does
                failed.append((thing.path or "a variable", error))
        if failed:
            path, cause = failed[0]
            raise CaptureError(f"{path} cannot be put back as it was before capture: {reason(cause)}") from cause

    def toggled(self) -> list[str]:
        """Names of the tensors that require a gradient though they did not, or the other way round."""
        leaves = [(name, tensor) for name, tensor in self.tensors.values() if tensor.is_leaf]
        return [name for name, tensor in leaves if tensor.requires_grad != self._trained.get(id(tensor), False)]

    def seen(self) -> Collection[int]:
        """The ids of everything that was there when this was made."""
        return self._walk.seen()

    def asking_for_types(self) -> Collection[dict[str, Any]]:
        """Global variables of the modules of the user's in which a function names `type`."""
        return self._walk.asking.values()

    def functions(self) -> Collection[Variable]:
        """Global variables of the user's that hold functions of `math`."""
        return self._walk.functions

    def generator_states(self) -> dict[int, torch.Tensor]:
        """The states of torch's generators of random numbers, by `generator_key`."""
        return {generator.key: generator.state() for generator in self._walk.generators if not generator.path}

    def moved_generators(self) -> list[str]:
        """Generators of random numbers, but for torch's, that are in another state than before."""
        return [generator.path for generator in self._walk.generators if generator.path and generator.has_moved()]

    def refuse_advanced(self) -> None:
        """Raises CaptureError for an iterator that has given an item since this was made: it cannot be wound back."""
        advanced = [*self._advanced, *(position for position in self._walk.positions if position.has_moved())]
        if advanced:
            path, kind = advanced[0].path, type(advanced[0].iterator).__name__
            raise CaptureError(
                f"the step takes from {path}, an iterator ({kind}) that cannot be wound back: keep what it gives in a "
                "tensor before training, or give it by the batch"
            )

    def changed_arrays(self) -> list[str]:
        """Arrays of numpy's that hold other values than when this was made, by name. Raises CaptureError for one that
        shares its memory with a tensor."""
        changed = [array for array in self._walk.arrays if array.has_changed()]
        _refuse_overlap(changed, ((name, self._memory[number][1]) for number, (name, _) in self.tensors.items()))
        return [array.path for array in changed]

    def refuse_views(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Raises CaptureError for an array of numpy's that shares its memory with one of these tensors, and for another
        tensor that does though PyTorch does not know of it."""
        known = {name: self._memory[id(tensor)][1] for name, tensor in tensors.items() if id(tensor) in self._memory}
        _refuse_overlap(self._walk.arrays, known.items())
        self._refuse_second_storages({_storage(data): name for name, data in known.items()})

    def _refuse_second_storages(self, names: Mapping[int, str]) -> None:
        """names: storage -> name of a tensor in it."""
        memory = ((number, data) for number, (_, data, _) in self._memory.items())
        spans = sorted((*_span(data), _storage(data), self.tensors[number][0]) for number, data in memory)
        reached, before, path_before = 0, 0, ""
        for first, end, storage, path in spans:
            if first < reached and storage != before and (storage in names or before in names):
                both = sorted({before: path_before, storage: path}.items(), key=lambda item: item[0] not in names)
                one, two = (names.get(key, name) for key, name in both)
                raise CaptureError(
                    f"{one} and {two} share memory without PyTorch's knowing: make one a view of the other "
                    "(.detach()), or a copy (.clone())"
                )
            if end > reached:
                reached, before, path_before = end, storage, path

    def is_in_array(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of an array of numpy's that can be reached."""
        first, end = _span(tensor)
        bounds = (byte_bounds(array.array) for array in self._walk.arrays)
        return any(low < end and first < high for low, high in bounds)

    def move(self, dtype: torch.dtype | None = None, values: Mapping[int, torch.Tensor] | None = None) -> None:
        """Give every tensor memory of its own, so that what is written from now on can be undone. Tensors that share
        memory go on doing so. dtype: that of FP32 tensors from now on. values: id of a tensor -> what it holds from
        now on. Gradients are dropped."""
        copies: dict[int, torch.Tensor] = {}
        for tensor, data, _ in self._memory.values():
            kind = dtype if dtype is not None and data.dtype == torch.float32 else data.dtype
            storage = data.untyped_storage()
            if storage._cdata not in copies:
                whole = torch.empty(0, dtype=data.dtype, device=data.device).set_(storage)
                copies[storage._cdata] = whole.to(kind, copy=True)
            own = copies[storage._cdata]
            if own.dtype == kind:
                moved = own.as_strided(data.size(), data.stride(), data.storage_offset())
                # The memory of a lazy tensor holds the numbers before they are negated, or conjugated.
                moved = torch._neg_view(moved) if data.is_neg() else moved
                tensor.data = moved.conj() if data.is_conj() else moved
            else:  # one memory, seen in two dtypes
                tensor.data = data.to(kind, copy=True)
        self.drop_gradients()
        for number, value in (values or {}).items():
            self._memory[number][0].data.copy_(value)

    def drop_gradients(self) -> None:
        """Leave no gradient anywhere."""
        for tensor, _, _ in self._memory.values():
            if tensor.is_leaf:
                tensor.grad = None

    def put_back(self, tensors: Iterable[torch.Tensor]) -> None:
        """Have these tensors stand again where they stood, and leave everything else as it is."""
        theirs = {id(tensor) for tensor in tensors}
        for change in self.changes():
            if id(change.before) in theirs:
                change.container.put(change.key, change.before)

    def now(self, tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
        """id of a tensor -> the one that stands in its place by now."""
        replaced: dict[int, torch.Tensor] = {}
        for change in self.changes():
            before, after = tree_flatten(change.before), tree_flatten(change.after)
            if before[1] == after[1]:  # a tensor, or tuples, lists and dictionaries of the same form
                replaced.update((id(one), two) for one, two in zip(before[0], after[0], strict=True))
        return {id(tensor): replaced.get(id(tensor), tensor) for tensor in tensors}

    def changes(self) -> list[Change]:
        """Items that are other objects than before."""
        return [change for container in self.containers for change in container.changes()]

    def written(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors that hold other values than when this was made, by name: what has been written into them."""
        return [
            (name, tensor)
            for name, tensor in self.tensors.values()
            if not _equal_values(tensor.detach(), self._memory[id(tensor)][1])
        ]


def _refuse_overlap(arrays: Collection[Array], tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    spans = [(name, *_span(tensor)) for name, tensor in tensors] if arrays else []
    for array in arrays:
        low, high = byte_bounds(array.array)
        for name, first, end in spans:
            if low < end and first < high:
                raise CaptureError(
                    f"{array.path} is a numpy view of {name}: capture does not see what numpy reads and writes, so "
                    "use the tensor itself in the step, or make the array a copy (.copy())"
                )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Begin and end of a tensor's memory; (0, 0) if no array can lie there."""
    if tensor.layout != torch.strided or not tensor.numel() or tensor.device.type != "cpu":
        return 0, 0
    return tensor.data_ptr(), tensor.data_ptr() + (reach(tensor) + 1) * tensor.element_size()


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _equal_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    same_type = a.shape == b.shape and a.dtype == b.dtype
    return same_type and bool(((a == b) | ((a != a) & (b != b))).all())
