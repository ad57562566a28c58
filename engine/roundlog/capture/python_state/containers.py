"""Python objects that hold others, read and put back by the methods of Python's own classes, whatever a subclass of the
user's makes of them."""

from __future__ import annotations

import array
import contextvars
import ctypes
import functools
import gc
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

MISSING = object()
"""Stands for an item that is not there."""

Reader = Callable[[], dict[Any, Any]]
Restorer = Callable[[dict[Any, Any]], None]

Location = tuple[int, Any]
"""Place of an item among those of all containers: the id of its container, and its key."""

_LONGEST_NAME = 200

IMMUTABLE = 1 << 8
"""The flag of classes whose attributes nobody can set: those written in C."""

_PLAIN = frozenset({int, float, complex, bool, str, bytes})

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a tensor that PyTorch keeps outside of its `__dict__`."""


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """A Python object that holds others, and what it held when it was first looked at."""

    path: str
    read: Reader
    """Reads the items that it holds now."""
    restore: Restorer
    saved: dict[Any, Any]
    list: object = None
    """The list itself, if it is one."""

    def put_back(self) -> None:
        """Put back the items that it held at first. Raises what its class raises."""
        if not _same_items(self.read(), self.saved):
            self.restore(self.saved)

    def changes(self) -> Sequence[Change]:
        """Items that are other objects than before; none where its class fails to tell."""
        try:
            now, saved = self.read(), self.saved
            if _same_objects(now, saved) and _same_objects(now.values(), saved.values()):
                return []
            keys = [*saved, *(key for key in now if key not in saved)]
            pairs = [(key, saved.get(key, MISSING), now.get(key, MISSING)) for key in keys]
        except Exception:  # whatever a class of the user's does
            return []
        found = [Change(self, *pair) for pair in pairs if pair[1] is not pair[2] and not equal_numbers(*pair[1:])]
        orders = tuple(
            ItemOrder(tuple(key for key in one if key in other)) for one, other in ((saved, now), (now, saved))
        )
        return found if orders[0].keys == orders[1].keys else [*found, Change(self, ItemOrder, *orders)]

    def name_of(self, key: Any) -> str:
        """`model.layer.h`: an item in the user's words."""
        if key is ItemOrder:
            return f"the order of {self.path}"
        if type(key) is str and key.isidentifier():
            return f"{self.path}.{key}"[:_LONGEST_NAME] if self.path else key
        return f"{self.path}[{_shown(key)}]"[:_LONGEST_NAME]

    def location_of(self, key: Any) -> Location:
        return id(self), key

    def put(self, key: Any, item: object) -> None:
        """Put something where an item is."""
        self.restore({**self.read(), key: item})


@dataclass(frozen=True, slots=True)
class ItemOrder:
    """Order of the items of a dictionary. As a key: the place where it stands."""

    keys: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ContainerItem:
    """An item of a container, by its key."""

    container: Container
    key: Any

    @property
    def name(self) -> str:
        return self.container.name_of(self.key)

    @property
    def location(self) -> Location:
        return self.container.location_of(self.key)


@dataclass(frozen=True, slots=True)
class Change(ContainerItem):
    """An item of a container that is another object than before."""

    before: Any
    """MISSING where there was nothing."""
    after: Any
    """MISSING where there is nothing any more."""


def items_of(thing: Any) -> tuple[Reader, Restorer] | None:
    """Reader and restorer of what stands in a dictionary, list or set; None for anything else."""
    kind = type(thing)
    if issubclass(kind, OrderedDict):
        # The methods of dict would lose its order.
        return lambda: dict(OrderedDict.items(thing)), functools.partial(_refill_ordered, thing)
    if issubclass(kind, dict):
        return lambda: dict(dict.items(thing)), functools.partial(_refill, thing)
    if issubclass(kind, list):
        return lambda: dict(enumerate(list.__iter__(thing))), functools.partial(_refill_list, list, thing)
    if issubclass(kind, deque):
        return lambda: dict(enumerate(deque.__iter__(thing))), functools.partial(_refill_list, deque, thing)
    if issubclass(kind, (bytearray, array.array)):
        return lambda: {"contents": bytes(memoryview(thing))}, functools.partial(_refill_bytes, thing)
    if issubclass(kind, set):
        return functools.partial(_items_of_set, thing), functools.partial(_refill_set, thing)
    return None


