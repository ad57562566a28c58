"""Executors: objects that execute the steps of a program, in order or in groups, to the same bits. A `RunningStep` has
the values of a step that are alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import torch

from roundlog.arithmetic import check_machine, right_float_mode
from roundlog.commitments import canonical
from roundlog.execution.batches import in_memory
from roundlog.execution.fusion import Group, SameNumbers, Unit, compute, compute_on_device, deaths, plan
from roundlog.execution.slicing import slices_of
from roundlog.execution.stops import (
    DeferredChecks,
    IndexRangeError,
    NonFiniteError,
    StoppedError,
    Watch,
    all_finite,
    ends_finite,
)
from roundlog.kernels import has_kernels
from roundlog.kernels.scratch import POOL
from roundlog.kernels.threads import own_threads
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import Direct, Inexact, Source, StepInputs, check, check_narrow, compute_narrow, operator
from roundlog.operators.job_arithmetic import tensor_core_products
from roundlog.operators.movement import OutOfRangeError
from roundlog.operators.registry import integer
from roundlog.program import Program
from roundlog.rounding import Follower, Rounding, WindowRounding

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
        # Operators of two kinds by index: `isinstance` of an abstract class takes as long as many an operator.
        self.inexact = {index: op for index, op in enumerate(self.operators) if isinstance(op, Inexact)}
        self.direct = {index: op for index, op in enumerate(self.operators) if isinstance(op, Direct)}
        self.slices = {index: slices for index in self.inexact if (slices := slices_of(program, index)) is not None}
        check_narrow(program, self.operators, f32_format)
        self.last_uses = program.last_uses()
        self.ends_finite = ends_finite(program)

    @cached_property
    def groups(self) -> list[tuple[Unit, list[int]]]:
        """A plan of the step in groups, with the values that nobody reads after each of its units."""
        units = plan(self.program)
        return list(zip(units, deaths(self.program, units), strict=True))


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

    def run_in_order(self, see: See | None = None, end: int | None = None) -> None:
        """Computes operator by operator, in program order. end: the first that is left out. Raises StoppedError."""
        for index in range(len(self._program.nodes) if end is None else end):
            self.compute(index)
            if see is not None:
                see(index, self.values)
            self.forget(self._checked.last_uses.get(index, []))

    def run_in_groups(self) -> None:
        """Computes chains of exact elementwise operators fused, as one kernel each. Only where FP32 values are not
        rounded to fewer bits. Raises StoppedError, not always of the first operator in program order that stops."""
        for item, dead in self._checked.groups:
            if isinstance(item, Group):
                self.compute_group(item)
            elif isinstance(item, SameNumbers):
                self.values[item.value] = self.values[item.source].reshape(item.shape)
            else:
                self.compute(item)
            self.forget(dead)

    def compute(self, index: int) -> None:
        """Computes operator `index` by itself. Raises StoppedError."""
        node, checked = self._program.nodes[index], self._checked
        arguments, format = [self.values[value] for value in node.inputs], checked.formats[index]
        if (inexact := checked.inexact.get(index)) is not None:
            assert format is not None
            if (slices := checked.slices.get(index)) is None or not isinstance(self.rounding, WindowRounding):
                result = self.rounding.round(index, inexact, arguments, node.attributes, format)
            else:
                result = slices.round(self.rounding, index, node, arguments, format)
        elif (direct := checked.direct.get(index)) is not None:
            try:
                result = compute_narrow(direct, arguments, node.attributes, format)
            except OutOfRangeError as error:
                result = canonical(error.output)
                self._stop(
                    IndexRangeError(
                        self._program, self.inputs.step, index, error.element, result, "has no value", str(error)
                    )
                )
        else:
            op = checked.operators[index]
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
        elif group.chain.is_worth():
            results, finite = compute(group, inputs)
        else:
            results, finite = self._one_by_one(group, inputs), False
        self.values.update(zip(group.outputs, results, strict=True))
        if finite:
            self._finite.update(group.checked)

    def _one_by_one(self, group: Group, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the group's outputs, each operator computed by itself."""
        checked, nodes = self._checked, self._program.nodes
        values = dict(zip(group.inputs, inputs, strict=True))
        last = {value: index for index in group.nodes for value in nodes[index].inputs}
        for index in group.nodes:
            node = nodes[index]
            arguments = [values[value] for value in node.inputs]
            values[index] = compute_narrow(checked.direct[index], arguments, node.attributes, checked.formats[index])
            for value in set(node.inputs).difference(group.outputs):
                if last[value] == index:
                    del values[value]
        return [values[value] for value in group.outputs]

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


Start = Callable[[], RunningStep]
Observe = Callable[[int, torch.Tensor], None]
"""Called with every operator's index and output, in program order."""
See = Callable[[int, Mapping[int, torch.Tensor]], None]
"""Called after every operator with its index and the values that are alive."""


class StepExecutor(Protocol):
    """An executor of steps of one program. All executors, whole or in micro-batches, on any device, give the same
    bits."""

    @property
    def program(self) -> Program: ...

    @property
    def f32_format(self) -> Format:
        """Format that FP32 values are rounded to."""

    def run(self, inputs: StepInputs, rounding: Rounding, observe: Observe | None = None) -> StepResult:
        """Executes one step. observe: called with every operator's index and output, in program order; every NaN in it
        has the same bits.

        Raises NonFiniteError where the loss or a value of the next state is NaN or infinite (other values may be
        either; they follow IEEE 754), IndexRangeError for an index out of range, MachineError if this process does not
        compute as IEEE 754 says, DisturbedError if that changed while the step was running."""


