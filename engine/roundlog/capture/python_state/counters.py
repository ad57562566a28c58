"""Python's numbers that steps change (counters, flags, factors that decay), followed without running every step.

While a step is traced, a `Counter` stands in the place of such a number. It computes as the number does, and writes
down what it is asked: comparisons, conversions, anything whose answer Python code can act on. From these questions, and
from what the step leaves in the number's place, follows what any later step does, as long as it gets the same answers.
What it gives to an operator of tensors as a number is no question: a column of the schedule stands there, whose value
at every step follows, too.
(The idea is that of concolic testing: Godefroid, Klarlund, Sen, DART, PLDI 2005.)"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from roundlog.capture.python_state.number_uses import is_only_printed, with_columns

Number = bool | int | float
Numbers = Mapping[str, Number]
"""The numbers before a step, by name."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A number as it is before the step."""

    name: str


@dataclass(frozen=True, slots=True)
class _Result:
    """Result of an entry of the path's list."""

    entry: int


@dataclass(slots=True)
class Slots:
    """Columns that stand for numbers: the same number has the same one on all paths of a step."""

    slot_of: dict[int, int] = field(default_factory=dict)
    """Number of a computation -> its column."""
    _known: dict[object, int] = field(default_factory=dict)

    def number_of(self, computation: object) -> int:
        """Number of a computation, told from others."""
        return self._known.setdefault(computation, len(self._known))


@dataclass(slots=True)
class Path:
    """Questions that one traced step asks of the numbers that steps change, and the numbers that it leaves in their
    place."""

    asked: dict[str, None] = field(default_factory=dict)
    """Names of the numbers that questions were about, in order."""
    left: dict[str, Any] = field(default_factory=dict)
    """Name -> the number after the step, as a term: a number, one before the step, or a result."""
    columns: Sequence[torch.Tensor] = ()
    """Tensors of the trace, f32[], that stand for numbers which the step gives to operators."""
    slots: Slots = field(default_factory=Slots)
    """Which of the columns stand for which."""
    _used: dict[int, Any] = field(default_factory=dict)
    """Terms of these numbers, by column."""
    _entries: list[tuple[Callable[..., Any], tuple[Any, ...], Callable[[Any], bool]]] = field(default_factory=list)
    """List of all computations and questions, in order: the operation, its terms, and whether a result is as it was."""
    _numbers: list[int] = field(default_factory=list)
    """Numbers of these computations."""
    _computed: dict[object, Any] = field(default_factory=dict)

    def add(self, operation: Callable[..., Any], terms: tuple[Any, ...], check: Callable[[Any], bool]) -> _Result:
        """Note an operation."""
        self._entries.append((operation, terms, check))
        self._numbers.append(self.slots.number_of((operation, *map(self._number_of, terms))))
        return _Result(len(self._entries) - 1)

    def given(self, name: str, value: Number) -> Counter | bool:
        """The number as a step finds it. A flag is itself, and a question, since `is True` asks nobody."""
        counter, kind = Counter.named(self, name, value), type(value)
        self.add(type, (counter.term,), lambda found: found is kind)
        return bool(counter.ask(_itself)) if kind is bool else counter

    def computed(self, operation: Callable[..., Any], terms: Sequence[Any], compute: Callable[[], Any]) -> Any:
        """Result of an operation, which is noted once: loops over parameters compute the same for each."""
        key = (operation, *((type(term), repr(term)) for term in map(term_of, terms)))
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    def result(self, operation: Callable[..., Any], values: tuple[Any, ...], terms: tuple[Any, ...]) -> Any:
        """The operation on values. An error that it raises, which the step may catch, is noted."""
        try:
            return operation(*values)
        except Exception as error:
            kind = type(error)
            self.add(_error_of(operation), terms, lambda found: found is kind)
            raise

    def column(self, term: Any) -> torch.Tensor | None:
        """Column that stands for a number; None if all are taken."""
        slots = self.slots.slot_of
        if (number := self._number_of(term)) not in slots and len(slots) == len(self.columns):
            return None
        slot = slots.setdefault(number, len(slots))
        self._used[slot] = term
        return self.columns[slot]

    def _number_of(self, term: Any) -> int:
        """Number of what a term computes."""
        return self._numbers[term.entry] if type(term) is _Result else self.slots.number_of((type(term), repr(term)))

    @property
    def uses_columns(self) -> bool:
        return bool(self._used)

    def following(self, numbers: Numbers) -> tuple[dict[str, Number], dict[int, Number]] | None:
        """The numbers after a step that begins with these, and those in its columns, by column; None if it does not get
        the same answers."""
        results: list[Any] = []

        def value(term: Any) -> Any:
            if type(term) is _Named:
                return numbers[term.name]
            return results[term.entry] if type(term) is _Result else term

        for operation, terms, check in self._entries:
            try:
                result = operation(*map(value, terms))
            except Exception:  # a division by zero, say, which the traced step did not meet
                return None
            if not check(result):
                return None
            results.append(result)
        return {name: value(self.left[name]) for name in numbers}, {
            slot: value(term) for slot, term in self._used.items()
        }


