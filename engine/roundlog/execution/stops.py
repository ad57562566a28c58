"""Errors of steps that have no result."""

from __future__ import annotations

import torch

from roundlog.commitments import canonical
from roundlog.program import Program, ProgramError


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
