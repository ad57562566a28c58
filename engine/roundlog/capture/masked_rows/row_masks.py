"""Axes whose elements a mask has chosen: their sizes in PyTorch, their masks in the program. And the operator calls of
a traced step that have to do with them, as the functions that lower them see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Never

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.utils._pytree import tree_leaves
from torch.utils._sympy import functions

from roundlog.capture.builder import Value
from roundlog.capture.errors import CaptureError
from roundlog.capture.rules.numbers import is_number
from roundlog.capture.rules.rule_table import Context, NodeValues, Rule
from roundlog.capture.rules.short_formats import applied, short_dtypes
from roundlog.program import DType

Axes = tuple[Value | None, ...]
"""One entry an axis: the mask, bool[size], of the elements that count; None if all do."""

Part = tuple[int, Value | None]
"""Size and mask of an axis that is a part of another one."""

REWRITE = "keep all rows, and choose by torch.where"


def is_unknown(size: Any) -> bool:
    """Whether a size of a traced tensor depends on values."""
    return type(size) is not int


def expression(size: Any) -> sympy.Expr:
    """A size of a traced tensor by its symbols, one for the number of elements that each mask chooses."""
    return sympy.Integer(size) if type(size) is int else size.node.expr


class AxisTable:
    """The masks of a step, by the symbols and sizes that PyTorch has for the numbers of elements that they choose."""

    def __init__(self, context: Context) -> None:
        self._c = context
        self._by_size: dict[sympy.Expr, Value] = {}
        self._factors: dict[Value, tuple[Part, ...]] = {}
        """Mask of an axis -> the axes that it was made of, row-major."""
        self._joined: dict[Value, tuple[tuple[sympy.Expr, Part], ...]] = {}
        """Mask of an axis -> what was joined along it, with its size in PyTorch."""

    def add(self, size: Any, mask: Value) -> None:
        """Notes that a mask chooses this number of elements. Raises CaptureError if PyTorch takes the number for that
        of another mask, or for a known one."""
        symbol = expression(size)
        if not isinstance(symbol, sympy.Symbol):
            raise CaptureError(f"chooses elements by a mask, and goes on as if they were always {symbol}: {REWRITE}")
        if self._by_size.setdefault(symbol, mask) != mask:
            raise CaptureError(TWO_MASKS)

    def knows(self, number: Any) -> bool:
        """Whether a number of Python is computed from numbers of chosen elements alone."""
        symbols = number.node.expr.free_symbols
        return bool(symbols) and symbols <= self._by_size.keys()

    def length(self, size: Any) -> int:
        """Size of an axis in the program. Raises CaptureError for one that comes from no mask."""
        found = expression(size).xreplace({symbol: self._size_of(symbol) for symbol in expression(size).free_symbols})
        if not isinstance(found, sympy.Integer):
            raise CaptureError(f"has a size that is computed from the number of chosen elements: {REWRITE}")
        return int(found)

    def _size_of(self, symbol: sympy.Symbol) -> sympy.Integer:
        if symbol not in self._by_size:
            raise CaptureError("has a size that a number of Python decides, which depends on values: " + REWRITE)
        return sympy.Integer(self._c.shape(self._by_size[symbol])[0])

    def shape(self, sizes: Iterable[Any]) -> tuple[int, ...]:
        """Shape of a traced tensor in the program."""
        return tuple(self.length(size) for size in sizes)

    def of_size(self, size: Any) -> Value | None:
        """The mask of an axis that is made with this size."""
        if not is_unknown(size):
            return None
        key = expression(size)
        if key not in self._by_size:
            self.length(size)
            numbers, symbols = key.as_coeff_mul()
            if not all(isinstance(symbol, sympy.Symbol) for symbol in symbols):
                raise CaptureError(
                    f"makes an axis of the size {key}, computed from numbers of chosen elements: {REWRITE}"
                )
            parts: list[Part] = [(self._c.shape(self._by_size[s])[0], self._by_size[s]) for s in symbols]
            self._by_size[key] = self.merged([*parts, (int(numbers), None)])
        return self._by_size[key]

    def merged(self, parts: Sequence[Part]) -> Value:
        """Mask of several axes taken together as one, row-major: what counts along all of them."""
        parts = tuple(whole_parts(parts))
        if len(parts) == 1 and parts[0][1] is not None:
            return parts[0][1]
        sizes = [size for size, _ in parts]
        whole: Value | None = None
        for place, (size, mask) in enumerate(parts):
            if mask is not None:
                along = self._c.builder.reshape(mask, [size if d == place else 1 for d in range(len(parts))])
                whole = along if whole is None else self._c.op("logical_and", whole, along)
        assert whole is not None
        flat = self._c.builder.reshape(self._c.builder.expand(whole, sizes), (prod(sizes),))
        self._factors[flat] = parts
        return flat

    def factors(self, mask: Value) -> tuple[Part, ...]:
        """The axes that an axis was made of; itself, if of none."""
        own = self._c.shape(mask)[0]
        return self._factors.get(mask, ((own, mask),))

    def note(self, size: Any, mask: Value | None) -> None:
        """Notes that an axis of this size in PyTorch has this mask."""
        if mask is not None and is_unknown(size):
            self._by_size.setdefault(expression(size), mask)

    def joined(self, parts: Sequence[tuple[Any, Part]]) -> Value:
        """Mask of axes joined one behind the other, each with its size in PyTorch."""
        masks = [mask if mask is not None else self._all(size) for _, (size, mask) in parts]
        whole = masks[0] if len(masks) == 1 else self._c.op("cat", *masks, dim=0)
        self._joined[whole] = tuple((expression(size), part) for size, part in parts)
        return whole

    def _all(self, size: int) -> Value:
        return self._c.builder.constant(True, DType.BOOL, (size,))

    def part(self, mask: Value, start: Any, stop: Any) -> tuple[int, int, Value | None] | None:
        """(first, last, mask) of the joined parts that lie from one place to another, places in PyTorch; None if these
        are not where parts begin and end."""
        places, lengths = [sympy.Integer(0)], [0]
        parts = self._joined.get(mask, ())
        for size, (length, _) in parts:
            places.append(places[-1] + size)
            lengths.append(lengths[-1] + length)
        first, last = expression(start), expression(stop)
        if first not in places or last not in places:
            return None
        one, two = places.index(first), places.index(last)
        if two <= one:
            return None
        taken = parts[one:two]
        if len(taken) == 1:
            return lengths[one], lengths[two], taken[0][1][1]
        return lengths[one], lengths[two], self.joined([(SizeOf(size), part) for size, part in taken])

    def is_beginning(self, mask: Value | None) -> bool:
        """Whether a mask chooses the first elements of an axis, so that they have the same places among themselves."""
        node = None if mask is None else self._c.builder.nodes[mask]
        if node is None or node.op != "lt":
            return False
        numbers, limit = (self._c.builder.nodes[value] for value in node.inputs)
        counted = numbers.op == "iota" and (numbers.attributes["start"], numbers.attributes["step"]) == (0, 1)
        return counted and limit.type.numel == 1

    def wide(self, mask: Value, axis: int, rank: int) -> Value:
        """A mask along one axis of a tensor of this rank."""
        size = self._c.shape(mask)[0]
        return self._c.builder.reshape(mask, [size if d == axis else 1 for d in range(rank)])

    def filled(self, x: Value, axes: Axes, fill: float | bool) -> Value:
        """x, with a number in the place of what does not count."""
        chosen: Value | None = None
        for axis, mask in enumerate(axes):
            if mask is not None:
                wide = self.wide(mask, axis, len(axes))
                chosen = wide if chosen is None else self._c.op("logical_and", chosen, wide)
        if chosen is None:
            return x
        return self._c.op("where", chosen, x, self._c.builder.constant(fill, self._c.dtype(x)))

    def count(self, mask: Value) -> Value:
        """Number of elements that a mask chooses, i64."""
        return self._c.builder.reshape(self._c.op("sum_i64", self._c.op("to_i64", mask), dims=(0,)), ())

    def number(self, item: Any) -> Value:
        """A number of Python that is computed from numbers of chosen elements, as an i64 or f32 of the program."""
        return self._number(item.node.expr)

    def _number(self, e: sympy.Expr) -> Value:
        c = self._c
        if isinstance(e, sympy.Symbol):
            self._size_of(e)
            return self.count(self._by_size[e])
        if isinstance(e, sympy.Integer):
            return c.i64(int(e))
        if isinstance(e, sympy.Float):
            return c.f32(float(e))
        if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
            base, result = self._number(e.base), self._number(e.base)
            for _ in range(int(e.exp) - 1):
                result = c.op("mul", result, base)
            return result
        parts = [self._number(part) for part in e.args] if not isinstance(e, sympy.Pow) else []
        if isinstance(e, functions.ToFloat):
            return c.builder.convert(parts[0], DType.F32)
        if isinstance(e, functions.FloatTrueDiv | functions.IntTrueDiv):
            return c.op("div", *(c.builder.convert(part, DType.F32) for part in parts))
        name = next((name for kind, name in _OPERATIONS.items() if isinstance(e, kind)), None)
        if name is None:
            raise CaptureError(f"computes {e} from the number of chosen elements: compute it with mask.sum() instead")
        dtype = DType.F32 if any(c.dtype(part) == DType.F32 for part in parts) else DType.I64
        parts = [c.builder.convert(part, dtype) for part in parts]
        result = parts[0]
        for part in parts[1:]:
            result = c.op(name, result, part)
        return result


def whole_parts(parts: Iterable[Part]) -> list[Part]:
    """Axes with those that all count along taken together, where they follow on each other."""
    found: list[Part] = []
    for size, mask in parts:
        if mask is None and found and found[-1][1] is None:
            found[-1] = (found[-1][0] * size, None)
        elif mask is not None or size != 1:
            found.append((size, mask))
    return found


_OPERATIONS: dict[Any, str] = {
    sympy.Add: "add",
    sympy.Mul: "mul",
    functions.Max: "maximum",
    functions.Min: "minimum",
}

TWO_MASKS = (
    "brings the rows that one mask chooses, whose number depends on values, together with those of another, or with "
    "all rows: choose both by the same mask"
)


class SizeOf:
    """A size that stands for itself, as those of traced tensors do."""

    def __init__(self, expr: sympy.Expr) -> None:
        self.node = self
        self.expr = expr


def padded(traced: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor without values that has the shape of a traced one in the program."""
    return torch.empty(shape, dtype=traced.dtype, device="meta")


