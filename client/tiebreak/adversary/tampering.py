"""Executing otherwise than the program says, for the demo and the tests: one number is another one, and everything
after it follows from that, so that the lie can be defended down to the number itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.partial import ExactSum, IntegerSum, Partial
from roundlog.adjudication.scalars import wrap
from roundlog.dispute import RunningResults
from roundlog.execution.executor import Executor, RunningStep, StepResult
from roundlog.log.entries import Decision, Entries
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.rounding import Recorder, Rounding

from tiebreak.chain.records import Side
from tiebreak.game import Output
from tiebreak.roles.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Lie:
    """In step `step`, element `element` of what operator `operator` gives is another number: bit `bit` of it (0: in the
    last place) is turned. A bool is the other one.

    claimed: its bits, whatever they are. only_stored: the operator is a store, and it is the
    next state that has the other number, while all that the step computes is as it should be. logged: the element is in
    the trainer's log, which says of it what the lie says."""

    step: int
    operator: int
    element: int = 0
    bit: int = 0
    claimed: int | None = None
    only_stored: bool = False
    logged: bool = False


_ONE = 0x3F800000
"""The FP32 number 1."""


def turned(value: torch.Tensor, bit: int) -> torch.Tensor:
    """A tensor of one element, as f32, int64 or bool, with a bit of it turned."""
    if value.dtype == torch.bool:
        return ~value
    if value.dtype == torch.int64:
        return value ^ (1 << bit)
    return (value.contiguous().view(torch.int32) ^ (1 << bit)).view(torch.float32)


def _of_bits(bits: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of one element."""
    return torch.frombuffer(bytearray(bits.to_bytes(dtype.itemsize, "little")), dtype=dtype)[0]


class TamperedExecutor(Executor):
    """An honest executor in all steps but those with a lie."""

    def __init__(self, program: Program, bits: int, lies: Sequence[Lie]) -> None:
        super().__init__(program, bits)
        self.lies = tuple(lies)
        self.running = _TamperedStep

    def run(
        self,
        inputs: StepInputs,
        rounding: Rounding,
        observe: Callable[[int, torch.Tensor], None] | None = None,
        pass_on: Callable[[int, torch.Tensor], None] | None = None,
    ) -> StepResult:
        if observe is None and any(lie.step == inputs.step for lie in self.lies):
            observe = _nobody  # one by one
        return super().run(inputs, rounding, observe, pass_on)


def _nobody(index: int, output: torch.Tensor) -> None:
    pass


class _TamperedStep(RunningStep):
    def compute(self, index: int) -> None:
        super().compute(index)
        assert isinstance(self.executor, TamperedExecutor)
        for lie in self.executor.lies:
            if (lie.step, lie.operator) != (self.inputs.step, index):
                continue
            right = self.values[index]
            wrong = right.clone().reshape(-1)
            if lie.claimed is None:
                wrong[lie.element] = turned(wrong[lie.element], lie.bit)
            else:
                wrong[lie.element] = _of_bits(lie.claimed, wrong.dtype)
            if lie.logged and isinstance(self._rounding, Recorder):
                _turn(self._rounding.entries[index], lie.element)
            if self.executor.program.nodes[index].op == "store":
                self.states[-1] = wrong.reshape(right.shape)
            if not lie.only_stored:
                self.values[index] = wrong.reshape(right.shape)


def _turn(entries: Entries, element: int) -> None:
    """Up becomes down, and down up."""
    place = int(np.searchsorted(entries.indices, element))
    assert entries.indices[place] == element and entries.decisions[place] != Decision.VALUE
    entries.decisions[place] = Decision.UP + Decision.DOWN - entries.decisions[place]


class CunningEvidence(Evidence):
    """Evidence of a run with lies. Where a lie is the sum of many terms, running results are bent as well, from the
    middle on, so that they come to the lie: the trainer's to its own, the challenger's to anything but the truth."""

    def __init__(self, evidence: Evidence, side: Side) -> None:
        vars(self).update(vars(evidence))
        self._side = side

    def output(self, step: int, q: int) -> Output:
        return cast(Output, _CunningOutput(super().output(step, q), self._side))


class _CunningOutput:
    def __init__(self, honest: Output, side: Side) -> None:
        self._honest, self._side = honest, side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def running(self, element: int, claimed: int) -> RunningResults:
        found = self._honest.running(element, claimed)
        last = found.partials[-1]
        wanted = claimed if self._side is Side.TRAINER else claimed ^ 1
        if not isinstance(last, ExactSum | IntegerSum):
            return found
        middle = len(found.partials) // 2
        if isinstance(last, ExactSum) and (last.special or not ieee.is_finite(wanted)):
            wanted = claimed if self._side is Side.TRAINER else _ONE if claimed != _ONE else ieee.NAN
            lie = ExactSum(_whole(last, wanted)) if ieee.is_finite(wanted) else ExactSum(0, wanted)
            return RunningResults([lie if i >= middle else partial for i, partial in enumerate(found.partials)])
        off = _whole(last, wanted) - last.total
        bent = [_moved(partial, off) if i >= middle else partial for i, partial in enumerate(found.partials)]
        return RunningResults(bent)


def _whole(kind: ExactSum | IntegerSum, bits: int) -> int:
    """The total that finishes to these bits."""
    return ieee.scaled(bits) << 149 if isinstance(kind, ExactSum) else wrap(bits)


def _moved(partial: Partial, off: int) -> Partial:
    assert isinstance(partial, ExactSum | IntegerSum)
    total = partial.total + off
    return ExactSum(total) if isinstance(partial, ExactSum) else IntegerSum(wrap(total))
