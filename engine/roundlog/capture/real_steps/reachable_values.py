"""Values that a task's code can reach: numbers, texts and lengths by name, and the places that hold tensors.

Names are Python expressions where there is one, as `model.layers[0].scale`; a cell of a closure is named as an
attribute of its function, `loss.step`. Objects of libraries count as far as the task refers to them; their modules and
classes only by the attributes that code which ran names.

What is called in C cannot be walked. An allow-list says which of these functions give the same whenever they are given
the same; a step that calls another one is refused by its name, as for clocks, files and sockets."""

from __future__ import annotations

import array
import ctypes
import dis
import functools
import gc
import hashlib
import io
import logging
import operator
import random
import sys
import types
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from roundlog.capture.errors import CaptureError
from roundlog.capture.optimizers import is_own
from roundlog.capture.real_steps.patched_torch import plain_model
from roundlog.capture.task import Task
from roundlog.data import materialized

LIBRARIES = sys.stdlib_module_names | {
    *("torch", "numpy", "transformers", "roundlog", "_pytest", "pluggy"),  # pytest has a hook in every import
    *("accelerate", "datasets", "huggingface_hub", "peft", "safetensors", "tokenizers", "triton", "trl"),
}
"""Packages whose code is taken for code that changes nothing of its own."""

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), slice, range),
    *(torch.dtype, torch.device, torch.Size, torch.layout),
)
_BUFFERS = (bytearray, memoryview, array.array, ctypes.Array)
_BY_IDENTITY = (
    *(types.ModuleType, types.CodeType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.MethodWrapperType, types.GenericAlias),
    *(torch.jit.ScriptFunction, torch._ops.OpOverload, torch._ops.OpOverloadPacket, io.TextIOBase),
    *(torch.utils.hooks.RemovableHandle, logging.Manager),  # which has all loggers of the process
)
_OF_PROCESS = "accelerate.state"
"""Module of objects that all trainers of a process share: they hold the data loaders of others."""
_WITHOUT_CONTENT = frozenset(("lock", "RLock", "weakref", "ReferenceType", "_abc_data", "_local"))
"""Types in C that cannot be compared, and hold nothing that a step could read."""
_OF_EVERY_CLASS = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__module__", "__slots__", "__slotnames__", "_abc_impl", "__annotations__")
)

_SHARED_GENERATORS: tuple[Any, ...] = (random._inst, np.random.mtrand._rand)
"""Those behind the functions of `random` and `numpy.random`, which have a watch of their own."""

Get = Callable[[], Any]
Put = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A place that holds a tensor."""

    tensor: Tensor
    get: Get
    put: Put | None
    """Puts another tensor there; None where nothing can be put."""

    def now(self) -> Any:
        """What stands there; None if the place is gone."""
        try:
            return self.get()
        except (LookupError, AttributeError, ValueError):
            return None


def is_library(module: object) -> bool:
    """Whether a module's name is that of a library."""
    return str(module).partition(".")[0] in LIBRARIES


def tensor_digest(x: Tensor) -> str:
    """Digest of a tensor's elements: of none if they are not in this machine's memory, or in no plain layout."""
    return _digest(_elements(x))


def tensor_checksum(x: Tensor) -> int:
    """CRC-32 of the same, in half of the time: it finds what is written by mistake."""
    return zlib.crc32(_elements(x))


def _elements(x: Tensor) -> Any:
    if not x.numel() or x.layout != torch.strided or x.device.type != "cpu":
        return b""
    whole = materialized(x.detach()).contiguous()  # a single element may have any stride
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy()


