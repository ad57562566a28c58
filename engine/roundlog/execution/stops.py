"""Stops: checks that the loss and the next state of a step are finite (other values may be infinite or NaN), the
errors of steps that have no result, and the origin of a number that is not finite. A user has to look there, after the
run has stopped at the loss or the next state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from roundlog.commitments import canonical
from roundlog.kernels import reducing
from roundlog.operators import OperatorKind, operator
from roundlog.operators.elementwise import ElementaryFunction, Elementwise
from roundlog.program import Program, ProgramError
from roundlog.rounding import Window


class StoppedError(Exception):
    """The step has no result: the run stops here, naming step, operator and first element.

    element: the operator's first element, in flat order, that has no value. output: the operator's output; it is right
    before that element and meaningless from there on."""

    def __init__(
        self, program: Program, step: int, operator: int, element: int, output: torch.Tensor, what: str, why: str
    ) -> None:
        self.operator = operator
        self.element = element
        self.output = output
        self._what, self._why = what, why
        super().__init__(f"step {step}: {program.describe(operator)} {what} at element {element}: {why}")

    def moved(self, program: Program, step: int, operator: int, element: int) -> StoppedError:
        """This stop, named by operator and element of the whole program. The executed program was a part of that;
        `output` remains that of the part."""
        return type(self)(program, step, operator, element, self.output, self._what, self._why)

    def because(self, program: Program, step: int, why: str) -> StoppedError:
        """This stop with another reason."""
        return type(self)(program, step, self.operator, self.element, self.output, self._what, why)


class NonFiniteError(StoppedError, ArithmeticError):
    """The loss, or a value that the next state was to hold, is NaN or infinite."""

    @classmethod
    def at(cls, program: Program, step: int, operator: int, output: torch.Tensor) -> NonFiniteError:
        """Names the first element of `output`, the operator's output, that is not finite."""
        flat = output.reshape(-1)
        element = int((~flat.isfinite()).nonzero()[0])
        what = f"gets {float(flat[element])}"
        return cls(program, step, operator, element, canonical(output), what, "no state of a model holds such a number")


class IndexRangeError(StoppedError, ProgramError):
    """An index is outside of the axis that it points into."""


def ends_finite(program: Program) -> list[bool]:
    """For every operator, whether the step stops unless the operator's input is finite. These are the loss and every
    store, except stores that keep the value of their slot (such as the infinities of a causal mask)."""
    return [
        node.op == "loss" or (node.op == "store" and node.type.dtype.is_float and not program.keeps_slot(index))
        for index, node in enumerate(program.nodes)
    ]


def all_finite(x: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite."""
    if not x.is_floating_point():
        return True
    if x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous():
        return reducing.all_finite(x.reshape(-1).numpy())
    return bool(x.isfinite().all())


class DeferredChecks:
    """Finiteness checks deferred to one synchronisation a step. On a device, the host would otherwise wait for each."""

    def __init__(self) -> None:
        self._sums: list[torch.Tensor] = []
        self._bad: list[torch.Tensor] = []

    def about(self, x: torch.Tensor) -> None:
        """Defers the check that x, numbers of a format, is finite."""
        # In FP64 a sum of finite FP32 numbers cannot overflow.
        self._sums.append(x.sum(dtype=torch.float64))

    def unless_none(self, bad: torch.Tensor) -> None:
        """Defers the check that no element of `bad` is true."""
        self._bad.append(bad.any())

    def confirmed(self) -> bool:
        """Whether any deferred check fails. Waits for the device."""
        seen = [~torch.stack(self._sums).isfinite().all()] if self._sums else []
        return bool(torch.stack(seen + self._bad).any()) if seen or self._bad else False


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
        window: Window | None = None,
    ) -> None:
        """Takes the output of operator `index` of the program. inputs: None if they are not at hand. window: which part
        of the output it is; None: all of it."""
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
            element = first if window is None else window.whole_one(first)
            start = _Start(element, float(output.reshape(-1)[first]))
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
