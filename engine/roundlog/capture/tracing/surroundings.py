"""Everything that the Python code of a training step can reach: tensors, containers and generators, saved and put back.

A model, a loss and their hooks are ordinary Python: they keep tensors in attributes, lists and closures, count calls,
draw from generators. Capture runs that code, so it has to know what the code changes, and to leave it as it was."""

from __future__ import annotations

import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from roundlog.capture.errors import CaptureError
from roundlog.capture.lines import LIBRARIES

_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """A Python object that holds others, and what it held when it was first looked at."""

    path: str
    read: Callable[[], dict[Any, Any]]
    """Its items now."""
    restore: Callable[[dict[Any, Any]], None]
    saved: dict[Any, Any]
    list: object = None
    """The list itself, if it is one."""

    def name_of(self, key: Any) -> str:
        """`model.layer.h`: an item in the user's words."""
        if isinstance(key, str) and key.isidentifier():
            return f"{self.path}.{key}" if self.path else key
        shown = repr(key) if isinstance(key, (str, int, bool, tuple)) else type(key).__name__
        return f"{self.path}[{shown}]"[:200]


@dataclass(frozen=True, slots=True)
class Change:
    """An item of a container that is another object than before."""

    container: Container
    key: Any
    before: Any
    """None where there was nothing."""
    after: Any

    @property
    def name(self) -> str:
        return self.container.name_of(self.key)