def memory_of(x: Tensor) -> int:
    """Identity of a tensor's memory; 0 of one that has none of its own, as sparse ones and those of `torch.func`."""
    try:
        return int(x.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@dataclass
class ReachableValues:
    """What `visit` has found."""

    without_digests: frozenset[int] = frozenset()
    """Ids of tensors whose elements are not looked at."""
    looks_at_elements: bool = True
    follows_weak: bool = True
    """Whether weak references count."""
    leaves: dict[str, Any] = field(default_factory=dict)
    """Name -> a value that can be compared."""
    places: dict[str, TensorPlace] = field(default_factory=dict)
    numbers: dict[str, Put] = field(default_factory=dict)
    """Name of a number that can be replaced -> how."""
    unknown: dict[str, type] = field(default_factory=dict)
    """Name -> type of what cannot be compared."""
    seen: dict[int, tuple[str, Any]] = field(default_factory=dict)
    by_tensor: list[tuple[dict[Any, Any], Tensor]] = field(default_factory=list)
    """(mapping, tensor that is a key of it), as in the state of an optimizer."""

    def visit(self, x: Any, path: str, get: Get = lambda: None, put: Put | None = None) -> None:
        """Note a value, and all that it reaches. get, put: of the place where it stands."""
        if isinstance(x, _PLAIN):
            self._plain(x, path, put)
        elif isinstance(x, Tensor):
            self._tensor(x, path, get, put)
        elif id(x) in self.seen:
            self.leaves[path] = f"the same as {self.seen[id(x)][0]}"
        else:
            self.seen[id(x)] = (path, x)
            self._object(x, path, get, put)

    def code(self, code: types.CodeType, names: Mapping[str, Any]) -> None:
        """Note the globals that code names, and their attributes: `nn.Module.count`, `sys.path`."""
        words = {word for word in (*code.co_names, *code.co_consts) if isinstance(word, str)}
        x, path = None, ""
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "IMPORT_NAME"):
                is_import = instruction.opname == "IMPORT_NAME"
                x, path = sys.modules.get(name) if is_import else names.get(name), name
                get, put = functools.partial(_item, names, name), functools.partial(operator.setitem, names, name)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM") and x is not None:
                get, put = functools.partial(getattr, x, name), functools.partial(setattr, x, name)
                x, path = _attribute(x, name), f"{path}.{name}"
            else:
                x = None
            if isinstance(x, types.ModuleType) or (isinstance(x, type) and is_library(x.__module__)):
                self._named_attributes(x, path, words)
            elif x is not None and path not in self.leaves:
                self.visit(x, path, get, put)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self.code(inner, names)

    def _named_attributes(self, owner: Any, path: str, words: Iterable[str]) -> None:
        """Note plain attributes of a module or a class of a library that are named somewhere; all, of a user's."""
        own = isinstance(owner, types.ModuleType) and not is_library(owner.__name__)
        for name in sorted(vars(owner).keys() if own else {*words} & vars(owner).keys()):
            value = vars(owner)[name]
            if isinstance(value, (*_PLAIN, list, dict)) and not name.startswith("__"):
                self.visit(value, f"{path}.{name}", functools.partial(getattr, owner, name))

    def _plain(self, x: Any, path: str, put: Put | None) -> None:
        self.leaves[path] = x
        if type(x) in (int, float) and put is not None:
            self.numbers[path] = put
        if type(x) not in _PLAIN and hasattr(x, "__dict__"):  # a number or text with attributes of its own
            self._mapping(x.__dict__, f"{path}.{{}}")

    def _tensor(self, x: Tensor, path: str, get: Get, put: Put | None) -> None:
        self.places[path] = TensorPlace(x, get, put)
        digested = self.looks_at_elements and id(x) not in self.without_digests
        elements = tensor_digest(x) if digested else ""
        self.leaves[path] = (f"a tensor {tuple(x.shape)} of {x.dtype}", x.requires_grad, elements)
        if id(x) not in self.seen:
            self.seen[id(x)] = (path, x)
            self._mapping(x.__dict__, f"{path}.{{}}")
            self._functions(x._backward_hooks, f"{path}'s hooks")

    def _object(self, x: Any, path: str, get: Get, put: Put | None) -> None:
        kind = type(x)
        if isinstance(x, (types.FunctionType, types.MethodType, functools.partial)):
            self._function(x, path)
        elif isinstance(x, type):
            self._class(x)
        elif isinstance(x, torch.jit.ScriptModule):
            self._scripted(x, path)
        elif isinstance(x, types.BuiltinFunctionType):  # made anew each time
            self.leaves[path] = x.__qualname__
            is_of_module = isinstance(x.__self__, (types.ModuleType, type(None)))
            if not is_of_module and type(x.__self__).__module__ != "pybind11_builtins":  # a record of the function
                self.visit(x.__self__, f"{path}.__self__", lambda: x.__self__)
        elif isinstance(x, weakref.ref) and not self.follows_weak:
            return
        elif isinstance(x, (property, staticmethod, classmethod, weakref.ref)):
            inner = x.fget if isinstance(x, property) else x() if isinstance(x, weakref.ref) else x.__func__
            self.visit(inner, path)
        elif isinstance(x, functools._lru_cache_wrapper):
            self.leaves[path] = x.cache_info().currsize
            if not is_library(x.__module__):
                self.visit(gc.get_referents(x), f"{path}'s cache")
        elif kind.__qualname__ == "_lru_list_elem":
            self.visit(gc.get_referents(x), path)
        elif isinstance(x, _BY_IDENTITY) or kind.__module__ == _OF_PROCESS:
            self.leaves[path] = getattr(x, "__qualname__", None) or id(x)
        elif (content := _content(x)) is not None:
            self.leaves[path] = content
        elif isinstance(x, ContextVar):
            self.visit(x.get(None), f"{path}.get()", lambda: x.get(None), x.set)
        elif isinstance(x, types.CellType):
            if x != types.CellType():  # an empty one
                self.visit(
                    x.cell_contents, path, lambda: x.cell_contents, functools.partial(setattr, x, "cell_contents")
                )
        elif isinstance(x, types.GeneratorType):
            self.leaves[path] = x.gi_frame and x.gi_frame.f_lasti
            self._mapping(dict(x.gi_frame.f_locals) if x.gi_frame else {}, f"{path}.{{}}")
        elif isinstance(x, (dict, types.MappingProxyType)) or (isinstance(x, Mapping) and not hasattr(x, "__dict__")):
            self._mapping(x, f"{path}[{{!r}}]")
            self._attributes(x, path)
        elif isinstance(x, (list, tuple, deque)):
            self._sequence(x, path, get, put)
        elif isinstance(x, (set, frozenset)):
            self.leaves[f"len({path})"] = len(x)
            self.leaves[path] = sorted(repr(item) for item in x if isinstance(item, _PLAIN))
            for number, item in enumerate(item for item in x if not isinstance(item, _PLAIN)):
                self.visit(item, f"{path}[{number}]")
        elif hasattr(x, "__dict__") or hasattr(kind, "__slots__"):
            self._attributes(x, path)
            if not is_library(kind.__module__):
                self.visit(kind, f"type({path})")
        else:
            self._opaque(x, path)

    def _mapping(self, x: Mapping[Any, Any], pattern: str) -> None:
        self.leaves[f"len({pattern.format('')})"] = len(x)
        for number, (key, value) in enumerate(list(x.items())):
            put = functools.partial(x.__setitem__, key) if isinstance(x, dict) else None
            if isinstance(key, Tensor) and isinstance(x, dict):
                self.by_tensor.append((x, key))
                known = self.seen.get(id(key))
                name, put = pattern.replace("{!r}", "{}").format(known[0] if known else number), None
            else:
                name = pattern.format(key) if isinstance(key, _PLAIN) else pattern.format(number)
            self.visit(value, name, functools.partial(_item, x, key), put)

    def _sequence(self, x: Any, path: str, get: Get, put: Put | None) -> None:
        self.leaves[f"len({path})"] = len(x)
        for number, item in enumerate(x):
            out, into = functools.partial(_item, x, number), None
            if not isinstance(x, tuple):
                into = functools.partial(x.__setitem__, number)
            elif put is not None and (type(x) is tuple or hasattr(x, "_fields")):
                out = functools.partial(_of_tuple, get, number)
                into = functools.partial(_put_in_tuple, get, put, number)
            self.visit(item, f"{path}[{number}]", out, into)
        self._attributes(x, path)

    def _attributes(self, x: Any, path: str) -> None:
        own = dict(getattr(x, "__dict__", {}))
        if isinstance(x, nn.Module):  # by their names: a parameter is model[0].weight
            for group in ("_parameters", "_buffers", "_modules"):
                held = own.pop(group, {})
                for key, value in list(held.items()):
                    name = f"{path}[{key}]" if key.isdigit() else f"{path}.{key}"
                    put = functools.partial(held.__setitem__, key)
                    self.visit(value, name, functools.partial(_item, held, key), put)
        for key, value in own.items():
            if key.endswith("_hooks"):  # by their place: their keys count all hooks of the process
                self._functions(value, f"{path}.{key}")
            else:
                put = functools.partial(x.__dict__.__setitem__, key)
                self.visit(value, f"{path}.{key}", functools.partial(_item, x.__dict__, key), put)
        for base in type(x).__mro__:
            slots = base.__dict__.get("__slots__", ())
            for key in [slots] if isinstance(slots, str) else slots:
                if hasattr(x, key) and key != "__dict__":
                    self.visit(getattr(x, key), f"{path}.{key}", functools.partial(getattr, x, key))
        is_container = isinstance(x, (Mapping, list, tuple, deque, nn.Module))
        if not own and not is_container and type(x).__module__ in sys.stdlib_module_names:
            self._opaque(x, path)

    def _functions(self, x: Mapping[Any, Any] | None, path: str) -> None:
        for number, hook in enumerate(x.values() if isinstance(x, Mapping) else ()):
            self.visit(hook, f"{path}[{number}]")

    def _function(self, x: Any, path: str) -> None:
        if isinstance(x, functools.partial):
            for name in ("func", "args", "keywords"):
                self.visit(getattr(x, name), f"{path}.{name}", functools.partial(getattr, x, name))
            return
        if isinstance(x, types.MethodType):
            self.visit(x.__self__, f"{path}.__self__", lambda: x.__self__)
            x = x.__func__
            if id(x) in self.seen or not isinstance(x, types.FunctionType):
                return
        self._mapping(x.__dict__, f"{path}.{{}}")
        self.leaves[f"{path}.__name__"] = x.__name__
        if is_library(x.__module__):
            return
        modules = dict[str, Any]()
        for name, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
            self.visit(cell, f"{path}.{name}")
            if cell != types.CellType() and isinstance(cell.cell_contents, (types.ModuleType, type)):
                modules[name] = cell.cell_contents
        for given in (x.__defaults__ or (), x.__kwdefaults__ or {}):
            self.visit(given, f"{path}'s defaults", functools.partial(_same, given))
        self.code(x.__code__, {**x.__globals__, **modules} if modules else x.__globals__)

    def _class(self, x: type) -> None:
        if is_library(x.__module__):
            return
        for key, value in list(vars(x).items()):
            if key not in _OF_EVERY_CLASS:
                name = f"{x.__qualname__}.{key}"
                self.visit(value, name, functools.partial(getattr, x, key), functools.partial(setattr, x, key))
        for other in (*x.__bases__, type(x)):
            self.visit(other, other.__qualname__)

    def _scripted(self, x: torch.jit.ScriptModule, path: str) -> None:
        """Note what TorchScript's code declares, as `n: int`. The values are held in C."""
        concrete: Any = getattr(x, "_concrete_type", None)
        if concrete is None:  # it was loaded
            self.unknown[path] = type(x)
            return
        inner: Any = x._c
        for name in concrete.get_attributes():
            if not isinstance(value := inner.getattr(name), (Tensor, torch._C.ScriptModule)):
                self.leaves[f"{path}.{name}"] = repr(value)
        for name, tensor in (*x.named_parameters(recurse=False), *x.named_buffers(recurse=False)):
            put = functools.partial(inner.setattr, name)
            self.visit(tensor, f"{path}.{name}", functools.partial(getattr, x, name), put)
        for name, child in x.named_children():
            self.visit(child, f"{path}.{name}")

    def _opaque(self, x: Any, path: str) -> None:
        """Note what is written in C by what pickle would keep of it, or by its text."""
        try:
            kept = tuple(x.__reduce_ex__(4)[1:])
        except Exception:  # whatever an extension's method raises
            self.leaves[path] = text = repr(x)
            if " at 0x" in text and type(x).__name__ not in _WITHOUT_CONTENT:
                self.unknown.setdefault(path, type(x))
        else:
            self.visit(kept, path, lambda: kept)


