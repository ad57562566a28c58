"""The engine of a role: trains and audits jobs on this machine, and gives evidence of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from roundlog.execution.microbatch import samples_of
from roundlog.parallel.audit import audit_in_parallel
from roundlog.parallel.listing import Look
from roundlog.parallel.result import ParallelAudit, Reports, Sharing
from roundlog.parallel.segment import Source
from roundlog.training.job import Job
from roundlog.training.options import RunOptions, StepEvent
from roundlog.training.run import Run
from roundlog.training.trainer import Trainer, TrainingResult
from roundlog.training.verdict import Verdict, audit

from tiebreak.roles.evidence import CACHE_BYTES, Evidence
from tiebreak.roles.time_to_answer import step_seconds

if TYPE_CHECKING:
    from roundlog.training.helpers import Helpers

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A party's engine.

    `options`: of its runs. An audit uses at most as many micro-batches as there are samples; a training uses whole
    batches. `cache_bytes`: memory for steps that are executed again for games. `helpers`: the other ranks, which help
    with trainings and audits, and not with what a game needs. `warn`: is told when they do not."""

    options: RunOptions = field(default_factory=RunOptions)
    cache_bytes: int = CACHE_BYTES
    helpers: Helpers | None = None
    warn: Callable[[str], None] = lambda text: None

    def train(self, job: Job, run_dir: Path, on_step: Callable[[StepEvent], None]) -> TrainingResult:
        """Trains a job. Raises as `Trainer.run`."""
        options = replace(self.options, micro_batches=1, on_step=on_step)
        return self._executed(job, options, lambda chosen: Trainer(job, run_dir, chosen).run())

    def audit(
        self,
        job: Job,
        run_dir: Path,
        on_step: Callable[[StepEvent], None],
        *,
        claim: bytes | None,
        log_dir: Path | None,
        verify_log: float,
        on_distrust: Callable[[str], None],
    ) -> Verdict:
        """Audits a claimed checkpoint root (None: one that is not known yet), and continues after a stop. Raises as
        `audit`."""
        options = replace(self._options(job), on_step=on_step, continue_after_stop=True)
        return self._executed(
            job,
            options,
            lambda chosen: audit(
                job,
                run_dir,
                chosen,
                claim=claim,
                log_dir=log_dir,
                verify_log=verify_log,
                on_distrust=on_distrust,
            ),
        )

    def _executed(self, job: Job, options: RunOptions, run: Callable[[RunOptions], T]) -> T:
        """The result of a run by these options; with the helpers, if there are some."""
        if self.helpers is None:
            return run(options)
        return self.helpers.execute(
            job, lambda execution: run(replace(options, execution=execution)), options.execution, self.warn
        )

    def share_out(
        self,
        job: Job,
        look: Look,
        source: Source,
        run_dir: Path,
        sharing: Sharing,
        *,
        challenged: bytes | None,
        reports: Reports,
    ) -> ParallelAudit:
        """Audits a claim by many workers. Raises as `audit_in_parallel`."""
        options = self._options(job)
        return audit_in_parallel(job, look, source, run_dir, sharing, options, challenged=challenged, reports=reports)

    def evidence(self, job: Job, run_dir: Path, state_roots: list[bytes]) -> Evidence:
        """The evidence of a run that was executed in `run_dir`. state_roots: one an interval."""
        return Evidence(job, run_dir, state_roots, self._options(job), cache_bytes=self.cache_bytes)

    def recall(self, job: Job, run_dir: Path) -> Evidence | None:
        """The evidence of a run that an earlier process has finished; None if there is none."""
        roots = Run(job, run_dir).recorded_roots()
        return self.evidence(job, run_dir, roots) if len(roots) == job.spec.intervals else None

    def step_seconds(self, job: Job) -> float:
        """Seconds of a step of a job as this process executes it for games, without the helpers."""
        return step_seconds(job, self._options(job))

    def _options(self, job: Job) -> RunOptions:
        return replace(self.options, micro_batches=min(self.options.micro_batches, samples_of(job.program)))