class _Generator:
    """A generator of random numbers, as it was when it was first looked at."""

    def __init__(self, name: str, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        """name: in messages; empty for those of torch, whose numbers become the program's own."""
        self.name = name
        self._read, self._write = read, write
        self._saved = read()

    def put_back(self) -> None:
        self._write(self._saved)

    def state(self) -> Any:
        return self._read()

    def has_moved(self) -> bool:
        return str(self._read()) != str(self._saved)


class Surroundings:
    """What can be reached from some roots, as it was when this was made. As a context manager it puts everything back
    at the end: containers, the memory that tensors have, their gradients, and the states of generators."""

    def __init__(self, roots: Mapping[str, object], names: Mapping[int, str] | None = None) -> None:
        """roots: name in messages -> object. names: id of an object -> its name, wherever it is found first."""
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}
        """id -> (name, tensor)."""
        self.containers: list[Container] = []
        self._names = dict(names or {})
        self._generators: list[_Generator] = []
        self._seen: dict[int, object] = {}
        self._add_generators()
        for name, root in roots.items():
            self._walk(name, root)
        self._memory = {id(t): (t, t.data, _gradient(t)) for _, t in self.tensors.values()}
        self._trained = {id(t): t.requires_grad for _, t in self.tensors.values() if t.is_leaf}

    def __enter__(self) -> Surroundings:
        return self

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Put everything back: memory first, since a container's own methods may fail. Raises what they raise."""
        for tensor, data, gradient in self._memory.values():
            tensor.data = data
            if tensor.is_leaf:
                tensor.grad = gradient
                tensor.requires_grad_(self._trained.get(id(tensor), tensor.requires_grad))
        for generator in self._generators:
            generator.put_back()
        failed: list[Exception] = []
        for container in self.containers:
            try:
                if not _same_items(container.read(), container.saved):
                    container.restore(container.saved)
            except Exception as error:  # whatever a class of the user's does
                failed.append(error)
        if failed:
            raise failed[0]

    def toggled(self) -> list[str]:
        """Names of the tensors that require a gradient though they did not, or the other way round."""
        leaves = [(name, tensor) for name, tensor in self.tensors.values() if tensor.is_leaf]
        return [name for name, tensor in leaves if tensor.requires_grad != self._trained.get(id(tensor), False)]

    def generator_states(self) -> list[torch.Tensor]:
        """The states of torch's generators of random numbers."""
        return [generator.state() for generator in self._generators if not generator.name]

    def moved_generators(self) -> list[str]:
        """Generators of random numbers, but for torch's, that are in another state than before."""
        return [generator.name for generator in self._generators if generator.name and generator.has_moved()]

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
                tensor.data = own.as_strided(data.size(), data.stride(), data.storage_offset())
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
                change.container.restore({**change.container.read(), change.key: change.before})

    def now(self, tensors: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
        """id of a tensor -> the one that stands in its place by now."""
        replaced = {id(change.before): change.after for change in self.changes()}
        return {id(tensor): replaced.get(id(tensor), tensor) for tensor in tensors}

    def changes(self) -> list[Change]:
        """Items that are other objects than before."""
        found = []
        for container in self.containers:
            now = container.read()
            for key in [*container.saved, *(key for key in now if key not in container.saved)]:
                before, after = container.saved.get(key), now.get(key)
                if before is not after and not _equal_numbers(before, after):
                    found.append(Change(container, key, before, after))
        return found

    def written(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors that hold other values than when this was made, by name: what has been written into them."""
        return [
            (name, tensor)
            for name, tensor in self.tensors.values()
            if not _equal_values(tensor.detach(), self._memory[id(tensor)][1])
        ]

    def _add_generators(self) -> None:
        self._generators.append(_Generator("", torch.get_rng_state, torch.set_rng_state))
        self._generators.append(_Generator("Python's random", random.getstate, random.setstate))
        self._generators.append(_Generator("numpy.random", np.random.get_state, np.random.set_state))

    def _walk(self, name: str, root: object) -> None:
        todo: list[tuple[str, object]] = [(name, root)]
        while todo:
            path, thing = todo.pop()
            if id(thing) in self._seen or isinstance(thing, _ATOMS):
                continue
            self._seen[id(thing)] = thing
            todo.extend(reversed(list(self._inside(self._names.get(id(thing), path), thing))))

    def _inside(self, path: str, thing: Any) -> Iterator[tuple[str, object]]:
        """What an object holds, by name; the object itself is remembered."""
        if isinstance(thing, torch.Tensor):
            if not isinstance(thing, FakeTensor) and thing.layout == torch.strided:
                self.tensors[id(thing)] = (path, thing)
            yield from self._held(path, *_attributes(thing))
        elif isinstance(thing, nn.Module):
            yield from self._inside_module(path, thing)
        elif isinstance(thing, torch.Generator):
            self._generators.append(_Generator("", thing.get_state, thing.set_state))
        elif isinstance(thing, random.SystemRandom):
            raise CaptureError(f"{path} draws from the operating system, which nobody can repeat: draw by torch")
        elif isinstance(thing, random.Random):
            self._generators.append(_Generator(path, thing.getstate, thing.setstate))
        elif isinstance(thing, np.random.RandomState):
            self._generators.append(_Generator(path, thing.get_state, thing.set_state))
        elif isinstance(thing, np.random.Generator):
            bits = thing.bit_generator
            self._generators.append(_Generator(path, lambda: bits.state, functools.partial(setattr, bits, "state")))
        elif isinstance(thing, dict):
            yield from self._held(path, lambda: dict(thing), functools.partial(_refill, thing))
        elif isinstance(thing, (list, deque)):
            yield from self._held(path, lambda: dict(enumerate(thing)), functools.partial(_refill_list, thing), thing)
        elif isinstance(thing, set):
            yield from self._held(path, lambda: {item: item for item in thing}, functools.partial(_refill_set, thing))
        elif isinstance(thing, (tuple, frozenset)):
            yield from ((f"{path}[{number}]", item) for number, item in enumerate(thing))
        elif isinstance(thing, types.MethodType):
            yield from ((path, thing.__self__), (path, thing.__func__))
        elif isinstance(thing, functools.partial):
            yield from ((path, part) for part in (thing.func, thing.args, thing.keywords))
        elif isinstance(thing, types.FunctionType):
            yield from self._inside_function(path, thing)
        elif not isinstance(thing, (type, types.ModuleType)):
            yield from self._held(path, *_attributes(thing))
            yield from self._methods(path, type(thing))

    def _inside_module(self, path: str, module: nn.Module) -> Iterator[tuple[str, object]]:
        # First, so that what stands in them is named without them.
        yield from ((path, vars(module)[name]) for name in _MODULE_TABLES if name in vars(module))
        yield from self._held(path, *_attributes(module))
        yield from self._methods(path, type(module))

    def _held(
        self,
        path: str,
        read: Callable[[], dict[Any, Any]],
        restore: Callable[[dict[Any, Any]], None],
        thing: object = None,
    ) -> Iterator[tuple[str, object]]:
        container = Container(path, read, restore, read(), thing)
        self.containers.append(container)
        yield from ((container.name_of(key), item) for key, item in container.saved.items())

    def _inside_function(self, path: str, function: types.FunctionType) -> Iterator[tuple[str, object]]:
        yield from ((path, part) for part in (function.__defaults__, function.__kwdefaults__, vars(function)))
        if function.__closure__:
            cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))

            def put_back(saved: dict[Any, Any]) -> None:
                for name, value in saved.items():
                    cells[name].cell_contents = value

            yield from self._held(
                "", lambda: {name: c.cell_contents for name, c in cells.items() if _full(c)}, put_back
            )
        if not function.__code__.co_filename.startswith((*LIBRARIES, "<frozen")):
            yield from self._globals(function.__globals__, _names(function.__code__))

    def _globals(self, variables: dict[str, Any], names: set[str]) -> Iterator[tuple[str, object]]:
        used = sorted(name for name in names if name in variables and not isinstance(variables[name], types.ModuleType))
        if used:
            yield from self._held("", lambda: {name: variables.get(name) for name in used}, variables.update)

    def _methods(self, path: str, kind: type) -> Iterator[tuple[str, object]]:
        """The functions of a class of the user's: their global variables can hold state."""
        for ancestor in kind.__mro__:
            if id(ancestor) in self._seen:
                continue
            self._seen[id(ancestor)] = ancestor
            yield from ((path, part) for part in vars(ancestor).values() if isinstance(part, types.FunctionType))


_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, np.ndarray)


def _attributes(thing: Any) -> tuple[Callable[[], dict[Any, Any]], Callable[[dict[Any, Any]], None]]:
    """Reader and restorer of an object's attributes."""
    own = getattr(thing, "__dict__", None)
    if isinstance(own, dict):
        return lambda: dict(own), functools.partial(_refill, own)
    slots = [name for kind in type(thing).__mro__ for name in _slots(kind)]

    def put_back(saved: dict[Any, Any]) -> None:
        for name, value in saved.items():
            object.__setattr__(thing, name, value)

    return lambda: {name: getattr(thing, name) for name in slots if hasattr(thing, name)}, put_back


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if isinstance(vars(kind).get(name), types.MemberDescriptorType)]


def _refill(target: dict[Any, Any], saved: dict[Any, Any]) -> None:
    target.clear()
    target.update(saved)


def _refill_list(target: Any, saved: dict[Any, Any]) -> None:
    target.clear()
    target.extend(saved.values())


def _refill_set(target: set[Any], saved: dict[Any, Any]) -> None:
    target.clear()
    target.update(saved)


def _full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _names(code: types.CodeType) -> set[str]:
    """Names that a function may look up outside of itself."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf else None


def _same_items(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    same_keys = len(a) == len(b) and all(one is two or _equal_numbers(one, two) for one, two in zip(a, b, strict=True))
    return same_keys and all(one is two for one, two in zip(a.values(), b.values(), strict=True))


def _equal_numbers(a: object, b: object) -> bool:
    return isinstance(a, (int, float, str, bool)) and type(a) is type(b) and a == b


def _equal_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    same_type = a.shape == b.shape and a.dtype == b.dtype
    return same_type and bool(((a == b) | ((a != a) & (b != b))).all())