def _content(x: Any) -> Any:
    """Contents of arrays, files in memory and generators of random numbers; None for anything else."""
    if isinstance(x, np.ndarray):
        elements = repr(x.tolist()) if x.dtype.kind == "O" else _digest(np.ascontiguousarray(x).view(np.uint8))
        return x.dtype.str, x.shape, elements
    if isinstance(x, _BUFFERS):
        return _digest(bytes(x))
    if isinstance(x, torch.UntypedStorage):
        return _digest(bytes(x.tolist()))
    if isinstance(x, torch.Generator):
        return tensor_digest(x.get_state())
    if isinstance(x, (random.Random, np.random.RandomState, np.random.Generator)):
        if any(x is one for one in _SHARED_GENERATORS):
            return "a generator that steps may draw from"
        if isinstance(x, np.random.Generator):
            return repr(x.bit_generator.state)
        return repr(x.getstate() if isinstance(x, random.Random) else x.get_state())
    if isinstance(x, (io.BytesIO, io.StringIO)):
        return x.getvalue(), x.tell()
    return None


def _attribute(x: Any, name: str) -> Any:
    try:
        return getattr(x, name, None)
    except Exception:  # whatever a property raises
        return None


def _item(x: Any, key: Any) -> Any:
    return x.get(key) if isinstance(x, Mapping) else x[key]