class Executor:
    """Executes whole steps of one program."""

    def __init__(self, program: Program, f32_format: Format = FLOAT32) -> None:
        """f32_format: the format that FP32 values are rounded to.

        Raises ProgramError if the program does not pass the registry's check, or has an operator that cannot be rounded
        to that format."""
        self._checked = CheckedProgram(program, f32_format)
        self._devices: set[torch.device] = set()
        """Devices on which arithmetic was checked."""
        # The pool keeps the memory of finished steps for the next ones.
        weakref.finalize(self, POOL.release)

    @property
    def program(self) -> Program:
        return self._checked.program

    @property
    def f32_format(self) -> Format:
        return self._checked.f32_format

    def run(self, inputs: StepInputs, rounding: Rounding, observe: Observe | None = None) -> StepResult:
        """Executes one step, as `StepExecutor.run`."""
        inputs = replace(inputs, states=in_memory(inputs.states))
        start = partial(RunningStep, self._checked, inputs, rounding)
        try:
            way: Callable[[Start], RunningStep] = (
                self._quickly if observe is None else partial(_in_order, observe=observe)
            )
            result = self._run(inputs, lambda: way(start)).result
            if isinstance(rounding, Follower):
                rounding.sort_findings()
            return result
        except NonFiniteError as error:
            # An observer has seen every value, so it needs no search for the origin.
            if observe is not None:
                raise
            rounding.start_again()
            raise error.because(self.program, inputs.step, self._origin(inputs, rounding, error.operator)) from None

    def run_part(self, inputs: StepInputs, rounding: Rounding, pass_on: PassOn | None) -> StepResult:
        """Executes one step of a program that is a part of another. pass_on: takes every stored value, finite or not,
        and the result then holds no states; None for the last part. Raises as `run`."""
        start = partial(RunningStep, self._checked, inputs, rounding, pass_on)
        return self._run(inputs, partial(self._quickly, start)).result

    def run_through(
        self, inputs: StepInputs, rounding: Rounding, pass_on: PassOn | None, passed_from: int
    ) -> StepResult | None:
        """Executes one step of a program that is a part of another, to its end in any case. Returns None if it would
        have stopped. pass_on: takes values stored in slots from `passed_from` on; None if there are only states. Raises
        MachineError, DisturbedError."""

        def run() -> RunningStep:
            running = RunningStep(self._checked, inputs, rounding, pass_on, passed_from)
            running.goes_on = True
            if self._stops(running):
                running.gone_on = True
            return running

        running = self._run(inputs, run)
        return None if running.gone_on else running.result

    def replay(
        self, inputs: StepInputs, rounding: Rounding, pass_on: PassOn | None, see: See, end: int | None = None
    ) -> None:
        """Executes a stopped step again, operator by operator, past the number that is not finite. end: the first
        operator that is left out. Raises IndexRangeError."""

        def run() -> RunningStep:
            running = RunningStep(self._checked, inputs, rounding, pass_on)
            running.stops = False
            running.run_in_order(see, end)
            return running

        self._run(inputs, run)

    def _quickly(self, start: Start) -> RunningStep:
        """Runs a step to its end. Raises StoppedError, which names the first operator in program order that stops:
        found by a second run, since groups run later than their operators' places, and devices check at the end."""
        running = start()
        rounding = running.rounding
        with suppress(StoppedError):
            if not self._stops(running):
                return running
        del running
        rounding.start_again()
        return _in_order(start)

    def _stops(self, running: RunningStep) -> bool:
        """Computes a step's operators; whether a check that was deferred, as on devices, fails. Raises StoppedError."""
        if running.inputs.device.type != "cpu":
            running.deferred = DeferredChecks()
        # Fused kernels compute in FP32.
        if self.f32_format == FLOAT32 and (running.deferred is None or has_kernels(running.inputs.device)):
            running.run_in_groups()
        else:
            running.run_in_order()
        return running.deferred is not None and running.deferred.confirmed()

    def _run(self, inputs: StepInputs, run: Start) -> RunningStep:
        with own_threads(), right_float_mode(f"step {inputs.step}"):
            if inputs.device not in self._devices:
                check_machine(inputs.device, tensor_core_products(self.program))
                self._devices.add(inputs.device)
            return run()

    def _origin(self, inputs: StepInputs, rounding: Rounding, stopped: int) -> str:
        """The operator at which the number that is not finite at operator `stopped` first arose, and the remedy."""
        watch = Watch(self.program)

        def see(index: int, values: Mapping[int, torch.Tensor]) -> None:
            watch.sees(index, values[index], [values[value] for value in self.program.nodes[index].inputs])

        self.replay(inputs, rounding, None, see, stopped + 1)
        return watch.origin_of(stopped)


def _in_order(start: Start, observe: Observe | None = None) -> RunningStep:
    """Runs a step operator by operator. observe: called with outputs in which every NaN has the same bits."""
    running = start()
    running.run_in_order(None if observe is None else lambda index, values: observe(index, canonical(values[index])))
    return running
