"""Numbers of Python's that steps change, as arguments of operators: where a tensor may stand in the place of a number,
and means the same, a column of the schedule does.

Everywhere else (sizes, axes, probabilities) the operator gets the number itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

import torch
from torch.utils._pytree import tree_leaves, tree_map

_BINARY = ("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide")
_COMPARISONS = ("lt", "le", "gt", "ge", "less", "less_equal", "greater", "greater_equal")

_AS_TENSORS = frozenset(
    [
        *(name + end for name in _BINARY for end in ("", "_")),
        *_COMPARISONS,
        *("__rsub__", "__rdiv__", "__rtruediv__", "rsub", "pow", "pow_", "__rpow__", "lerp", "lerp_", "where"),
        *("masked_fill", "masked_fill_", "fill_"),
    ]
)
"""Functions of torch that take a tensor of one number where they take a number, and give the same."""

_CLAMPS = ("clamp", "clamp_", "clip", "clip_")

_SCALED: dict[str, Callable[..., torch.Tensor]] = {
    "addcmul": torch.mul,
    "addcmul_": torch.mul,
    "addcdiv": torch.div,
    "addcdiv_": torch.div,
}


class Followed(Protocol):
    """A number whose value at every step is known."""

    value: bool | int | float

    @property
    def column(self) -> torch.Tensor | None:
        """The number as a tensor of the trace, f32[]; None if there is no column left for it."""

    def itself(self) -> bool | int | float:
        """The number, of which the step is another if it is another."""


def with_columns(kind: type, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Result of a function of torch that is given such numbers.

    kind: their class, whose objects are `Followed`."""
    found = _Call(kind, func, args, kwargs).by_columns()
    if found is not NotImplemented:
        return found
    args, kwargs = tree_map(lambda leaf: cast(Followed, leaf).itself() if type(leaf) is kind else leaf, (args, kwargs))
    return func(*args, **kwargs)


class _Call:
    """A call of a function of torch."""

    def __init__(self, kind: type, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._kind, self._func, self._args, self._kwargs = kind, func, args, kwargs
        self._name = getattr(func, "__name__", "")
        leaves = tree_leaves((args, kwargs))
        self._tensors = [leaf for leaf in leaves if issubclass(type(leaf), torch.Tensor)]
        self._numbers = [cast(Followed, leaf) for leaf in leaves if type(leaf) is kind]

    def by_columns(self) -> Any:
        """The result; NotImplemented where a number itself is needed."""
        if self._name in ("full", "full_like", "new_full"):
            return self._filled()
        if not all(self._fits(number) for number in self._numbers):
            return NotImplemented
        if self._name == "__setitem__" and self._only(2):
            return self._with_tensors()
        if self._name in _CLAMPS:
            return self._clamped()
        if "alpha" in self._kwargs and type(self._kwargs["alpha"]) is self._kind:
            return self._added()
        if self._name in _SCALED and len(self._args) == 3 and set(self._kwargs) == {"value"}:
            return self._scaled()
        if self._name in _AS_TENSORS and not set(self._kwargs) & {"alpha", "out", "rounding_mode"}:
            return self._with_tensors()
        return NotImplemented

    def _fits(self, number: Followed) -> bool:
        """Whether a column is promoted with the tensors as the number is: programs have columns of FP32 only."""
        if type(number.value) is float:
            return bool(self._tensors)
        exact = type(number.value) is int and abs(number.value) <= 2**53
        return exact and any(tensor.is_floating_point() for tensor in self._tensors)

    def _only(self, place: int) -> bool:
        """Whether the one number is the argument in this place."""
        return len(self._numbers) == 1 and len(self._args) > place and self._args[place] is self._numbers[0]

    def _columns(self) -> Iterator[torch.Tensor | None]:
        return (number.column for number in self._numbers)

    def _with_tensors(self, more: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
        """The function itself, with columns."""
        if any(column is None for column in self._columns()):
            return NotImplemented

        def replaced(leaf: Any) -> Any:
            return cast(Followed, leaf).column if type(leaf) is self._kind else more(leaf)

        args, kwargs = tree_map(replaced, (self._args, self._kwargs))
        return self._func(*args, **kwargs)

    def _clamped(self) -> Any:
        """Both limits are tensors, or both are numbers."""
        if self._tensors[0].dtype != torch.float32:
            return NotImplemented
        return self._with_tensors(lambda leaf: torch.tensor(float(leaf)) if type(leaf) in (int, float) else leaf)

    def _added(self) -> Any:
        """x + alpha * y."""
        options = {name: value for name, value in self._kwargs.items() if name not in ("alpha", "other")}
        terms: Sequence[Any] = [*self._args, *([self._kwargs["other"]] if "other" in self._kwargs else [])]
        simple = self._name.rstrip("_") in ("add", "sub", "subtract") and len(terms) == 2 and not options
        if not simple or not all(_is_float(term) for term in terms) or (column := self._numbers[0].column) is None:
            return NotImplemented
        return self._func(terms[0], column * terms[1])

    def _scaled(self) -> Any:
        """x + value * (a * b), or a / b."""
        x, a, b = self._args
        if not all(map(_is_float, (x, a, b))) or (column := self._numbers[0].column) is None:
            return NotImplemented
        part = column * _SCALED[self._name](a, b)
        return x.add_(part) if self._name.endswith("_") else torch.add(x, part)

    def _filled(self) -> Any:
        """A new tensor of one number."""
        place = 2 if self._name == "new_full" else 1
        dtype = self._kwargs.get("dtype")
        if self._name == "full":
            shape = self._args[0] if self._args else None
        else:
            shape = self._args[1] if self._name == "new_full" and len(self._args) > 1 else self._args[0].shape
            dtype = dtype or self._args[0].dtype
        if not self._only(place) or shape is None or set(self._kwargs) - {"dtype", "device"}:
            return NotImplemented
        if dtype not in (None, torch.float32) or (dtype is None and type(self._numbers[0].value) is not float):
            return NotImplemented
        column = self._numbers[0].column
        return NotImplemented if column is None else column.expand(shape).clone()


def _is_float(thing: Any) -> bool:
    return issubclass(type(thing), torch.Tensor) and bool(thing.dtype == torch.float32)
