"""Code that one real step runs outside of PyTorch, and functions written in C that it calls.

What is called in C cannot be walked. An allow-list says which of these functions give the same whenever they are given
the same; a step that calls another one is refused by its name, as for clocks, files and sockets."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from roundlog.capture.real_steps.reachable_values import is_library

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

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in ("torch", "roundlog") or _is_called_by_torch(frame, module):
            return
        if event == "call" and frame.f_code not in self.codes:
            self._note_code(frame, module)
        elif event == "c_call":
            self._note_function(frame, module, argument)

    def _note_code(self, frame: types.FrameType, module: str) -> None:
        self.codes[frame.f_code] = frame.f_globals
        owner = frame.f_locals.get("self")
        if owner is not None and is_library(module) and module.partition(".")[0] != "transformers":
            self.objects.setdefault(id(owner), (f"self of {frame.f_code.co_qualname}", owner))
        if not is_library(module):
            for name in sorted(_ATTRIBUTES.keys() & {*frame.f_code.co_names}):
                self.refused.setdefault(f"reads {_ATTRIBUTES[name]}", _line(frame))

    def _note_function(self, frame: types.FrameType, module: str, function: Any) -> None:
        owner, name = getattr(function, "__self__", None), function.__name__
        if isinstance(owner, types.ModuleType):
            home = owner.__name__
        else:
            home = str(getattr(function, "__module__", None) or type(owner).__module__)
        sets_threads = home.startswith("torch") and name.startswith(("set_num", "get_num"))
        allowed = home.partition(".")[0] in _REPEATABLE and name not in _NOT_REPEATABLE and not sets_threads
        if not allowed and (home, name) not in _PRINTING and (not is_library(module) or module in _CALLED_FOR_USERS):
            self.refused.setdefault(f"calls {home}.{name}", _line(frame))
            return
        walked = not isinstance(owner, (types.ModuleType, type, Tensor, str, bytes, type(None)))
        if walked and type(owner).__module__ != "torch._C":
            at = f"object that {name} is called on in {frame.f_code.co_name}, line {frame.f_lineno}"
            self.objects.setdefault(id(owner), (at, owner))


def _is_called_by_torch(frame: types.FrameType, module: str) -> bool:
    """Whether it is Python's own code, as `inspect` is, that PyTorch calls."""
    place: types.FrameType | None = frame
    while place is not None and module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        place = place.f_back
        module = "" if place is None else str(place.f_globals.get("__name__", ""))
    return module.partition(".")[0] == "torch" and place is not frame


def _line(frame: types.FrameType) -> str:
    """The innermost line outside of libraries."""
    place: types.FrameType | None = frame
    while place is not None and is_library(place.f_globals.get("__name__", "")):
        place = place.f_back
    place = place or frame
    return f"{place.f_code.co_filename.rpartition('/')[2]}:{place.f_lineno}"