def attributes_of(thing: Any, slots: Mapping[str, Any]) -> tuple[Reader, Restorer] | None:
    """Reader and restorer of an object's attributes, in its `__dict__` and in its slots (name -> descriptor); None if
    it has neither."""
    own = _dictionary(thing)
    if own is None and not slots:
        return None
    if own is not None and not slots:
        return lambda: dict(thing.__dict__), functools.partial(_refill_attributes, thing, own)

    def read() -> dict[str, Any]:
        held = {} if own is None else dict(thing.__dict__)
        for name, slot in slots.items():
            try:
                held[name] = slot.__get__(thing)
            except AttributeError:  # nothing stands there
                continue
        return held

    def put_back(saved: dict[str, Any]) -> None:
        if own is not None:
            _refill_attributes(thing, own, {name: value for name, value in saved.items() if name not in slots})
        for name in slots.keys() & read().keys() - saved.keys():
            slots[name].__delete__(thing)
        for name in slots.keys() & saved.keys():
            slots[name].__set__(thing, saved[name])

    return read, put_back


def slots_of(kind: type) -> dict[str, Any]:
    """Name -> descriptor of the slots of a class of Python's."""
    found = {}
    for ancestor in mro_of(kind):
        if not ancestor.__flags__ & IMMUTABLE:
            parts = vars(ancestor).items()
            found.update({name: part for name, part in parts if is_a(part, types.MemberDescriptorType)})
    return found


def class_attributes(kind: type) -> tuple[Reader, Restorer]:
    """Reader and restorer of what stands in a class, but for what Python itself puts there."""

    def read() -> dict[str, Any]:
        return {name: part for name, part in vars(kind).items() if not name.startswith("__")}

    def put_back(saved: dict[str, Any]) -> None:
        now = read()
        for name in now.keys() - saved.keys():
            type.__delattr__(kind, name)
        for name, part in saved.items():
            if name not in now or now[name] is not part:
                type.__setattr__(kind, name, part)

    return read, put_back


def class_tensors(kind: type) -> tuple[Reader, Restorer]:
    """Reader and restorer of the tensors that stand in a class of a library, which keeps accounts of its own there."""
    first = dict(vars(kind))

    def read() -> dict[str, Any]:
        return {name: part for name, part in vars(kind).items() if is_a(part, torch.Tensor)}

    def put_back(saved: dict[str, Any]) -> None:
        for name in read().keys() - saved.keys():
            if name in first:
                type.__setattr__(kind, name, first[name])
            else:
                type.__delattr__(kind, name)
        for name, part in saved.items():
            type.__setattr__(kind, name, part)

    return read, put_back


def closure_of(function: types.FunctionType) -> tuple[Reader, Restorer]:
    """Reader and restorer of the variables that a function closes over."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def read() -> dict[str, Any]:
        return {name: cell.cell_contents for name, cell in cells.items() if _full(cell)}

    def put_back(saved: dict[str, Any]) -> None:
        for name, cell in cells.items():
            if name in saved:
                cell.cell_contents = saved[name]
            elif _full(cell):
                del cell.cell_contents

    return read, put_back


def globals_of(variables: dict[str, Any], names: Iterable[str]) -> tuple[Reader, Restorer]:
    """Reader and restorer of global variables of some names, whether there are such by now or not. Modules are none."""
    wanted = sorted(names)

    def read() -> dict[str, Any]:
        return {
            name: variables[name]
            for name in wanted
            if name in variables and not is_a(variables[name], types.ModuleType)
        }

    def put_back(saved: dict[str, Any]) -> None:
        for name in read().keys() - saved.keys():
            del variables[name]
        variables.update(saved)

    return read, put_back


def numbers_of(variables: dict[str, Any], names: Iterable[str]) -> tuple[Reader, Restorer]:
    """Reader and restorer of the numbers that a library's module has under some names: users may keep theirs there."""
    return globals_of(variables, [name for name in names if type(variables.get(name)) in _PLAIN])


