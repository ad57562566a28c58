"""Uses of numbers of Python's that steps change. As arguments of operators: where a tensor may stand in the place of a
number, and means the same, a column of the schedule does. As texts: whether they go nowhere but into a print or a
log."""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
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
        """The number; another one makes another step."""


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


_LEVELS = ("debug", "info", "warning", "error", "critical")


def is_only_printed(frame: FrameType) -> bool:
    """Whether what is made a text where a frame stands is printed, and nothing else."""
    call = _calls(frame.f_code.co_filename).get(frame.f_lineno)
    if call is None:
        return False
    if isinstance(call.func, ast.Name):
        return call.func.id == "print" and _variable(frame, "print") is builtins.print
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        owner = _variable(frame, call.func.value.id)
        return call.func.attr in _LEVELS and (owner is logging or type(owner) is logging.Logger)
    return False


def _variable(frame: FrameType, name: str) -> Any:
    if name in frame.f_locals:
        return frame.f_locals[name]
    return frame.f_globals.get(name, getattr(builtins, name, None))


@functools.lru_cache(maxsize=256)
def _calls(path: str) -> dict[int, ast.Call]:
    """Line -> the call that is the only statement on it, and whose arguments are texts and numbers."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return {}
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    starts = Counter(node.lineno for node in statements)
    found = {}
    for node in statements:
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call) or starts[node.lineno] != 1:
            continue
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if all(map(_is_text, node.value.args)) and not node.value.keywords and not any(starts[n] for n in lines[1:]):
            found.update(dict.fromkeys(lines, node.value))
    return found


def _is_text(node: ast.expr) -> bool:
    """Whether it is an f-string of numbers, or a number."""
    if not isinstance(node, ast.JoinedStr):
        return _is_number(node)
    parts = [part for part in node.values if isinstance(part, ast.FormattedValue)]
    constant = (part.format_spec is None or all(map(_is_constant, ast.walk(part.format_spec))) for part in parts)
    return all(_is_number(part.value) for part in parts) and all(constant)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, (ast.JoinedStr, ast.Constant))


def _is_number(node: ast.expr) -> bool:
    """Whether a text that an expression makes on the way cannot decide about anything: it makes none."""
    if isinstance(node, (ast.Name, ast.Constant)):
        return True
    if isinstance(node, ast.Attribute):
        return _is_number(node.value)
    if isinstance(node, ast.BinOp):
        return not isinstance(node.op, ast.Mod) and _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Call) and not node.args and not node.keywords and _is_number(node.func)
