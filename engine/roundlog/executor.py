"""Run one step of a program: the first of the three readings (design, section 1)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from roundlog.arithmetic import FULL_BITS, check_machine, undisturbed
from roundlog.finiteness import Doubts, surely_finite
from roundlog.fusion import Group, compute, compute_on_device, deaths, plan
from roundlog.kernels.cuda import works
from roundlog.kernels.reducing import all_finite
from roundlog.kernels.scratch import POOL
from roundlog.kernels.threads import own_threads
from roundlog.operators import (
    Direct,
    Inexact,
    Kind,
    Source,
    StepInputs,
    check,
    check_narrow,
    compute_narrow,
    operator,
)
from roundlog.operators.elementwise import Elementwise
from roundlog.operators.movement import OutOfRangeError
from roundlog.operators.registry import integer
from roundlog.program import Program, ProgramError
from roundlog.rounding import Rounding

_ADVICE = "lower the learning rate, clip the gradients, or look at the data of this step"


class StoppedError(Exception):
    """The step has no result: the run stops here, naming step, operator and first element.

    element: the operator's first one, in flat order, that has no value. output: what it would give, right before that
    element and of no meaning from there on."""

    def __init__(
        self, program: Program, step: int, operator: int, element: int, output: torch.Tensor, what: str, why: str
    ) -> None:
        self.operator = operator
        self.element = element
        self.output = output
        self._what, self._why = what, why
        super().__init__(f"step {step}: {program.describe(operator)} {what} at element {element}: {why}")

    def moved(self, program: Program, step: int, operator: int, element: int) -> StoppedError:
        """The same in a program of which the one that was executed is a part; `output` remains that of the part."""
        return type(self)(program, step, operator, element, self.output, self._what, self._why)


class NonFiniteError(StoppedError, ArithmeticError):
    """A value became NaN or infinite."""

    @classmethod
    def at(cls, program: Program, step: int, operator: int, element: int, output: torch.Tensor) -> NonFiniteError:
        """output: of the operator, whose first such element is `element`."""
        value = float(output.reshape(-1)[element])
        return cls(program, step, operator, element, output, f"gives {value}", _ADVICE)


class IndexRangeError(StoppedError, ProgramError):
    """An index left the axis that it points into."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step leaves behind."""

    states: list[torch.Tensor]
    """The next state, one tensor a slot, in program order."""
    loss: float


