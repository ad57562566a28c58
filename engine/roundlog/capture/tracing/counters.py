"""Python's numbers that steps change (counters, flags, factors that decay), followed without running every step.

While a step is traced, a `Counter` stands in the place of such a number. It computes as the number does, and writes
down what it is asked: comparisons, conversions, anything whose answer Python code can act on. From these questions, and
from what the step leaves in the number's place, follows what any later step does, as long as it gets the same answers.
(The idea is that of concolic testing: Godefroid, Klarlund, Sen, DART, PLDI 2005.)"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Number = bool | int | float
Numbers = Mapping[str, Number]
"""The numbers before a step, by name."""
Expression = Callable[[Numbers], Any]


@dataclass(slots=True)
class Path:
    """What one traced step asks of the numbers that steps change, and what it leaves in their place."""

    questions: list[tuple[Expression, Any]] = field(default_factory=list)
    """Everything asked, in order, with the answer."""
    asked: dict[str, None] = field(default_factory=dict)
    """Names of the numbers that questions were about, in order."""
    left: dict[str, Expression] = field(default_factory=dict)
    """Name -> the number after the step."""

    def is_taken(self, numbers: Numbers) -> bool:
        """Whether a step that begins with these numbers gets the same answers."""
        try:
            return all(_equal(question(numbers), answer) for question, answer in self.questions)
        except Exception:  # a division by zero, say, which the traced step did not meet
            return False

    def following(self, numbers: Numbers) -> dict[str, Number]:
        """The numbers after such a step."""
        return {name: self.left[name](numbers) for name in numbers}


class Counter:
    """A number that steps change, while a step is traced; or what Python has computed from such numbers."""

    __slots__ = ("_path", "expression", "names", "value")

    def __init__(self, path: Path, names: tuple[str, ...], value: Number, expression: Expression) -> None:
        """names: of the numbers that this one is computed from. expression: gives it from them."""
        self._path = path
        self.names = names
        self.value = value
        self.expression = expression

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance(n, int) in the user's code
        return type(self.value)

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """The answer to a question about the value, which is written down."""
        answer = question(self.value)
        expression = self.expression
        self._path.questions.append((lambda numbers: question(expression(numbers)), answer))
        self._path.asked.update(dict.fromkeys(self.names))
        return answer

    def compute(self, operation: Callable[..., Any], *others: Any) -> Any:
        """The operation on this number and others; NotImplemented for what is no number."""
        if any(isinstance(other, torch.Tensor) for other in others):
            return operation(self.ask(_itself), *others)
        if not all(type(other) is Counter or isinstance(other, (int, float)) for other in others):
            return NotImplemented
        terms = [self, *others]
        value = operation(*(_value(term) for term in terms))
        if isinstance(value, tuple):  # divmod
            return tuple(self.compute(lambda *numbers, i=i: operation(*numbers)[i], *others) for i in range(len(value)))
        names = tuple(dict.fromkeys(name for term in terms if type(term) is Counter for name in term.names))
        return Counter(
            self._path, names, value, lambda numbers: operation(*(_evaluated(term, numbers) for term in terms))
        )

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
        return str(self.ask(str))

    def __repr__(self) -> str:
        return str(self.ask(repr))

    def __format__(self, how: str) -> str:
        return format(self.ask(_itself), how)


def _itself(value: Number) -> Number:
    return value


def _value(term: Any) -> Any:
    return term.value if type(term) is Counter else term


def _evaluated(term: Any, numbers: Numbers) -> Any:
    return term.expression(numbers) if type(term) is Counter else term


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or (a != a and b != b)


def _computing(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *others: self.compute(operation, *others)


def _swapped(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self.compute(lambda a, b: operation(b, a), other)


def _comparing(operation: Callable[..., Any]) -> Callable[..., Any]:
    def compare(self: Counter, other: Any) -> Any:
        found = self.compute(operation, other)
        return found.ask(_itself) if type(found) is Counter else found

    return compare


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
    setattr(Counter, f"__{_name}__", _comparing(getattr(operator, _name)))