class DependsOnValuesError(Exception):
    """Numbers become others by the values that a step computes."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names


class Paths:
    """Paths of counters through one step, on all ways that values lead it on."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._slots = Slots()

    @property
    def uses_columns(self) -> bool:
        return any(path.uses_columns for path in self._paths)

    @property
    def asked(self) -> dict[str, None]:
        return {name: None for path in self._paths for name in path.asked}

    def begin(self) -> Path:
        """The next path."""
        self._paths.append(Path(slots=self._slots))
        return self._paths[-1]

    def apart(self, alike: Mapping[str, str]) -> set[str]:
        """Names of the numbers that a path leaves as others than those that they were taken for the same as."""
        return {
            name
            for path in self._paths
            for name, other in alike.items()
            if name in path.left and not _same(path.left[name], path.left.get(other))
        }

    def leave(self, name: str, term: Any) -> None:
        """Note what the path that was begun last leaves in a number's place."""
        self._paths[-1].left[name] = term

    def following(self, numbers: Numbers) -> tuple[dict[str, Number], list[Number]] | None:
        """The numbers after a step that begins with these, and those in its columns; None if it does not get the same
        answers. Raises DependsOnValuesError where paths leave different ones."""
        found: list[dict[str, Number]] = []
        columns: dict[int, Number] = {}
        for path in self._paths:
            if (one := path.following(numbers)) is None:
                return None
            found.append(one[0])
            columns |= one[1]
        if names := [name for name in found[0] if not all(_same(other[name], found[0][name]) for other in found)]:
            raise DependsOnValuesError(names)
        return found[0], [columns[slot] for slot in range(len(columns))]