class RunningStep:
    """One running step: the values that are alive."""

    def __init__(
        self,
        executor: Executor,
        inputs: StepInputs,
        known: list[bool],
        rounding: Rounding,
        pass_on: Callable[[int, torch.Tensor], None] | None,
    ) -> None:
        """known: which of the state's slots are known to be finite."""
        self.executor = executor
        self.inputs = inputs
        self.values: dict[int, torch.Tensor] = {}
        self.states: list[torch.Tensor] = []
        self.loss = torch.zeros(())
        self._program = executor.program
        self._known = known
        self._rounding = rounding
        self._pass_on = pass_on
        self.doubts: Doubts | None = None
        """Where checks of what exact operators give are put off to, if they are."""

    def forget(self, values: Sequence[int]) -> None:
        for value in values:
            del self.values[value]

    def compute(self, index: int) -> None:
        """Operator `index`, by itself. Raises NonFiniteError."""
        node, op = self._program.nodes[index], self.executor.operators[index]
        arguments = [self.values[value] for value in node.inputs]
        finite = True
        ends_step = node.op == "store" and self._pass_on is None
        if isinstance(op, Inexact):
            result, finite = self._rounding.round(index, op, arguments, node.attributes)
        elif isinstance(op, Direct):
            try:
                result = compute_narrow(op, arguments, node.attributes, self.executor.bits)
            except OutOfRangeError as error:
                raise IndexRangeError(
                    self._program, self.inputs.step, index, error.element, error.output, "has no value", str(error)
                ) from None
            if op.kind == Kind.EXACT or (ends_step and not self.executor.surely_finite[node.inputs[0]]):
                finite = self._finite(index, result, arguments)
        else:
            assert isinstance(op, Source)
            result = op.load(node.attributes, node.type, self.inputs)
            if node.op == "schedule" or (node.op == "state" and not self._known[integer(node.attributes, "slot")]):
                finite = self._finite(index, result, arguments)
        if not finite:
            self._stop_if_not_finite(index, result, arguments)
        self.values[index] = result
        # Stores stand at the end of a program, in the order of the state's slots.
        if ends_step:
            self.states.append(result)
        elif node.op == "store":
            assert self._pass_on is not None
            self._pass_on(integer(node.attributes, "slot"), result)
            # Nothing reads it here any more, and whoever has it now may want its memory back soon.
            self.values[index] = result.new_empty(0)
        elif node.op == "loss":
            self.loss = result

    def compute_group(self, group: Group) -> None:
        """A group of exact elementwise operators at once; one by one if something in it is not finite."""
        inputs = [self.values[value] for value in group.inputs]
        if self.doubts is not None:
            made, bad = compute_on_device(group, inputs)
            self.doubts.unless_none(bad)
            self.values.update(zip(group.outputs, made, strict=True))
            return
        results = compute(group, inputs)
        if results is not None:
            self.values.update(zip(group.outputs, results, strict=True))
            return
        for index in group.nodes:
            self.compute(index)
        kept = set(group.outputs)
        self.forget([index for index in group.nodes if index not in kept])

    def _finite(self, index: int, result: torch.Tensor, arguments: list[torch.Tensor]) -> bool:
        """Whether there is nothing to be looked at more closely, for all that is known now."""
        if self.doubts is None or result.dtype != torch.float32:
            return _all_finite(result)
        if all(self.executor.surely_finite[value] for value in self._program.nodes[index].inputs):
            self.doubts.about(result)
        else:
            self.doubts.unless_none(self._bad(index, result, arguments))
        return True

    def _bad(self, index: int, result: torch.Tensor, arguments: list[torch.Tensor]) -> torch.Tensor:
        """Which elements stop the step. An exact operator may give an infinity where it is given one, at that very
        element: that came in as a constant or as data."""
        op = self.executor.operators[index]
        bad = ~result.isfinite()
        if isinstance(op, Elementwise):
            for x in arguments:
                bad &= ~x.isinf()
            bad |= result.isnan()
        elif op.kind == Kind.EXACT:
            bad = result.isnan()
        return bad

    def _stop_if_not_finite(self, index: int, result: torch.Tensor, arguments: list[torch.Tensor]) -> None:
        where = self._bad(index, result, arguments).reshape(-1).nonzero()
        if len(where):
            raise NonFiniteError.at(self._program, self.inputs.step, index, int(where[0]), result)


