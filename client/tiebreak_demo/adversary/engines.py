"""Dishonest engines, which execute another training than the spec prescribes. In a tampered execution single numbers
are wrong and everything after them follows, so that a lie can be defended down to the number itself; and dispute trees
of a run with lies are bent inside of sums, too, so that they defend the lies there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from roundlog.adjudication import (
    CHAIN_LIMIT,
    ExactSum,
    GroupChain,
    IntegerSum,
    RunningResult,
    in_float32,
    wrap,
)
from roundlog.adjudication import binary32 as ieee
from roundlog.arithmetic import right_float_mode
from roundlog.commitments import MerkleTree, canonical
from roundlog.dispute import RunningResults
from roundlog.execution import (
    CPU,
    Batches,
    CheckedProgram,
    Executor,
    RunningStep,
    StepExecutor,
    StepResult,
)
from roundlog.kernels import own_threads
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import StepInputs
from roundlog.program import Program
from roundlog.rounding import Rounding
from roundlog.training import Execution, Job, Run, StepEvent, TrainingResult, checkpoint_path
from tiebreak.contract.enums import Side
from tiebreak.roles.context import RoleContext
from tiebreak.roles.engine import DisputeTrees, Engine
from tiebreak.strategy import Output, Place, Tree


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
        self,
        program: Program,
        f32_format: Format = FLOAT32,
        *,
        compute: Callable[[RunningStep, int], None],
        steps: Callable[[int], bool] = lambda step: True,
    ) -> None:
        """steps: whether a step is computed so; others are as the posted program has them."""
        self.program = program
        self.f32_format = f32_format
        self._checked, self._posted = CheckedProgram(program, f32_format), Executor(program, f32_format)
        self._compute, self._steps = compute, steps

    def run(
        self, inputs: StepInputs, rounding: Rounding, observe: Callable[[int, torch.Tensor], None] | None = None
    ) -> StepResult:
        if not self._steps(inputs.step):
            return self._posted.run(inputs, rounding, observe)
        with own_threads(), right_float_mode(f"step {inputs.step}"):
            running = RunningStep(self._checked, inputs, rounding)
            for index in range(len(self.program.nodes)):
                self._compute(running, index)
                if observe is not None:
                    observe(index, canonical(running.values[index]))
                running.forget(self._checked.last_uses.get(index, []))
            return running.result


def tampered(program: Program, f32_format: Format, lies: Sequence[Lie]) -> BentExecutor:
    """Return an executor that tells lies in their steps and is honest in all others."""

    def compute(running: RunningStep, index: int) -> None:
        running.compute(index)
        for lie in lies:
            if (lie.step, lie.operator) == (running.inputs.step, index):
                _tell(lie, running, is_store=program.nodes[index].op == "store")

    steps = {lie.step for lie in lies}
    return BentExecutor(program, f32_format, compute=compute, steps=steps.__contains__)


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


_ONE = 0x3F800000
"""The FP32 number 1."""


def lying_trees(trees: DisputeTrees, side: Side) -> DisputeTrees:
    """Return trees with bent running results. If a lie is the sum of many terms, the running results are shifted from
    the middle on, so that a trainer's end at its claim and a challenger's at a wrong value."""
    return cast(DisputeTrees, _LyingTrees(trees, side))


class _LyingTrees:
    def __init__(self, honest: DisputeTrees, side: Side) -> None:
        self._honest, self._side = honest, side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def at_hand(self, place: Place) -> Tree | None:
        return self._bent(place, self._honest.at_hand(place))

    def tree(self, place: Place) -> Tree | None:
        return self._bent(place, self._honest.tree(place))

    def _bent(self, place: Place, tree: Tree | None) -> Tree | None:
        if tree is None or len(place) < 3:
            return tree
        return cast(Output, _LyingOutput(cast(Output, tree), self._side))


class _LyingOutput:
    def __init__(self, honest: Output, side: Side) -> None:
        self._honest, self._side = honest, side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def running(self, element: int, claimed: int) -> RunningResults:
        found = self._honest.running(element, claimed)
        last, dtype, is_trainer = found.partials[-1], self._honest.descriptor.dtype, self._side is Side.TRAINER
        wanted = in_float32(dtype, claimed if is_trainer else claimed ^ 1)
        claimed = in_float32(dtype, claimed)
        lie: RunningResult | None = None
        off = 0
        if isinstance(last, GroupChain):
            lie = _chain(last, wanted)
        elif isinstance(last, ExactSum) and (last.special or not ieee.is_finite(wanted)):
            wanted = claimed if is_trainer else _ONE if claimed != _ONE else ieee.NAN
            lie = ExactSum(_whole(last, wanted)) if ieee.is_finite(wanted) else ExactSum(0, wanted)
        elif isinstance(last, ExactSum | IntegerSum):
            off = _whole(last, wanted) - last.total
        else:
            return found
        middle = len(found.partials) // 2
        bent = [_moved(partial, off) if lie is None else lie for partial in found.partials[middle:]]
        return RunningResults([*found.partials[:middle], *bent])


def _whole(kind: ExactSum | IntegerSum, bits: int) -> int:
    """Return the running total that finishes to these bits, of a number its FP32 pattern."""
    return ieee.scaled(bits) << 149 if isinstance(kind, ExactSum) else wrap(bits)


def _chain(kind: GroupChain, wanted: int) -> GroupChain:
    """Return a running result that finishes to an FP32 pattern."""
    if ieee.is_nan(wanted):
        return replace(kind, sum=0, total=ieee.NAN)
    if ieee.is_finite(wanted):
        return replace(kind, sum=ieee.scaled(wanted), total=0)
    return replace(kind, sum=(1 - CHAIN_LIMIT) if wanted & ieee.SIGN else CHAIN_LIMIT - 1, total=0)


def _moved(partial: RunningResult, off: int) -> RunningResult:
    assert isinstance(partial, ExactSum | IntegerSum)
    total = partial.total + off
    return ExactSum(total) if isinstance(partial, ExactSum) else IntegerSum(wrap(total))


MakeExecution = Callable[[Job, int, Path], Execution]
"""The `execution` of `RunOptions`."""


def prescribed_executor(job: Job) -> StepExecutor:
    """Return an executor of the posted program."""
    return Executor(job.program, job.spec.f32_format)


class ChangedBatches(Batches):
    """The prescribed batches, of which that of one step is changed. change: writes into the batch's list of fields."""

    def __init__(self, job: Job, step: int, change: Callable[[list[torch.Tensor]], None]) -> None:
        super().__init__(job.dataset, job.spec)
        self._step, self._change = step, change

    def load(self, step: int, device: torch.device = CPU) -> Sequence[torch.Tensor]:
        fields = list(super().load(step, device))
        if step == self._step:
            self._change(fields)
        return fields