Lowered = tuple[Any, Any]
"""Values that an operator gives, and the axes of each."""

Lowerer = Callable[["Call"], Lowered]

LOWERERS: dict[str, Lowerer] = {}
"""ATen name, with or without overload -> function that lowers its calls on chosen rows."""


_SIZES = ("size", "sizes", "input_sizes")
"""Arguments that are sizes of tensors, and no other numbers."""

_OF_NUMBERS = (
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "clamp",
    "clamp_min",
    "clamp_max",
)
"""Operators whose rules take a value of the program for a number of Python's."""


def lowers(*names: str) -> Callable[[Lowerer], Lowerer]:
    """Registers a function under ATen names ("sum", or "max.dim" for one overload)."""

    def add(function: Lowerer) -> Lowerer:
        LOWERERS.update(dict.fromkeys(names, function))
        return function

    return add


class Call:
    """One call, with its arguments."""

    def __init__(
        self,
        context: Context,
        table: AxisTable,
        node: fx.Node,
        rule: Rule | None,
        values: NodeValues,
        axes: Mapping[fx.Node, Any],
        traced: Mapping[fx.Node, Any],
        places: dict[fx.Node, tuple[Value, torch.Tensor]],
    ) -> None:
        """rule: the one for rows that all count. By graph node, values: its value; axes: the masks of its axes; traced:
        the traced tensor; places, for positions that a mask chooses: the value of all positions, and all of them."""
        self.c, self.table, self.node = context, table, node
        self._rule, self._values, self._axes, self._traced = rule, values, axes, traced
        self.places = places
        schema = getattr(node.target, "_schema", None)
        self._schema = [] if schema is None else list(schema.arguments)

    @property
    def traced(self) -> Any:
        """The traced result, whose sizes are those of PyTorch."""
        return self._traced[self.node]

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its name, as it stands in the graph."""
        for place, argument in enumerate(self._schema):
            if argument.name == name:
                given = self.node.args[place] if place < len(self.node.args) else self.node.kwargs.get(name)
                return default if given is None else given
        return default

    def tensors(self) -> list[fx.Node]:
        """The tensors among the arguments."""
        return [node for node in self.node.all_input_nodes if not is_number(node)]

    def value(self, node: fx.Node) -> Value:
        found: Value = self._values.value(node)
        return found

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        return self.c.shape(self.value(node))

    def size(self, node: fx.Node, dim: int) -> Any:
        """Size of a tensor's axis in PyTorch."""
        return self._traced.get(node, node.meta["val"]).shape[dim]

    def axes(self, node: fx.Node) -> Axes:
        """The masks of a tensor's axes."""
        return self._axes.get(node) or (None,) * len(self.shape(node))

    def positions(self, node: fx.Node) -> torch.Tensor | None:
        """All positions, if a tensor holds those that a mask chooses and nothing was written into it since."""
        value, found = self.places.get(node, (None, None))
        return found if value == self.value(node) else None

    def filled(self, node: fx.Node, fill: float | bool) -> Value:
        """A tensor with a number in the place of what does not count."""
        return self.table.filled(self.value(node), self.axes(node), fill)

    def plain(self, replaced: Mapping[fx.Node, Value] | None = None) -> Any:
        """The result of the rule, which knows of no masks. replaced: values in the place of those of some arguments."""
        if self._rule is None:
            self.refuse()
        if short_dtypes(self.node) and not any(map(is_number, self.node.all_input_nodes)):
            values, name = replaced or {}, str(self.node.target).removeprefix("aten.")
            options = {key: item for key, item in self.node.kwargs.items() if key != "generator"}
            return applied(self.c, name, self._rule, options, lambda x: values[x] if x in values else self.value(x))
        args = [self._given(name, kind, item, replaced or {}) for name, kind, item in self._arguments()]
        options = {
            argument.name: self._given(
                argument.name, str(argument.type), self.node.kwargs[argument.name], replaced or {}
            )
            for argument in self._schema
            if argument.name in self.node.kwargs and argument.name != "generator"
        }
        return self._rule(self.c, *args, **options)

    def _arguments(self) -> list[tuple[str, str, Any]]:
        pairs = zip(self._schema, self.node.args, strict=False)
        return [(argument.name, str(argument.type), item) for argument, item in pairs]

    def _given(self, name: str, kind: str, item: Any, replaced: Mapping[fx.Node, Value]) -> Any:
        if isinstance(item, (list, tuple)):
            return [self._given(name, kind, part, replaced) for part in item]
        if not isinstance(item, fx.Node):
            return item
        if not is_number(item) or not self.table.knows(item.meta["val"]):
            return replaced[item] if item in replaced else self.value(item)
        if (kind == "List[int]" and name in _SIZES) or name == "N":  # rows of a group norm
            return self.table.length(item.meta["val"])
        base = str(self.node.target).split(".")[1].removesuffix("_")
        if kind in ("number", "Tensor") and base in _OF_NUMBERS and name != "alpha":
            return self.table.number(item.meta["val"])
        raise CaptureError(f"takes a number of chosen elements for {name}: {REWRITE}")

    def broadcast(self, nodes: Sequence[fx.Node], rank: int) -> Axes:
        """The masks of a result in which tensors meet element by element. Raises CaptureError where chosen rows meet
        others."""
        result: list[Value | None] = []
        for axis in range(-rank, 0):
            masks, others = set(), False
            for node in nodes:
                axes, shape = self.axes(node), self.shape(node)
                if -axis > len(shape):
                    continue
                if axes[axis] is not None:
                    masks.add(axes[axis])
                elif shape[axis] != 1:
                    others = True
            if len(masks) > 1 or (masks and others):
                raise CaptureError(TWO_MASKS)
            result.append(masks.pop() if masks else None)
        return tuple(result)

    def made(self, sizes: Any | None = None) -> Axes:
        """The masks of a result that is made with given sizes."""
        return tuple(self.table.of_size(size) for size in (self.traced.shape if sizes is None else sizes))

    def dims(self, rank: int, name: str = "dim") -> tuple[int, ...]:
        """Axes that an argument names; none given means all."""
        return self.c.dims(self.argument(name), rank)

    def refuse(self, why: str = "computes with the rows that a mask chooses, other than row by row") -> Never:
        raise CaptureError(f"{why}, whose number depends on values: {REWRITE}")


def has_unknown_size(traced: Any) -> bool:
    """Whether a traced result has an axis whose size depends on values."""
    return any(
        is_unknown(size) for leaf in tree_leaves(traced) if isinstance(leaf, torch.Tensor) for size in leaf.shape
    )
