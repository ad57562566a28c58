"""A walk through everything that the Python code of a training step can reach.

It goes where code goes: into attributes, slots, items, closures, hooks, the global variables that functions of the
user's name, and the classes that are the user's. Of a library's class it looks at what stands in it, where a user may
have put something, and goes on into tensors and functions alone. Objects that fail when they are looked at are passed
by."""

from __future__ import annotations

import array
import contextvars
import ctypes
import functools
import itertools
import logging
import queue
import random
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy

from roundlog.capture.draws import generator_key
from roundlog.capture.errors import LIBRARIES, CaptureError
from roundlog.capture.python_state.containers import (
    IMMUTABLE,
    Container,
    Reader,
    Restorer,
    attributes_of,
    class_attributes,
    class_tensors,
    closure_of,
    context_of,
    globals_of,
    hooks_of,
    is_a,
    items_of,
    memory_of,
    mro_of,
    numbers_of,
    slots_of,
    table_of,
)
from roundlog.capture.python_state.replaced_builtins import SEEN, Variable, is_followed
from roundlog.capture.python_state.stateful_objects import (
    Array,
    Cache,
    Position,
    RandomGenerator,
    parts_of,
    position_of,
)
from roundlog.data import absence

Member = tuple[str, Any]
"""Part of an object: its path, and itself."""

Opener = Callable[["Walk", str, Any], Iterable[Member]]
"""Function that looks into an object of some class."""

_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


