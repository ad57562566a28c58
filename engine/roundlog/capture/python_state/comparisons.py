"""Whether what stands in one place at two times says the same to Python code, and whether two traces are of the same
step."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from roundlog.capture.constants import Constants
from roundlog.capture.draws import draw_of
from roundlog.capture.lines import source_of
from roundlog.capture.python_state.containers import IMMUTABLE, attributes_of, is_a, slots_of


class Likeness:
    """Whether what stands in the place of something says the same to Python code, whatever is in its tensors."""

    def __init__(self, read: Collection[int], seen: Collection[int]) -> None:
        """read: ids of the tensors that the step reads as constants. seen: ids of what was there before the step."""
        self._read = read
        self._old = seen
        self._compared: set[tuple[int, int]] = set()

    def between(self, one: Any, two: Any) -> bool:
        if one is two or (id(one), id(two)) in self._compared:
            return True
        kind = type(one)
        if kind is not type(two) and not (is_a(one, torch.Tensor) and is_a(two, torch.Tensor)):
            return False
        self._compared.add((id(one), id(two)))
        if kind in _VALUES or is_a(one, (np.generic, Enum)):
            return bool(one == two) and repr(one) == repr(two)
        if is_a(one, RemovableHandle):  # they are numbered
            return True
        if id(two) in self._old:  # one of several that were there has been chosen
            return False
        if is_a(one, torch.Tensor):
            return id(one) not in self._read and bool(one.shape == two.shape and one.dtype == two.dtype)
        if is_a(one, (set, frozenset)):
            return bool(one == two)
        if is_a(one, np.ndarray):
            return bool(one.shape == two.shape and one.dtype == two.dtype and one.tobytes() == two.tobytes())
        if is_a(one, dict):
            same = list(one) == list(two) and all(self.between(one[key], two[key]) for key in one)
            return same and (kind in (dict, OrderedDict, defaultdict) or self._attributes(one, two) is not False)
        if is_a(one, (list, tuple, deque)):
            return len(one) == len(two) and all(self.between(a, b) for a, b in zip(one, two, strict=True))
        if is_a(one, types.MethodType):
            return one.__func__ is two.__func__ and self.between(one.__self__, two.__self__)
        if is_a(one, types.FunctionType):
            cells = ([cell.cell_contents for cell in function.__closure__ or ()] for function in (one, two))
            same = one.__code__ is two.__code__ and self.between(one.__defaults__, two.__defaults__)
            return same and all(self.between(a, b) for a, b in zip(*cells, strict=True))
        if is_a(one, functools.partial):
            return all(self.between(getattr(one, part), getattr(two, part)) for part in ("func", "args", "keywords"))
        alike = self._attributes(one, two)
        # An object of a class written in C may hold anything.
        return alike if alike is not None else not kind.__flags__ & IMMUTABLE

    def _attributes(self, one: Any, two: Any) -> bool | None:
        """Whether two objects have the same attributes; None if they have none at all."""
        mine, other = (attributes_of(thing, slots_of(type(thing))) for thing in (one, two))
        return None if mine is None or other is None else self.between(mine[0](), other[0]())


_VALUES = (bool, int, float, str, bytes, complex, range, slice, type(None), torch.dtype, torch.device, torch.Size)


def difference(one: fx.GraphModule, two: fx.GraphModule) -> str | None:
    """Difference of two traces of a step, in words; None if they compute the same. What depends on no parameter, no
    data and no random number is compared by its value: the first step may compute what later ones find in a cache."""
    draws: dict[str, str] = {}
    for a, b in _pairs(one, two):
        if a is None or b is None:
            longer = a or b
            assert longer is not None
            return f"one time it computes {_what(longer[0])}, another time not"
        if a[1] != b[1]:
            if _what(a[0]) == _what(b[0]):
                return f"{_what(a[0])} is given other arguments every time"
            return f"one time it computes {_what(a[0])}, another time {_what(b[0])}"
        mine, other = draw_of(a[0]), draw_of(b[0])
        if mine is None or other is None:
            continue
        if draws.setdefault(mine.state, other.state) != other.state:
            return f"{_what(a[0])} draws again what was drawn before, but not every time"
    return None


def drawn_again(first: fx.GraphModule, later: fx.GraphModule) -> str | None:
    """Draws of a later step from a state in which the first step has drawn already, in words; None if nothing."""
    states = {draw.state for node in first.graph.nodes if (draw := draw_of(node)) is not None}
    for node in later.graph.nodes:
        if (draw := draw_of(node)) is not None and draw.state in states:
            return f"{_what(node)} draws the same random numbers every time, from a state that every step puts back"
    return None


_Described = tuple[fx.Node, object]


def _pairs(one: fx.GraphModule, two: fx.GraphModule) -> Iterator[tuple[_Described | None, _Described | None]]:
    a, b = list(_described(one)), list(_described(two))
    for number in range(max(len(a), len(b))):
        yield (a[number] if number < len(a) else None), (b[number] if number < len(b) else None)


def _described(module: fx.GraphModule) -> Iterator[_Described]:
    """Descriptions of all nodes that are not constant: what each computes."""
    constants = Constants(module, module.graph, by_pytorch=True)
    numbers: dict[fx.Node, int] = {}

    def argument(node: fx.Node) -> object:
        return constants.digest(node) if node in constants else ("node", numbers[node])

    for node in module.graph.nodes:
        if node in constants:
            continue
        numbers[node] = len(numbers)
        target = "" if node.op in ("placeholder", "get_attr") else str(node.target)
        inputs = fx.node.map_arg((node.args, dict(node.kwargs)), argument)  # type: ignore[arg-type]
        yield node, (node.op, target, str(inputs))


def _what(node: fx.Node) -> str:
    if node.op == "output":
        return "other results"
    source = source_of(node)
    return str(node.target) + (f" (at {source})" if source else "")
