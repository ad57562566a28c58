"""Tampered execution: single numbers are wrong and everything after them follows, so that a lie can be defended down to
the number itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from roundlog.arithmetic import right_float_mode
from roundlog.commitments import canonical
from roundlog.execution import CheckedProgram, Executor, RunningStep, StepExecutor, StepResult
from roundlog.kernels import own_threads
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.rounding import Rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """A lie about one number: in step `step`, bit `bit` (0: the last place) of element `element` of the output of
    operator `operator` is flipped. A bool is negated.

    claimed: the bits of the wrong number, in place of a flipped bit. only_stored: the operator is a store, and only the
    next state has the wrong number, while the outputs of the step are right."""

    step: int
    operator: int
    element: int = 0
    bit: int = 0
    claimed: int | None = None
    only_stored: bool = False


class BentExecutor:
    """An executor that computes operators one by one with a function of its own, in place of `RunningStep.compute`
    (implements `roundlog.execution.StepExecutor`)."""

    def __init__(
        self, program: Program, f32_format: Format = FLOAT32, *, compute: Callable[[RunningStep, int], None]
    ) -> None:
        self.program = program
        self.f32_format = f32_format
        self._checked = CheckedProgram(program, f32_format)
        self._compute = compute

    def run(
        self, inputs: StepInputs, rounding: Rounding, observe: Callable[[int, torch.Tensor], None] | None = None
    ) -> StepResult:
        with own_threads(), right_float_mode(f"step {inputs.step}"):
            running = RunningStep(self._checked, inputs, rounding)
            for index in range(len(self.program.nodes)):
                self._compute(running, index)
                if observe is not None:
                    observe(index, canonical(running.values[index]))
                running.forget(self._checked.last_uses.get(index, []))
            return running.result


class SwitchingExecutor:
    """An executor of a posted program, with another one in its place in some steps (implements `StepExecutor`)."""

    def __init__(self, posted: StepExecutor, other: StepExecutor, steps: Callable[[int], bool]) -> None:
        """steps: whether the other one executes a step."""
        self.program, self.f32_format = posted.program, posted.f32_format
        self._posted, self._other, self._steps = posted, other, steps

    def run(
        self, inputs: StepInputs, rounding: Rounding, observe: Callable[[int, torch.Tensor], None] | None = None
    ) -> StepResult:
        executor = self._other if self._steps(inputs.step) else self._posted
        return executor.run(inputs, rounding, observe)


def tampered(program: Program, f32_format: Format, lies: Sequence[Lie]) -> SwitchingExecutor:
    """Return an executor that tells lies in their steps and is honest in all others."""

    def compute(running: RunningStep, index: int) -> None:
        running.compute(index)
        for lie in lies:
            if (lie.step, lie.operator) == (running.inputs.step, index):
                _tell(lie, running, is_store=program.nodes[index].op == "store")

    steps = {lie.step for lie in lies}
    bent = BentExecutor(program, f32_format, compute=compute)
    return SwitchingExecutor(Executor(program, f32_format), bent, steps.__contains__)


def _tell(lie: Lie, running: RunningStep, *, is_store: bool) -> None:
    right = running.values[lie.operator]
    wrong = right.clone().reshape(-1)
    if lie.claimed is None:
        wrong[lie.element] = turned(wrong[lie.element], lie.bit)
    else:
        bits = bytearray(lie.claimed.to_bytes(wrong.itemsize, "little"))
        wrong[lie.element] = torch.frombuffer(bits, dtype=wrong.dtype)[0]
    if is_store:
        running.states[-1] = wrong.reshape(right.shape)
    if not lie.only_stored:
        running.values[lie.operator] = wrong.reshape(right.shape)


def turned(value: torch.Tensor, bit: int) -> torch.Tensor:
    """Return a tensor of one element with one bit flipped; a bool is negated."""
    if value.dtype == torch.bool:
        return ~value
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[value.dtype.itemsize]
    return (value.contiguous().view(words) ^ (1 << bit)).view(value.dtype)
