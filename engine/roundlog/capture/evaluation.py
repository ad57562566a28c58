"""Values of a program under construction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch

from roundlog.operators import StepInputs, operator
from roundlog.operators.registry import Direct, Inexact, Source
from roundlog.program import Node
from roundlog.rounding import Recorder

_GUARD = 4
"""Guard of a rounding log that is never read."""


def needed(nodes: Sequence[Node], values: Iterable[int]) -> set[int]:
    """These values, and all that they are computed from."""
    found, todo = set[int](), list(values)
    while todo:
        index = todo.pop()
        if index not in found:
            found.add(index)
            todo.extend(nodes[index].inputs)
    return found


def evaluated(nodes: Sequence[Node], wanted: Collection[int], given: StepInputs) -> dict[int, torch.Tensor]:
    """The values of these nodes, and of those that they need. Raises StoppedError as a run does."""
    values: dict[int, torch.Tensor] = {}
    recorder = Recorder(_GUARD)
    for index in sorted(needed(nodes, wanted)):
        node, kind = nodes[index], operator(nodes[index].op)
        arguments = [values[value] for value in node.inputs]
        if isinstance(kind, Inexact):
            values[index] = recorder.round(index, kind, arguments, node.attributes)
        elif isinstance(kind, Direct):
            values[index] = kind.compute(arguments, node.attributes)
        else:
            assert isinstance(kind, Source)
            values[index] = kind.load(node.attributes, node.type, given)
    recorder.take()
    return values
