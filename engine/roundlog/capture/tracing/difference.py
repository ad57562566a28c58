"""Whether two traces are of the same step."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from roundlog.capture.constants import Constants
from roundlog.capture.draws import draw_of
from roundlog.capture.lines import source_of


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
