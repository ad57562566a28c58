"""Dishonest engines, which execute another training than the spec prescribes; and dispute trees of a run with lies that
are bent inside of sums, too, so that they defend the lies there."""

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
from roundlog.commitments import MerkleTree
from roundlog.dispute import RunningResults
from roundlog.execution import CPU, Batches, BatchSource, Executor, StepExecutor
from roundlog.training import Execution, Job, Run, StepEvent, TrainingResult, checkpoint_path
from tiebreak.contract.enums import Side
from tiebreak.game import Output, Place, Tree
from tiebreak.roles.context import RoleContext
from tiebreak.roles.engine import DisputeTrees, Engine

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


def prescribed_batches(job: Job) -> BatchSource:
    """Return a source of the prescribed batches."""
    return Batches(job.dataset, job.spec)


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
    batches: Callable[[Job], BatchSource] = prescribed_batches,
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
        engine = LyingEngine(options=engine.options, cache_bytes=engine.cache_bytes, side=side)
    return replace(context, engine=engine)
