"""Dishonest engines, which execute another training than the spec prescribes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from roundlog.commitments import MerkleTree
from roundlog.execution import Batches, BatchSource, Executor, StepExecutor
from roundlog.training import Execution, Job, Run, StepEvent, TrainingResult, checkpoint_path
from tiebreak.contract.enums import Side
from tiebreak.roles.context import RoleContext
from tiebreak.roles.engine import DisputeTrees, Engine

from tiebreak_demo.adversary.cunning import cunning

MakeExecution = Callable[[Job, int, Path], Execution]


def prescribed_executor(job: Job) -> StepExecutor:
    """An executor of the posted program."""
    return Executor(job.program, job.spec.f32_format)


def prescribed_batches(job: Job) -> BatchSource:
    """A source of the prescribed batches."""
    return Batches(job.dataset, job.spec)


def execution_of(
    executor: Callable[[Job], StepExecutor] = prescribed_executor,
    batches: Callable[[Job], BatchSource] = prescribed_batches,
) -> MakeExecution:
    """The `execution` of `RunOptions` with another executor, or other batches."""

    def make(job: Job, micro_batches: int, run_dir: Path) -> Execution:
        return Execution(executor(job), batches(job))

    return make


@dataclass(frozen=True, kw_only=True)
class CunningEngine(Engine):
    """An engine whose dispute trees defend lies inside of sums, for one side of a game."""

    side: Side

    def trees(self, job: Job, run_dir: Path, state_roots: list[bytes]) -> DisputeTrees:
        return cunning(super().trees(job, run_dir, state_roots), self.side)


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
    """The context of a party with another execution. side: the side on which it defends lies inside of sums, too; None:
    on neither."""
    engine = context.engine
    options = replace(engine.options, execution=execution)
    if side is None:
        return replace(context, engine=replace(engine, options=options))
    return replace(context, engine=CunningEngine(options=options, cache_bytes=engine.cache_bytes, side=side))
