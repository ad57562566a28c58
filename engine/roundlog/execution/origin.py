"""The origin of a number that is not finite: the operator that produced the first one. A user has to look there, after
the run has stopped at the loss or the next state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from roundlog.execution.finiteness import all_finite
from roundlog.operators import OperatorKind, operator
from roundlog.operators.elementwise import Elementwise
from roundlog.operators.transcendental import ElementaryFunction
from roundlog.program import Program

_ADVICE = "lower the learning rate, clip the gradients, or look at the data of this step"
_MASK = "leave such numbers out of the data, or mask them before the loss"


@dataclass(frozen=True, slots=True)
class _Start:
    """The first element of an operator's output that is not finite although its inputs are."""

    element: int
    value: float


class Watch:
    """An observer of a step that is executed operator by operator, as a whole or in parts."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._lost: set[int] = set()
        """Operators with an output element that is not finite."""
        self._starts: dict[int, _Start] = {}

    def sees(
        self,
        index: int,
        output: torch.Tensor,
        inputs: Sequence[torch.Tensor] | None,
        whole: Callable[[int], int] = int,
    ) -> None:
        """Takes the output of operator `index` of the program. inputs: None if they are not at hand. whole: maps an
        element of `output`, which may be a part, to the element of the whole output."""
        if all_finite(output):
            return
        self._lost.add(index)
        op = operator(self._program.nodes[index].op)
        by_element = isinstance(op, Elementwise | ElementaryFunction)
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
        """The first operator that has made a number that is not finite of finite inputs and leads to operator
        `stopped`, and the remedy, in one clause. A source is named only if there is no other operator."""
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
        """Whether an operator can be an origin. If its elements depend on many elements of its inputs, all of these
        have to be finite."""
        node = self._program.nodes[index]
        return isinstance(operator(node.op), Elementwise | ElementaryFunction) or not self._lost.intersection(
            node.inputs
        )