def context_of(variable: contextvars.ContextVar[Any]) -> tuple[Reader, Restorer]:
    """Reader and restorer of a context variable."""

    def read() -> dict[str, Any]:
        try:
            return {"value": variable.get()}
        except LookupError:
            return {}

    def put_back(saved: dict[str, Any]) -> None:
        if not saved:
            raise LookupError("it had no value")
        variable.set(saved["value"])

    return read, put_back


def memory_of(thing: Any) -> tuple[Reader, Restorer]:
    """Reader and restorer of an object of `ctypes`, as `multiprocessing.Value` has one."""
    size = ctypes.sizeof(thing)

    def put_back(saved: dict[str, bytes]) -> None:
        ctypes.memmove(ctypes.addressof(thing), saved["value"], size)

    return lambda: {"value": ctypes.string_at(ctypes.addressof(thing), size)}, put_back


def hooks_of(tensor: torch.Tensor) -> tuple[Reader, Restorer]:
    """Reader and restorer of a tensor's own hooks."""

    def put_back(saved: dict[str, Any]) -> None:
        for name in _HOOKS:
            if saved[name] is None:
                # PyTorch goes on calling the hooks that it was given last, until it is given others.
                setattr(tensor, name, OrderedDict())
            setattr(tensor, name, saved[name])

    return lambda: {name: getattr(tensor, name, None) for name in _HOOKS}, put_back


def table_of(cache: Any) -> tuple[Reader, Restorer]:
    """Reader and restorer of what a `functools.cache` remembers."""
    (table,) = (part for part in gc.get_referents(cache) if type(part) is dict and part is not vars(cache))
    return lambda: dict(table), functools.partial(_refill, table)


def equal_numbers(a: object, b: object) -> bool:
    """Whether two objects are the same number or text; 0.0 is not -0.0."""
    alike = type(a) is type(b) and (type(a) in _PLAIN or is_a(a, np.generic)) and bool(a == b)
    return alike and (type(a) is not float or repr(a) == repr(b))


def is_a(thing: object, kinds: type | tuple[type, ...]) -> bool:
    """isinstance, which does not ask the object: it may claim another class, or fail."""
    return issubclass(type(thing), kinds)


def mro_of(kind: type) -> tuple[type, ...]:
    """A class and those that it inherits from, without asking a metaclass."""
    return type.__getattribute__(kind, "__mro__")  # type: ignore[no-any-return]


def _refill(target: dict[Any, Any], saved: dict[Any, Any]) -> None:
    dict.clear(target)
    dict.update(target, saved)


def _dictionary(thing: Any) -> dict[str, Any] | None:
    try:
        own = thing.__dict__
        # A property of that name may give a new one every time.
        return own if is_a(own, dict) and own is thing.__dict__ else None
    except Exception:  # there is none, or whatever a class of the user's does
        return None


def _refill_ordered(target: OrderedDict[Any, Any], saved: dict[Any, Any]) -> None:
    OrderedDict.clear(target)
    for key, value in saved.items():
        OrderedDict.__setitem__(target, key, value)


def _refill_attributes(thing: Any, own: dict[str, Any], saved: dict[str, Any]) -> None:
    if thing.__dict__ is not own:
        thing.__dict__ = own
    _refill(own, saved)


def _refill_list(base: Any, target: Any, saved: dict[Any, Any]) -> None:
    base.clear(target)
    base.extend(target, saved.values())


def _refill_bytes(target: Any, saved: dict[str, bytes]) -> None:
    if isinstance(target, bytearray):
        target[:] = saved["contents"]
    else:
        target[:] = array.array(target.typecode, saved["contents"])


def _items_of_set(thing: Any) -> dict[Any, Any]:
    return {item: item for item in sorted(set.__iter__(thing), key=id)}


def _refill_set(target: set[Any], saved: dict[Any, Any]) -> None:
    set.clear(target)
    set.update(target, saved)


def _full(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _shown(key: Any) -> str:
    parts = key if type(key) is tuple else (key,)
    if all(type(part) in _PLAIN for part in parts):
        return repr(key)
    return type.__getattribute__(key, "__name__") if isinstance(key, type) else type(key).__name__


def _same_items(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    same_keys = len(a) == len(b) and all(one is two or equal_numbers(one, two) for one, two in zip(a, b, strict=True))
    return same_keys and _same_objects(a.values(), b.values())


def _same_objects(a: Collection[Any], b: Collection[Any]) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))