class Executor:
    """Executes steps of one program.

    A class of its own below this one, and one below RunningStep as its `running`, can execute otherwise than the
    program says: only a dishonest party has a use for that."""

    running: type[RunningStep] = RunningStep

    def __init__(self, program: Program, bits: int = FULL_BITS) -> None:
        """bits: of the results of exact operators; those of inexact ones are the rounding's affair.

        Raises ProgramError if the program does not pass the registry's check, or has an operator that cannot be
        rounded to so few bits."""
        check(program)
        self.program = program
        self.bits = bits
        self.operators = [operator(node.op) for node in program.nodes]
        check_narrow(program, self.operators, bits)
        self._plan = plan(program)
        self._dead_after = deaths(program, self._plan)
        self._last_uses = program.last_uses()
        self.surely_finite = surely_finite(program)
        self._checked: set[torch.device] = set()
        self._own_states: list[weakref.ref[torch.Tensor]] = []
        """What the last step left behind, and found finite."""
        # Memory that steps have left is for the next ones.
        weakref.finalize(self, POOL.let_go)

    def run(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        observe: Callable[[int, torch.Tensor], None] | None = None,
        pass_on: Callable[[int, torch.Tensor], None] | None = None,
    ) -> StepResult:
        """One step. `observe` sees every operator's index and output, in program order; without it, chains of exact
        elementwise operators run fused, to the same bits. `pass_on` is for programs that are a part of a
        step: it takes what they store (slot and value, as soon as it is there), and the result holds no states. What
        goes on to another part may be infinite where a constant is.

        Raises NonFiniteError where a value becomes NaN or infinite (infinities that come in as constants or data, as in
        attention masks, may pass through exact operators), IndexRangeError for an index out of range, MachineError if
        this process does not compute as IEEE 754 says, DisturbedError if it has begun to while the step was running."""
        with own_threads(), undisturbed(f"step {inputs.step}"):
            if inputs.device not in self._checked:
                check_machine(inputs.device)
                self._checked.add(inputs.device)
            return self._run(inputs, rounding, observe, pass_on)

    def _run(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        observe: Callable[[int, torch.Tensor], None] | None,
        pass_on: Callable[[int, torch.Tensor], None] | None,
    ) -> StepResult:
        if observe is None and inputs.device.type != "cpu":
            fused = self.bits == FULL_BITS and inputs.device.type == "cuda" and works(inputs.device)
            return self._without_waiting(inputs, rounding, pass_on, fused)
        # The fused tape computes in FP32.
        if observe is not None or self.bits != FULL_BITS:
            return self._one_by_one(inputs, rounding, observe, pass_on)
        running = self._start(inputs, rounding, pass_on)
        try:
            self._by_plan(running)
        except StoppedError:
            # Groups run later than their operators stand: which one is first is found in program order.
            self._one_by_one(inputs, rounding, None, pass_on)
            raise
        return self._finish(running)

    def _by_plan(self, running: RunningStep) -> None:
        for item, dead in zip(self._plan, self._dead_after, strict=True):
            if isinstance(item, Group):
                running.compute_group(item)
            else:
                running.compute(item)
            running.forget(dead)

    def _without_waiting(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        pass_on: Callable[[int, torch.Tensor], None] | None,
        fused: bool,
    ) -> StepResult:
        """On a device, where whether what exact operators give is finite is seen at the end."""
        running = self._start(inputs, rounding, pass_on)
        running.doubts = Doubts()
        try:
            if fused:
                self._by_plan(running)
            else:
                self._in_order(running, None)
            stopped = running.doubts.confirmed()
        except StoppedError:
            stopped = True
        # Which operator was the first is found by looking at each, in program order.
        return self._one_by_one(inputs, rounding, None, pass_on) if stopped else self._finish(running)

    def _one_by_one(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        observe: Callable[[int, torch.Tensor], None] | None,
        pass_on: Callable[[int, torch.Tensor], None] | None,
    ) -> StepResult:
        running = self._start(inputs, rounding, pass_on)
        self._in_order(running, observe)
        return self._finish(running)

    def _in_order(self, running: RunningStep, observe: Callable[[int, torch.Tensor], None] | None) -> None:
        for index in range(len(self.program.nodes)):
            running.compute(index)
            if observe is not None:
                observe(index, running.values[index])
            running.forget(self._last_uses.get(index, []))

    def _start(
        self, inputs: StepInputs, rounding: Rounding, pass_on: Callable[[int, torch.Tensor], None] | None
    ) -> RunningStep:
        known = [
            slot < len(self._own_states) and self._own_states[slot]() is state
            for slot, state in enumerate(inputs.states)
        ]
        return self.running(self, inputs, known, rounding, pass_on)

    def _finish(self, running: RunningStep) -> StepResult:
        self._own_states = [weakref.ref(state) for state in running.states]
        return StepResult(states=running.states, loss=float(running.loss))


def _all_finite(x: torch.Tensor) -> bool:
    if x.dtype != torch.float32:
        return True
    if x.device.type == "cpu" and x.is_contiguous():
        return all_finite(x.reshape(-1).numpy())
    # A sum is finite only if every element is; the rare overflow of a sum is sorted out by the caller.
    return bool(x.sum().isfinite())
