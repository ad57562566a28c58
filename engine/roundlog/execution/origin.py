"""Where a number that is not finite began: the operator that a user has to look at, when the run has stopped at the
loss or at the next state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from roundlog.execution.finiteness import all_finite
from roundlog.operators import OperatorKind, operator
from roundlog.operators.elementwise import Elementwise
from roundlog.operators.transcendental import Function
from roundlog.program import Program

_ADVICE = "lower the learning rate, clip the gradients, or look at the data of this step"
_MASK = "leave such numbers out of the data, or mask them before the loss"


@dataclass(frozen=True, slots=True)
class _Start:
    """The first element of an operator's output that is not finite although what it was made of is."""

    element: int
    value: float


class Watch:
    """Watches a step that is executed operator by operator, as a whole or in parts."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lost: set[int] = set()
        """Operators of which some output element is not finite."""
        self._starts: dict[int, _Start] = {}

    def sees(
        self,
        index: int,
        output: torch.Tensor,
        inputs: Sequence[torch.Tensor] | None,
        whole: Callable[[int], int] = int,
    ) -> None:
        """What operator `index` of the program gives of these inputs; None if they are not at hand. whole: of a part of
        an output, the element of the whole one that an element of the part is."""
        if all_finite(output):
            return
        self._lost.add(index)
        op = operator(self._program.nodes[index].op)
        by_element = isinstance(op, Elementwise | Function)
        if op.kind == OperatorKind.MOVEMENT or (by_element and inputs is None):
            return
        lost = ~output.isfinite()
        if by_element:
            for x in inputs or ():
                lost = lost & x.isfinite() if x.is_floating_point() else lost
        where = lost.reshape(-1).nonzero()
        if len(where):
            first = int(where[0])
            start = _Start(whole(first), float(output.reshape(-1)[first]))
            self._starts[index] = min(start, self._starts.get(index, start), key=lambda one: one.element)

    def origin_of(self, stopped: int) -> str:
        """The first operator that has made such a number of finite ones from which operator `stopped` is reached; a
        source, if there is no other; and what to do about it."""
        reached, todo = {stopped}, [stopped]
        while todo:
            for value in self._program.nodes[todo.pop()].inputs:
                if value in self._lost and value not in reached:
                    reached.add(value)
                    todo.append(value)
        found = [index for index in sorted(reached & self._starts.keys()) if self._began(index)]
        sources = [index for index in found if operator(self._program.nodes[index].op).kind == OperatorKind.SOURCE]
        index = next(iter([i for i in found if i not in sources] or sources))
        start = self._starts[index]
        says, advice = ("has", _MASK) if index in sources else ("gives", _ADVICE)
        return f"{self._program.describe(index)} {says} {start.value} at element {start.element}: {advice}"

    def _began(self, index: int) -> bool:
        """Of operators whose elements depend on many, only those count whose inputs are finite as a whole."""
        node = self._program.nodes[index]
        return isinstance(operator(node.op), Elementwise | Function) or not self._lost.intersection(node.inputs)
