"""Run one step of a program."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from roundlog.arithmetic import FULL_BITS, check_machine, undisturbed
from roundlog.commitments import canonical
from roundlog.execution.finiteness import DeferredChecks, all_finite, ends_finite
from roundlog.execution.fusion import Group, compute, compute_on_device, deaths, plan
from roundlog.execution.origin import Watch
from roundlog.kernels.cuda import works
from roundlog.kernels.scratch import POOL
from roundlog.kernels.threads import own_threads
from roundlog.operators import (
    Direct,
    Inexact,
    Source,
    StepInputs,
    check,
    check_narrow,
    compute_narrow,
    operator,
)
from roundlog.operators.movement import OutOfRangeError
from roundlog.operators.registry import integer
from roundlog.program import Program, ProgramError
from roundlog.rounding import Rounding


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

    def because(self, program: Program, step: int, why: str) -> StoppedError:
        """The same with another reason."""
        return type(self)(program, step, self.operator, self.element, self.output, self._what, why)


class NonFiniteError(StoppedError, ArithmeticError):
    """The loss, or a value that the next state was to hold, is NaN or infinite."""

    @classmethod
    def at(cls, program: Program, step: int, operator: int, output: torch.Tensor) -> NonFiniteError:
        """output: of the operator. Its first element that is not finite is named."""
        flat = output.reshape(-1)
        element = int((~flat.isfinite()).nonzero()[0])
        what = f"gets {float(flat[element])}"
        return cls(program, step, operator, element, canonical(output), what, "no state of a model holds such a number")


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
        rounding: Rounding,
        pass_on: Callable[[int, torch.Tensor], None] | None,
    ) -> None:
        self.executor = executor
        self.inputs = inputs
        self.values: dict[int, torch.Tensor] = {}
        self.states: list[torch.Tensor] = []
        self.loss = torch.zeros(())
        self.stops = True
        """Whether the step stops where the loss or the next state is not finite. Where it began is found by a replay
        that goes on."""
        self._program = executor.program
        self._rounding = rounding
        self._pass_on = pass_on
        self._finite: set[int] = set()
        """Values that the kernel which made them has found finite."""
        self.doubts: DeferredChecks | None = None
        """Where checks are put off to, if they are."""

    def forget(self, values: Sequence[int]) -> None:
        for value in values:
            del self.values[value]

    def compute(self, index: int) -> None:
        """Operator `index`, by itself. Raises StoppedError."""
        node, op = self._program.nodes[index], self.executor.operators[index]
        arguments = [self.values[value] for value in node.inputs]
        if isinstance(op, Inexact):
            result = self._rounding.round(index, op, arguments, node.attributes)
        elif isinstance(op, Direct):
            try:
                result = compute_narrow(op, arguments, node.attributes, self.executor.bits)
            except OutOfRangeError as error:
                raise IndexRangeError(
                    self._program,
                    self.inputs.step,
                    index,
                    error.element,
                    canonical(error.output),
                    "has no value",
                    str(error),
                ) from None
        else:
            assert isinstance(op, Source)
            result = op.load(node.attributes, node.type, self.inputs)
        self.values[index] = result
        # Stores stand at the end of a program, in the order of the state's slots.
        if node.op == "loss":
            self._require_finite(index, result)
            self.loss = result
        elif node.op == "store" and self._pass_on is None:
            self._require_finite(index, result)
            self.states.append(result)
        elif node.op == "store":
            assert self._pass_on is not None
            self._pass_on(integer(node.attributes, "slot"), result)
            # Nothing reads it here any more, and whoever has it now may want its memory back soon.
            self.values[index] = result.new_empty(0)

    def compute_group(self, group: Group) -> None:
        """A group of exact elementwise operators at once."""
        inputs = [self.values[value] for value in group.inputs]
        if self.doubts is not None:
            results, bad = compute_on_device(group, inputs)
            self.doubts.unless_none(bad)
            finite = True
        else:
            results, finite = compute(group, inputs)
        self.values.update(zip(group.outputs, results, strict=True))
        if finite:
            self._finite.update(group.checked)

    def _require_finite(self, index: int, result: torch.Tensor) -> None:
        """Of what a loss or a store has got: raises NonFiniteError, or puts that off."""
        if (
            not self.stops
            or not self.executor.ends_finite[index]
            or self._program.nodes[index].inputs[0] in self._finite
        ):
            return
        if self.doubts is not None:
            self.doubts.about(result)
        elif not all_finite(result):
            raise NonFiniteError.at(self._program, self.inputs.step, index, result)


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
        self.ends_finite = ends_finite(program)
        self._checked: set[torch.device] = set()
        # Memory that steps have left is for the next ones.
        weakref.finalize(self, POOL.let_go)

    def run(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        observe: Callable[[int, torch.Tensor], None] | None = None,
        pass_on: Callable[[int, torch.Tensor], None] | None = None,
    ) -> StepResult:
        """One step. `observe` sees every operator's index and output, in program order, with one bit pattern for NaN;
        without it, chains of exact elementwise operators run fused, to the same bits. `pass_on` is for programs that
        are a part of a step: it takes what they store (slot and value, as soon as it is there), whatever it is, and the
        result holds no states.

        Raises NonFiniteError where the loss or a value of the next state is NaN or infinite (inside of a step both flow
        as IEEE 754 has them), IndexRangeError for an index out of range, MachineError if this process does not compute
        as IEEE 754 says, DisturbedError if it has begun to while the step was running."""
        with own_threads(), undisturbed(f"step {inputs.step}"):
            if inputs.device not in self._checked:
                check_machine(inputs.device)
                self._checked.add(inputs.device)
            try:
                return self._run(inputs, rounding, observe, pass_on)
            except NonFiniteError as error:
                # A party to a dispute looks at every value itself, and a part of a step does not have them all.
                if observe is not None or pass_on is not None:
                    raise
                rounding.start_again()
                raise error.because(self.program, inputs.step, self._origin(inputs, rounding, error.operator)) from None

    def _origin(self, inputs: StepInputs, rounding: Rounding, stopped: int) -> str:
        """Where what is not finite at operator `stopped` began, and what to do about it."""
        watch = Watch(self.program)

        def see(index: int, values: Mapping[int, torch.Tensor]) -> None:
            watch.sees(index, values[index], [values[value] for value in self.program.nodes[index].inputs])

        self._replay(self._start(inputs, rounding, None), see, stopped + 1)
        return watch.origin_of(stopped)

    def replay(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        pass_on: Callable[[int, torch.Tensor], None] | None,
        see: Callable[[int, Mapping[int, torch.Tensor]], None],
    ) -> None:
        """A step that has stopped at a number that is not finite, once more and beyond it, operator by operator. see:
        is shown every operator with the values that are alive. Raises IndexRangeError."""
        with own_threads(), undisturbed(f"step {inputs.step}"):
            self._replay(self._start(inputs, rounding, pass_on), see, len(self.program.nodes))

    def _replay(self, running: RunningStep, see: Callable[[int, Mapping[int, torch.Tensor]], None], stop: int) -> None:
        running.stops = False
        for index in range(stop):
            running.compute(index)
            see(index, running.values)
            running.forget(self._last_uses.get(index, []))

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
            rounding.start_again()
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
        """On a device, where whether the loss and the next state are finite is seen at the end."""
        running = self._start(inputs, rounding, pass_on)
        running.doubts = DeferredChecks()
        try:
            if fused:
                self._by_plan(running)
            else:
                self._in_order(running, None)
            stopped = running.doubts.confirmed()
        except StoppedError:
            stopped = True
        if not stopped:
            return self._finish(running)
        # Which operator was the first is found by looking at each, in program order.
        rounding.start_again()
        return self._one_by_one(inputs, rounding, None, pass_on)

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
                observe(index, canonical(running.values[index]))
            running.forget(self._last_uses.get(index, []))

    def _start(
        self, inputs: StepInputs, rounding: Rounding, pass_on: Callable[[int, torch.Tensor], None] | None
    ) -> RunningStep:
        return self.running(self, inputs, rounding, pass_on)

    def _finish(self, running: RunningStep) -> StepResult:
        return StepResult(states=running.states, loss=float(running.loss))
