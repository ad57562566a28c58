"""Objects of Python's that hold no others, but that a step changes: generators of random numbers, arrays, iterators and
caches, as they were when they were first looked at."""

from __future__ import annotations

import gc
import itertools
import operator
import queue
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundlog.capture.python_state.containers import equal_numbers, is_a


class RandomGenerator:
    """A generator of random numbers, as it was when it was first looked at."""

    def __init__(self, path: str, read: Callable[[], Any], write: Callable[[Any], object], key: int = 0) -> None:
        """path: in messages; empty for those of torch, whose numbers become the program's own. key: of these."""
        self.path = path
        self.key = key
        self._read, self._write = read, write
        self._saved = read()

    def put_back(self) -> None:
        self._write(self._saved)

    def state(self) -> Any:
        return self._read()

    def has_moved(self) -> bool:
        return str(self._read()) != str(self._saved)


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An array of numpy's, and what it held when it was first looked at."""

    path: str
    array: np.ndarray[Any, Any]
    saved: np.ndarray[Any, Any] | None
    """A copy of the elements; None for an array that cannot be written, and for a file in memory."""

    def has_changed(self) -> bool:
        if self.saved is None:
            return False
        # By bytes: NaN is itself, and objects are told apart by where they are.
        if self.array.dtype.hasobject or not self.array.dtype.itemsize or not self.array.flags.c_contiguous:
            return self.array.tobytes() != self.saved.tobytes()
        one, two = (array.reshape(-1).view(np.uint8) for array in (self.array, self.saved))
        return not np.array_equal(one, two)

    def put_back(self) -> None:
        if self.saved is not None:
            self.array[...] = self.saved


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """Position of an iterator that cannot be wound back: a generator function's, `itertools.count`."""

    path: str
    iterator: Any
    saved: list[Any]

    def has_moved(self) -> bool:
        try:
            now = position_of(self.iterator)
        except Exception:  # whatever a class of the user's does
            return False
        return len(now) != len(self.saved) or not all(
            one is two or equal_numbers(one, two) for one, two in zip(now, self.saved, strict=True)
        )


class Cache:
    """A cache of limited size, `functools.lru_cache`. Nobody can take an entry from it, so that it is cleared where a
    step has added one. That is harmless: its function is called again."""

    def __init__(self, path: str, function: Any) -> None:
        self.path = path
        self._function = function
        self.saved = self._held()

    def put_back(self) -> None:
        if {id(part) for part in self._held()} != {id(part) for part in self.saved}:
            self._function.cache_clear()
            self.saved = self._held()

    def _held(self) -> list[Any]:
        """Objects that the cache remembers, and its function."""
        if not self._function.cache_info().currsize:
            return []
        # Its table holds links, and none of the results.
        own = vars(self._function)
        return [part for part in parts_of(self._function) if part is not own and not _is_table(part)]


def position_of(iterator: Any) -> list[Any]:
    """Mark of the position of an iterator of Python's own: not a number, in general, but it changes with every item. An
    iterator over other iterators is as far as they are."""
    parts = parts_of(iterator)
    if isinstance(iterator, queue.SimpleQueue):
        return [item for part in parts for item in (part if type(part) is list else [part])]
    if isinstance(iterator, types.GeneratorType):
        return [None if iterator.gi_frame is None else iterator.gi_frame.f_lasti, *parts]
    if isinstance(iterator, itertools.count):
        return [repr(iterator)]
    if isinstance(iterator, itertools.cycle) and type(iterator).__reduce__ is not object.__reduce__:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            form: Any = iterator.__reduce__()
            _, (inner,), (saved, is_round) = form
        return [operator.length_hint(inner), len(saved), is_round]
    if isinstance(iterator, enumerate):
        return [iterator.__reduce__()[1][1]]
    return [operator.length_hint(iterator), *parts]


def parts_of(thing: Any) -> list[Any]:
    """The objects that an object of C refers to."""
    passed_by = (type, types.FrameType, types.CodeType)
    return [part for part in gc.get_referents(thing) if not is_a(part, passed_by)]


def _is_table(thing: Any) -> bool:
    return type(thing) is dict and "lru" in "".join(type(link).__name__ for link in thing.values())
