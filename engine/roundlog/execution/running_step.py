"""One running step: a program and its values that are alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from roundlog.commitments import canonical
from roundlog.execution.fusion import Group, compute, compute_on_device
from roundlog.execution.stops import (
    DeferredChecks,
    IndexRangeError,
    NonFiniteError,
    StoppedError,
    all_finite,
    ends_finite,
)
from roundlog.number_format import Format
from roundlog.operators import Direct, Inexact, Source, StepInputs, check, check_narrow, compute_narrow, operator
from roundlog.operators.movement import OutOfRangeError
from roundlog.operators.registry import integer
from roundlog.program import Program
from roundlog.rounding import Rounding

PassOn = Callable[[int, torch.Tensor], None]
"""Takes a slot and the value that a part of a step stores there."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step."""

    states: Sequence[torch.Tensor]
    """The next state, one tensor a slot, in program order."""
    loss: float


class CheckedProgram:
    """A program that has passed the registry's check, with tables that its steps use."""

    def __init__(self, program: Program, f32_format: Format) -> None:
        """f32_format: the format that FP32 values are rounded to.

        Raises ProgramError if the program does not pass the check, or has an operator that cannot be rounded to that
        format."""
        check(program)
        self.program = program
        self.f32_format = f32_format
        self.formats = [node.type.dtype.number_format(f32_format) for node in program.nodes]
        """Format of every operator's output; None for integers and bool."""
        self.operators = [operator(node.op) for node in program.nodes]
        check_narrow(program, self.operators, f32_format)
        self.last_uses = program.last_uses()
        self.ends_finite = ends_finite(program)


class RunningStep:
    """A step in progress: the values that are alive, and the computation of further ones."""

    def __init__(
        self,
        checked: CheckedProgram,
        inputs: StepInputs,
        rounding: Rounding,
        pass_on: PassOn | None = None,
        passed_from: int = 0,
    ) -> None:
        """pass_on: takes every value that a part of a step stores in a slot from `passed_from` on, as soon as it is
        computed. Only values in slots before that are states."""
        self.inputs = inputs
        self.rounding = rounding
        self.values: dict[int, torch.Tensor] = {}
        self.states: list[torch.Tensor] = []
        self.loss = torch.zeros(())
        self.stops = True
        """Whether the step stops where the loss or the next state is not finite."""
        self.goes_on = False
        """Whether the step goes on past a stop, with values that mean nothing."""
        self.gone_on = False
        """Whether it has done so."""
        self.deferred: DeferredChecks | None = None
        """The deferred finiteness checks; None if checks are made at once."""
        self._checked = checked
        self._program = checked.program
        self._pass_on = pass_on
        self._passed_from = passed_from
        self._finite: set[int] = set()
        """Values that their own kernel has found finite."""

    @property
    def result(self) -> StepResult:
        """The result, once all operators are computed."""
        return StepResult(states=self.states, loss=float(self.loss))

    def forget(self, values: Sequence[int]) -> None:
        """Lets go of values that no operator reads any more."""
        for value in values:
            del self.values[value]

    def compute(self, index: int) -> None:
        """Computes operator `index` by itself. Raises StoppedError."""
        node, op, format = self._program.nodes[index], self._checked.operators[index], self._checked.formats[index]
        arguments = [self.values[value] for value in node.inputs]
        if isinstance(op, Inexact):
            assert format is not None
            result = self.rounding.round(index, op, arguments, node.attributes, format)
        elif isinstance(op, Direct):
            try:
                result = compute_narrow(op, arguments, node.attributes, format)
            except OutOfRangeError as error:
                result = canonical(error.output)
                self._stop(
                    IndexRangeError(
                        self._program, self.inputs.step, index, error.element, result, "has no value", str(error)
                    )
                )
        else:
            assert isinstance(op, Source)
            result = op.load(node.attributes, node.type, self.inputs)
        self.values[index] = result
        # Stores stand at the end of a program, in the order of the state's slots.
        if node.op == "loss":
            self._require_finite(index, result)
            self.loss = result
        elif node.op == "store":
            slot = integer(node.attributes, "slot")
            if self._pass_on is None or slot < self._passed_from:
                self._require_finite(index, result)
                self.states.append(result)
                return
            self._pass_on(slot, result)
            # No operator reads it here any more, and the receiver may free its memory soon.
            self.values[index] = result.new_empty(0)

    def compute_group(self, group: Group) -> None:
        """Computes a group of exact elementwise operators at once."""
        inputs = [self.values[value] for value in group.inputs]
        if self.deferred is not None:
            results, bad = compute_on_device(group, inputs)
            self.deferred.unless_none(bad)
            finite = True
        else:
            results, finite = compute(group, inputs)
        self.values.update(zip(group.outputs, results, strict=True))
        if finite:
            self._finite.update(group.checked)

    def _require_finite(self, index: int, result: torch.Tensor) -> None:
        """Checks the input of a loss or a store now or, with deferred checks, later. Raises NonFiniteError."""
        if (
            not self.stops
            or not self._checked.ends_finite[index]
            or self._program.nodes[index].inputs[0] in self._finite
        ):
            return
        if self.deferred is not None:
            self.deferred.about(result)
        elif not all_finite(result):
            self._stop(NonFiniteError.at(self._program, self.inputs.step, index, result))

    def _stop(self, error: StoppedError) -> None:
        if not self.goes_on:
            raise error from None
        self.gone_on = True