def _of_tuple(get: Get, number: int) -> Any:
    """Item of the tuple that stands in a place now."""
    return get()[number]


def _same(x: Any) -> Any:
    return x


def _put_in_tuple(get: Get, put: Put, number: int, value: Any) -> None:
    """Put another tuple, with another item, where one stands."""
    items, kind = list(get()), type(get())
    items[number] = value
    put(kind(*items) if hasattr(kind, "_fields") else kind(items))


_REPEATABLE = frozenset(
    (
        *("builtins", "math", "cmath", "torch", "numpy", "collections", "itertools", "operator", "_operator"),
        *("functools", "_functools", "re", "_sre", "copy", "string", "_collections", "_abc", "_thread", "_weakref"),
        *("_contextvars", "_typing", "_struct", "_bisect", "_heapq", "types"),
    )
)
"""Modules of functions in C that a user's code may call. The objects that they are called on are walked."""
_PRINTING = frozenset((("_io", "write"), ("_io", "flush"), ("_io", "fileno"), ("_io", "isatty")))
_NOT_REPEATABLE = frozenset(("id", "input", "open"))
"""Functions of `builtins` whose results differ from one call to the next."""
_CALLED_FOR_USERS = frozenset(
    ("genericpath", "posixpath", "tempfile", "pathlib", "shelve", "secrets", "datetime", "random", "uuid")
)
"""Modules in Python whose calls count as the user's own."""
_ATTRIBUTES = {
    "_version": "a tensor's _version",
    "cache_info": "a cache's counts",
    "data_ptr": "an address in memory",
    "param_groups": "an optimizer's settings",
    "last_epoch": "a schedule's count",
}
"""Attributes that differ from run to run, or change without being state of the task."""


