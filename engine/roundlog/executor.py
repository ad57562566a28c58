"""Run one step of a program: the first of the three readings (design, section 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from roundlog.arithmetic import check_machine
from roundlog.operators import Direct, Inexact, Kind, Source, StepInputs, check, operator
from roundlog.program import Program
from roundlog.rounding import Rounding


class NonFiniteError(ArithmeticError):
    """A value became NaN or infinite: the run stops here, naming step, operator and first element."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step leaves behind."""

    states: list[torch.Tensor]
    """The next state, one tensor a slot, in program order."""
    loss: float


class Executor:
    """Executes steps of one program. Raises ProgramError if the program does not pass the registry's check."""

    def __init__(self, program: Program) -> None:
        check(program)
        self.program = program
        self._operators = [operator(node.op) for node in program.nodes]
        self._last_uses = program.last_uses()
        self._checked: set[torch.device] = set()

    def run(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        observe: Callable[[int, torch.Tensor], None] | None = None,
    ) -> StepResult:
        """One step. `observe` sees every operator's index and output, in order.

        Raises NonFiniteError where a value becomes NaN or infinite (infinities that come in as constants, as in
        attention masks, may pass through exact operators), ProgramError for an index out of range, MachineError if
        this process does not compute as IEEE 754 says."""
        if inputs.device not in self._checked:
            check_machine(inputs.device)
            self._checked.add(inputs.device)
        values: list[torch.Tensor | None] = [None] * len(self.program.nodes)
        states: list[torch.Tensor] = []
        loss = torch.zeros(())
        for index, (node, op) in enumerate(zip(self.program.nodes, self._operators, strict=True)):
            arguments = [value for i in node.inputs if (value := values[i]) is not None]
            if isinstance(op, Inexact):
                result = rounding.round(index, op, arguments, node.attributes)
            elif isinstance(op, Direct):
                result = op.compute(arguments, node.attributes)
            else:
                assert isinstance(op, Source)
                result = op.load(node.attributes, node.type, inputs)
            if result.dtype == torch.float32 and (op.kind in (Kind.EXACT, Kind.INEXACT) or node.op == "store"):
                self._stop_if_not_finite(inputs.step, index, result, arguments, op.kind == Kind.EXACT)
            if observe is not None:
                observe(index, result)
            values[index] = result
            if node.op == "store":
                states.append(result)
            elif node.op == "loss":
                loss = result
            for dead in self._last_uses.get(index, ()):
                values[dead] = None
        return StepResult(states=states, loss=float(loss))

    def _stop_if_not_finite(
        self, step: int, index: int, result: torch.Tensor, arguments: list[torch.Tensor], lets_infinity_pass: bool
    ) -> None:
        # One read decides the usual case: a sum is finite only if every element is.
        if bool(result.sum().isfinite()):
            return
        bad = ~result.isfinite()
        if lets_infinity_pass and any(x.is_floating_point() and bool(x.isinf().any()) for x in arguments):
            bad = result.isnan()
        where = bad.reshape(-1).nonzero()
        if len(where):
            element = int(where[0])
            raise NonFiniteError(
                f"step {step}: {self.program.describe(index)} gives {float(result.reshape(-1)[element])} at element "
                f"{element}: lower the learning rate, clip the gradients, or look at the data of this step"
            )