class Walk:
    """Walk over all objects that can be reached from some roots."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """names: id of an object -> its name, wherever it is found first."""
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}
        """id -> (name, tensor)."""
        self.containers: list[Container] = []
        self.generators: list[RandomGenerator] = []
        self.arrays: list[Array] = []
        self.positions: list[Position] = []
        self.caches: list[Cache] = []
        self.asking: dict[int, dict[str, Any]] = {}
        """id -> global variables of the modules of the user's in which a function names one of `SEEN`."""
        self.functions: list[Variable] = []
        """Global variables of the user's that hold functions of `math`."""
        self._names = names
        self._seen: dict[int, object] = {}
        self._openers: dict[int, tuple[type, Opener | None]] = {}
        self._classes_seen: dict[int, type] = {}
        self._slots: dict[int, dict[str, Any]] = {}
        self._own: dict[str, bool] = {}

    def add(self, name: str, root: object) -> None:
        """Walk from a root. Raises CaptureError for what no capture can follow."""
        todo: list[Member] = [(name, root)]
        while todo:
            path, thing = todo.pop()
            if id(thing) in self._seen or (opener := self._opener(type(thing))) is None:
                continue
            self._seen[id(thing)] = thing
            inside: list[Member] = []
            try:
                for part in opener(self, self._names.get(id(thing), path), thing):
                    inside.append(part)  # what was found before a failure counts
            except CaptureError:
                raise
            except Exception:  # whatever a class of the user's does when it is looked at
                pass
            todo.extend(reversed(inside))

    def seen(self) -> Collection[int]:
        """The ids of everything that was looked into."""
        return self._seen.keys()

    def _opener(self, kind: type) -> Opener | None:
        """Function that looks into objects of a class; None if there is nothing to see."""
        known = self._openers.get(id(kind))  # a class may be one that cannot be hashed
        if known is None:
            known = self._openers[id(kind)] = (kind, _opener_of(kind))
        return known[1]

    def _held(self, path: str, way: tuple[Reader, Restorer] | None, thing: object = None) -> Iterator[Member]:
        """Items of a container, which is remembered."""
        if way is None:
            return
        container = Container(path, *way, way[0](), thing)
        self.containers.append(container)
        for key, item in container.saved.items():
            if self._opener(type(item)) is not None:
                yield container.name_of(key), item

    def _object(self, path: str, thing: Any) -> Iterator[Member]:
        kind = type(thing)
        if id(kind) not in self._slots:
            self._slots[id(kind)] = slots_of(kind)
        yield from self._held(path, attributes_of(thing, self._slots[id(kind)]))
        yield from self._classes(kind)

    def _collection(self, path: str, thing: Any) -> Iterator[Member]:
        yield from self._held(path, items_of(thing), thing if is_a(thing, (list, deque)) else None)
        if is_a(thing, defaultdict):
            yield path, thing.default_factory
        if type(thing) not in _COLLECTIONS:
            yield from self._object(path, thing)

    def _tuple(self, path: str, thing: Any) -> Iterator[Member]:
        items = tuple.__iter__(thing) if is_a(thing, tuple) else frozenset.__iter__(thing)
        yield from ((f"{path}[{number}]", item) for number, item in enumerate(items))
        if type(thing) not in _COLLECTIONS:
            yield from self._object(path, thing)

    def _tensor(self, path: str, tensor: torch.Tensor) -> Iterator[Member]:
        if _has_numbers(tensor):
            self.tensors[id(tensor)] = (path, tensor)
            yield from self._held(path, hooks_of(tensor))
        yield from self._object(path, tensor)

    def _module(self, path: str, module: nn.Module) -> Iterator[Member]:
        # First, so that what stands in them is named without them.
        yield from ((path, vars(module)[name]) for name in _MODULE_TABLES if name in vars(module))
        yield from self._object(path, module)

    def _torch_generator(self, path: str, thing: torch.Generator) -> Iterable[Member]:
        self.generators.append(RandomGenerator("", thing.get_state, thing.set_state, generator_key(thing)))
        return ()

    def _system_random(self, path: str, thing: object) -> Iterable[Member]:
        raise CaptureError(f"{path} draws from the operating system, which nobody can repeat: draw by torch")

    def _random(self, path: str, thing: random.Random) -> Iterator[Member]:
        self.generators.append(RandomGenerator(path, thing.getstate, thing.setstate))
        yield from self._object(path, thing)

    def _random_state(self, path: str, thing: np.random.RandomState) -> Iterable[Member]:
        self.generators.append(RandomGenerator(path, thing.get_state, thing.set_state))
        return ()

    def _bits(self, path: str, thing: Any) -> Iterable[Member]:
        bits = getattr(thing, "bit_generator", thing)
        self.generators.append(RandomGenerator(path, lambda: bits.state, functools.partial(setattr, bits, "state")))
        return ()

    def _array(self, path: str, thing: np.ndarray[Any, Any]) -> Iterator[Member]:
        plain = thing.view(np.ndarray)
        kept = plain.flags.writeable and not isinstance(thing, np.memmap)
        self.arrays.append(Array(path, plain, plain.copy() if kept else None))
        if plain.dtype.hasobject:
            yield from ((f"{path}[{number}]", item) for number, item in enumerate(plain.flat))
        yield from self._object(path, thing)

    def _iterator(self, path: str, thing: Any) -> Iterator[Member]:
        """An iterator of Python's own, and what it iterates over."""
        self.positions.append(Position(path, thing, position_of(thing)))
        # The list that itertools.cycle keeps is its own, and nobody's to put back; so is that of a queue.
        own = list if isinstance(thing, (itertools.cycle, queue.SimpleQueue)) else ()
        yield from ((path, tuple(part) if is_a(part, own) else part) for part in parts_of(thing))

    def _cache(self, path: str, cache: Any) -> Iterator[Member]:
        """Function behind `functools.cache` or `functools.lru_cache`, and the results that the cache remembers."""
        yield path, cache.__wrapped__
        if cache.cache_parameters()["maxsize"] is None:
            yield from self._held(f"{path}()", table_of(cache))
        else:
            self.caches.append(Cache(path, cache))
            yield from ((f"{path}()", part) for part in self.caches[-1].saved)
        yield from self._object(path, cache)

    def _function(self, path: str, function: types.FunctionType) -> Iterator[Member]:
        users = not function.__code__.co_filename.startswith((*LIBRARIES, "<frozen"))
        if users or self._is_own(str(function.__module__)):  # a library's wrapper of a function of the user's
            yield from ((path, part) for part in (function.__defaults__, function.__kwdefaults__, vars(function)))
        if function.__closure__:
            code = function.__code__
            # `functools.singledispatch` remembers which of the registered functions a class gets, and finds it again.
            if code.co_filename == functools.__file__ and "dispatch_cache" in code.co_freevars:
                cache = function.__closure__[code.co_freevars.index("dispatch_cache")].cell_contents
                self._seen[id(cache)] = cache
            yield from self._held("", closure_of(function))
        if users:
            names = _names(function.__code__)
            held = function.__globals__
            self.functions += [(held, name) for name in sorted(names) if is_followed(held.get(name))]
            if not names.isdisjoint(SEEN):
                self.asking[id(function.__globals__)] = function.__globals__
            yield from self._globals(function.__globals__, names, set())

    def _globals(self, variables: dict[str, Any], names: set[str], visited: set[int]) -> Iterator[Member]:
        """The global variables that a function names, and those that it names of the user's modules."""
        visited.add(id(variables))
        yield from self._held("", globals_of(variables, names))
        for name in sorted(names):
            module: Any = variables.get(name, sys.modules.get(name))  # a function may import what it names
            if not is_a(module, types.ModuleType) or id(vars(module)) in visited:
                continue
            if self._is_own(module.__name__):
                yield from self._globals(vars(module), names, visited)
            else:
                visited.add(id(vars(module)))
                yield from self._held(module.__name__, numbers_of(vars(module), names))

    def _class(self, path: str, kind: type) -> Iterator[Member]:
        """A class that somebody holds."""
        if self._is_users(kind):
            yield from self._classes(kind)

    def _classes(self, kind: type) -> Iterator[Member]:
        """Attributes of a class, of those that it inherits from, and of their metaclasses."""
        if id(kind) in self._classes_seen:
            return
        for ancestor in mro_of(kind):
            if id(ancestor) in self._classes_seen:
                continue
            self._classes_seen[id(ancestor)] = ancestor
            if ancestor.__flags__ & IMMUTABLE:
                continue
            users, name = self._is_users(ancestor), ancestor.__name__
            yield from self._held(name, class_attributes(ancestor) if users else class_tensors(ancestor))
            # Python's own names, which no step changes, but which functions stand behind; and a library's functions.
            parts = (part for key, part in vars(ancestor).items() if key.startswith("__") or not users)
            yield from ((name, part) for part in parts if is_a(part, _CODE if users else types.FunctionType))
            if users:
                yield from self._classes(type(ancestor))

    def _is_users(self, kind: type) -> bool:
        module = vars(kind).get("__module__")
        return not kind.__flags__ & IMMUTABLE and (not isinstance(module, str) or self._is_own(module))

    def _is_own(self, module: str) -> bool:
        """Whether a module is the user's, and no library's."""
        if module not in self._own:
            file = getattr(sys.modules.get(module), "__file__", None)
            if isinstance(file, str):
                self._own[module] = not file.startswith(LIBRARIES)
            else:
                self._own[module] = module.partition(".")[0] not in (*sys.stdlib_module_names, "torch", "numpy")
        return self._own[module]