def execution_of(
    executor: Callable[[Job], StepExecutor] = prescribed_executor,
    batches: Callable[[Job], Batches] = lambda job: Batches(job.dataset, job.spec),
) -> MakeExecution:
    """Return an execution with another executor, or other batches."""

    def make(job: Job, micro_batches: int, run_dir: Path) -> Execution:
        return Execution(executor(job), batches(job))

    return make


@dataclass(frozen=True, kw_only=True)
class LyingEngine(Engine):
    """An engine whose dispute trees defend lies inside of sums, for one side of a game."""

    side: Side

    def trees(self, job: Job, run_dir: Path, state_roots: list[bytes]) -> DisputeTrees:
        return lying_trees(super().trees(job, run_dir, state_roots), self.side)


@dataclass(frozen=True, kw_only=True)
class CopyingEngine(Engine):
    """An engine that repeats nothing: it copies the run of an accomplice, which is in the directory `whispered`."""

    whispered: Path

    def train(self, job: Job, run_dir: Path, on_step: Callable[[StepEvent], None]) -> TrainingResult:
        shutil.copytree(self.whispered, run_dir, dirs_exist_ok=True)
        roots, log_dir = Run(job, run_dir).recorded_roots(), run_dir / "log"
        return TrainingResult(
            checkpoint_root=MerkleTree(roots).root,
            state_roots=roots,
            final_state=checkpoint_path(run_dir, job.spec.steps),
            log_dir=log_dir,
            log_bytes=sum(path.stat().st_size for path in log_dir.iterdir()),
        )


def lying(context: RoleContext, execution: MakeExecution, side: Side | None = None) -> RoleContext:
    """Return the context of a party with another execution. side: the side on which it defends lies inside of sums,
    too; None: on neither."""
    engine = replace(context.engine, options=replace(context.engine.options, execution=execution))
    if side is not None:
        engine = LyingEngine(options=engine.options, side=side)
    return replace(context, engine=engine)