@dataclass
class StepCalls:
    """Notes what runs between `__enter__` and `__exit__`, in this thread."""

    codes: dict[types.CodeType, Mapping[str, Any]] = field(default_factory=dict)
    """Code -> its globals."""
    objects: dict[int, tuple[str, Any]] = field(default_factory=dict)
    """Id -> (name, object) that methods were called on."""
    refused: dict[str, str] = field(default_factory=dict)
    """Description of a call that cannot be repeated -> the user's line."""

    def __enter__(self) -> StepCalls:
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        # Objects without another reference have ended with the step, and would keep its activations.
        self.objects = {key: pair for key, pair in self.objects.items() if sys.getrefcount(pair[1]) > 2}

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in ("torch", "roundlog") or _is_called_by_library(frame, module):
            return
        if event == "call" and frame.f_code not in self.codes:
            self._note_code(frame, module)
        elif event == "c_call":
            self._note_function(frame, module, argument)

    def _note_code(self, frame: types.FrameType, module: str) -> None:
        self.codes[frame.f_code] = frame.f_globals
        owner = frame.f_locals.get("self")
        if owner is not None and is_library(module) and module.partition(".")[0] not in ("transformers", "_pytest"):
            self.objects.setdefault(id(owner), (f"self of {frame.f_code.co_qualname}", owner))
        if not is_library(module):
            for name in sorted(_ATTRIBUTES.keys() & {*frame.f_code.co_names}):
                self.refused.setdefault(f"reads {_ATTRIBUTES[name]}", _line(frame))

    def _note_function(self, frame: types.FrameType, module: str, function: Any) -> None:
        owner, name = getattr(function, "__self__", None), function.__name__
        if isinstance(owner, types.ModuleType):
            home = owner.__name__
        else:  # of a method, the class that defines it: a user's dict has the `values` of dict
            defining = next((kind for kind in type(owner).__mro__ if name in vars(kind)), type(owner))
            home = str(getattr(function, "__module__", None) or defining.__module__)
        sets_threads = home.startswith("torch") and name.startswith(("set_num", "get_num"))
        allowed = home.partition(".")[0] in _REPEATABLE and name not in _NOT_REPEATABLE and not sets_threads
        if not allowed and (home, name) not in _PRINTING and (not is_library(module) or module in _CALLED_FOR_USERS):
            self.refused.setdefault(f"calls {home}.{name}", _line(frame))
            return
        walked = not isinstance(owner, (types.ModuleType, type, Tensor, str, bytes, type(None)))
        if walked and type(owner).__module__ != "torch._C":
            at = f"object that {name} is called on in {frame.f_code.co_name}, line {frame.f_lineno}"
            self.objects.setdefault(id(owner), (at, owner))