_LRU = type(functools.lru_cache(lambda: None))

_CODE = (types.FunctionType, staticmethod, classmethod, property, _LRU)

_COLLECTIONS = (dict, OrderedDict, defaultdict, Counter, list, deque, set, tuple, frozenset, bytearray, array.array)

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, np.generic, range)

_OPENERS: dict[type, Opener | None] = {
    **dict.fromkeys((*_ATOMS, types.ModuleType, types.CodeType, types.FrameType)),
    # Accounts that a logger keeps of itself. What is logged is text.
    **dict.fromkeys((logging.Logger, logging.Handler, logging.Manager)),
    **dict.fromkeys((dict, list, deque, set, bytearray, array.array), Walk._collection),
    **dict.fromkeys((tuple, frozenset), Walk._tuple),
    torch.Tensor: Walk._tensor,
    nn.Module: Walk._module,
    torch.Generator: Walk._torch_generator,
    random.SystemRandom: Walk._system_random,
    random.Random: Walk._random,
    np.random.RandomState: Walk._random_state,
    np.random.Generator: Walk._bits,
    np.random.BitGenerator: Walk._bits,
    np.ndarray: Walk._array,
    types.FunctionType: Walk._function,
    type: Walk._class,
    _LRU: Walk._cache,
    types.MethodType: lambda walk, path, thing: ((path, thing.__self__), (path, thing.__func__)),
    types.BuiltinMethodType: lambda walk, path, thing: ((path, thing.__self__),),
    types.MethodWrapperType: lambda walk, path, thing: ((path, thing.__self__),),
    staticmethod: lambda walk, path, thing: ((path, thing.__func__),),
    classmethod: lambda walk, path, thing: ((path, thing.__func__),),
    property: lambda walk, path, thing: ((path, part) for part in (thing.fget, thing.fset, thing.fdel)),
    functools.partial: lambda walk, path, thing: ((path, part) for part in (thing.func, thing.args, thing.keywords)),
    weakref.ref: lambda walk, path, thing: ((path, thing()),),
    # A proxy gives the methods of what it stands for.
    **dict.fromkeys(weakref.ProxyTypes, lambda walk, path, thing: ((path, thing.__init__.__self__),)),
    queue.SimpleQueue: Walk._iterator,
    contextvars.ContextVar: lambda walk, path, thing: walk._held(path, context_of(thing)),
    ctypes.c_int.__mro__[2]: lambda walk, path, thing: walk._held(path, memory_of(thing)),
}
"""Class -> what looks into its objects; None where there is nothing to see."""

_BITS = (torch.bits1x8, torch.bits2x4, torch.bits4x2, torch.bits8, torch.bits16)
"""Dtypes of numbers that PyTorch does not compare."""

_OPENERS_BY_ID = {id(kind): opener for kind, opener in _OPENERS.items()}


def _opener_of(kind: type) -> Opener | None:
    ancestors = mro_of(kind)
    for ancestor in ancestors:
        if id(ancestor) in _OPENERS_BY_ID:
            return _OPENERS_BY_ID[id(ancestor)]
    if not type.__getattribute__(kind, "__flags__") & IMMUTABLE:
        return Walk._object
    names = {name for ancestor in ancestors for name in vars(ancestor)}
    return Walk._iterator if "__next__" in names and "write" not in names else Walk._object  # a file is no iterator


def _has_numbers(tensor: torch.Tensor) -> bool:
    """Whether a tensor has numbers in memory that can be copied and compared. A step that takes another kind of
    tensors, or one whose memory has been given back, is refused where it does."""
    if isinstance(tensor, FakeTensor) or is_lazy(tensor) or tensor.is_nested or tensor.layout != torch.strided:
        return False
    return not tensor.is_quantized and tensor.dtype not in _BITS and absence(tensor) is None


def _names(code: types.CodeType) -> set[str]:
    """Names that a function may look up outside of itself."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)