class Counter:
    """A number that steps change, while a step is traced; or what Python has computed from such numbers."""

    __slots__ = ("_path", "names", "term", "value")

    def __init__(self, path: Path, names: tuple[str, ...], value: Number, term: Any) -> None:
        """names: of the numbers that this one is computed from. term: what it is on the path."""
        self._path = path
        self.names = names
        self.value = value
        self.term = term

    @classmethod
    def named(cls, path: Path, name: str, value: Number) -> Counter:
        """A number as it is before the step."""
        return cls(path, (name,), value, _Named(name))

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance(n, int) in the user's code
        kind = type(self.value)
        self._path.add(type, (self.term,), lambda found: found is kind)
        return kind

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """The answer to a question about the value, which is written down."""
        self._path.asked.update(dict.fromkeys(self.names))
        answer = self._path.result(question, (self.value,), (self.term,))
        self._path.add(question, (self.term,), lambda found: _same(found, answer))
        return answer

    def compute(self, operation: Callable[..., Any], *others: Any) -> Any:
        """The operation on this number and others; NotImplemented for what is no number."""
        if not all(type(other) in (Counter, bool, int, float) for other in others):
            return NotImplemented
        return self.called(operation, (self, *others))

    def called(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """A function's result for numbers, this one among them. Raises what the function raises."""
        return self._path.computed(function, arguments, lambda: self._compute(function, arguments))

    def _compute(self, operation: Callable[..., Any], terms: Sequence[Any]) -> Any:
        found = tuple(map(term_of, terms))
        value = self._path.result(operation, tuple(map(value_of, terms)), found)
        if isinstance(value, tuple):  # divmod
            parts = (lambda *numbers, i=i: operation(*numbers)[i] for i in range(len(value)))
            return tuple(self.called(part, terms) for part in parts)
        kind = type(value)
        result = self._path.add(operation, found, lambda other: type(other) is kind)
        names = tuple(dict.fromkeys(name for term in terms if type(term) is Counter for name in term.names))
        counter = Counter(self._path, names, value, result)
        return counter.ask(_itself) if kind is bool else counter

    @property
    def column(self) -> torch.Tensor | None:
        """The number as a tensor of the trace, f32[]; None if there is no column left for it."""
        return self._path.column(self.term)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return with_columns(cls, func, args, kwargs or {})

    def __array_ufunc__(self, function: Callable[..., Any], method: str, *inputs: Any, **options: Any) -> Any:
        return self._by_numpy(function, inputs) if method == "__call__" and not options else NotImplemented

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return NotImplemented if kwargs else self._by_numpy(function, args)

    def _by_numpy(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Result of a function of numpy's, as `np.exp`, that is given numbers, and lists and arrays of numbers."""
        terms = [arg.tolist() if isinstance(arg, np.ndarray | np.generic) else arg for arg in args]
        if not all(type(leaf) in (Counter, bool, int, float) for leaf in tree_leaves(terms)):
            return NotImplemented
        parts = [term for term in terms if type(term) not in (Counter, bool, int, float)]
        if any(type(leaf) is Counter for leaf in tree_leaves(parts)):
            return NotImplemented
        values = tuple(map(value_of, terms))
        if np.ndim(self._path.result(function, values, tuple(map(term_of, terms)))):  # which no number is
            return function(*(term.itself() if type(term) is Counter else term for term in terms))
        return self.called(_as_number(function), terms)

    def itself(self) -> Number:
        """The number; another one makes another step."""
        return self.ask(_itself)  # type: ignore[no-any-return]

    def __copy__(self) -> Counter:
        return self

    def __deepcopy__(self, memory: object) -> Counter:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.ask(_itself), name)

    def __hash__(self) -> int:
        return hash(self.ask(_itself))

    def __bool__(self) -> bool:
        return bool(self.ask(bool))

    def __int__(self) -> int:
        return int(self.ask(int))

    def __float__(self) -> float:
        return float(self.ask(float))

    def __index__(self) -> int:
        return int(operator.index(self.ask(_itself)))

    def __str__(self) -> str:
        return str(self.value) if is_only_printed(sys._getframe(1)) else str(self.ask(str))

    def __repr__(self) -> str:
        return repr(self.value) if is_only_printed(sys._getframe(1)) else str(self.ask(repr))

    def __format__(self, how: str) -> str:
        return format(self.value if is_only_printed(sys._getframe(1)) else self.ask(_itself), how)


def term_of(number: Any) -> Any:
    """Term of a number on its path."""
    return number.term if type(number) is Counter else number


def value_of(number: Any) -> Any:
    """A number itself, which may be followed; no question about it."""
    return number.value if type(number) is Counter else number


@functools.cache
def _as_number(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numpy's that gives numbers of Python's."""
    return lambda *values: np.asarray(function(*values)).item()


def _itself(value: Number) -> Number:
    return value


def _same(a: Any, b: Any) -> bool:
    """NaN is the same as NaN, and 0.0 is not -0.0."""
    return type(a) is type(b) and repr(a) == repr(b)


def _error_of(operation: Callable[..., Any]) -> Callable[..., Any]:
    """The class of the error that an operation raises; None if it raises none."""

    def error(*values: Any) -> type | None:
        try:
            operation(*values)
        except Exception as error:
            return type(error)
        return None

    return error


def _computing(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: self.compute(operation, *others)


def _swapped(operation: Callable[..., Any]) -> Callable[..., Any]:
    def swapped(a: Any, b: Any) -> Any:
        return operation(b, a)

    return lambda self, other: self.compute(swapped, other)


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor")
_OTHER: tuple[Callable[..., Any], ...] = (
    *(divmod, round, abs, operator.neg, operator.pos, operator.invert),
    *(math.floor, math.ceil, math.trunc),
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
for _name in _BINARY:
    setattr(Counter, f"__{_name.rstrip('_')}__", _computing(getattr(operator, _name)))
    setattr(Counter, f"__r{_name.rstrip('_')}__", _swapped(getattr(operator, _name)))
for _operation in _OTHER:
    setattr(Counter, f"__{_operation.__name__}__", _computing(_operation))
for _name in _COMPARISONS:
    setattr(Counter, f"__{_name}__", _computing(getattr(operator, _name)))