def _is_called_by_library(frame: types.FrameType, module: str) -> bool:
    """Whether it is Python's own code, as `inspect` is, that a library calls."""
    place: types.FrameType | None = frame
    while place is not None and module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        place = place.f_back
        module = "" if place is None else str(place.f_globals.get("__name__", ""))
    return is_library(module) and place is not frame


def _line(frame: types.FrameType) -> str:
    """The innermost line outside of libraries."""
    place: types.FrameType | None = frame
    while place is not None and is_library(place.f_globals.get("__name__", "")):
        place = place.f_back
    place = place or frame
    return f"{place.f_code.co_filename.rpartition('/')[2]}:{place.f_lineno}"


def reachable(task: Task, calls: StepCalls | None = None, *, elements: bool = True) -> ReachableValues:
    """Values that the model, losses, optimizers and schedules reach, and the code that `calls` has seen. elements:
    whether digests of tensors other than the model's are taken. Raises CaptureError for objects that are nested too
    deeply."""
    model = plain_model(task.model)
    own = frozenset(id(x) for x in (*model.parameters(), *model.buffers()))
    found = ReachableValues(without_digests=own, looks_at_elements=elements)
    try:
        found.visit(model, "model")
        for phase in task.phases():
            found.visit(phase.loss, phase.called("loss"))
            if is_own(phase.optimizer):
                found.visit(phase.optimizer, phase.called("optimizer"))
        if task.of_batch is not None:
            found.visit(task.of_batch, "of_batch")
        if calls is not None:
            for code, names in calls.codes.items():
                found.code(code, names)
            for path, x in calls.objects.values():
                if id(x) not in found.seen:
                    found.visit(x, path)
    except RecursionError as error:
        raise CaptureError("the task reaches objects that are nested too deeply: hold fewer in the loss") from error
    return found
