"""The auditor: executes the same job again, and compares the trainer's log with what it finds.

This is one run in one directory. `roundlog.training.verdict` decides with it whether a claim is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from roundlog.commitments import MerkleTree
from roundlog.execution.batches import BatchSource
from roundlog.execution.executor import Executor
from roundlog.rounding import LogFinding, Rounding
from roundlog.spec import POLICY_CERTIFIED
from roundlog.training.fabricated_values import FabricatedValues
from roundlog.training.following import Following
from roundlog.training.job import Job
from roundlog.training.policies import alone
from roundlog.training.run import Run, RunError, StepEvent


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What an audit found."""

    checkpoint_root: bytes
    """The right one; under `threshold`, the one that this log leads to here."""
    state_roots: list[bytes]
    findings: list[LogFinding] = field(default_factory=list)
    """Wrong log entries, in order."""
    unreadable: list[str] = field(default_factory=list)
    """Logs that could not be read, were given up or were not compared, one sentence each. Their steps were audited all
    the same."""
    stopped: str | None = None
    """Why the run has no end, of one that has none: from that step on, states are made up."""


class Auditor:
    """Audits a job in a directory; carries on from there after a kill."""

    def __init__(
        self,
        job: Job,
        run_dir: Path,
        *,
        log_dir: Path | None = None,
        verify_log: float = 1.0,
        batches: BatchSource | None = None,
        keep_every: int = 1,
        device: torch.device | str = "cpu",
        on_step: Callable[[StepEvent], None] | None = None,
        micro_batches: int = 1,
        continue_after_stop: bool = False,
        executor: Executor | None = None,
        only_right_logs: bool = False,
    ) -> None:
        """log_dir: the trainer's logs; None audits without. verify_log: the share of the logged decisions inside the
        ambiguous set that are verified, drawn in secret. With 1.0 all of them are, and the roots are those of an audit
        without a log, whatever the log says; with less, a bent decision that is not drawn bends the roots, and the run
        needs a directory of its own. Under `threshold` the trainer's logs are needed, and every reversal is held
        against the operator's error bound, whatever the share.
        micro_batches: into how many parts every batch is cut, for the same roots and findings in less memory (and some
        disk, in run_dir). continue_after_stop, executor: as of a Run. only_right_logs: stop by a WrongLogError where
        the log turns out to be wrong, damaged or absent.

        Raises ValueError for a share outside 0..1, RunError if the directory holds another job's run or a log is
        needed, ProgramError if a batch has fewer samples than micro-batches."""
        if not 0.0 <= verify_log <= 1.0:
            raise ValueError(f"verify_log is {verify_log}: give a share between 0 and 1")
        if log_dir is None and job.spec.rounding_policy != POLICY_CERTIFIED:
            raise RunError(
                "this job rounds by the policy `threshold`, under which the log decides: audit it with the "
                "trainer's log"
            )
        self.job = job
        self._run = Run(
            job,
            run_dir,
            batches=batches,
            keep_every=keep_every,
            device=device,
            on_step=on_step,
            # States of a sampled audit may contain what the sample missed, so no full audit may take them up.
            role="auditor" if log_dir is None or verify_log >= 1.0 else "sampling auditor",
            micro_batches=micro_batches,
            continue_after_stop=continue_after_stop,
            executor=executor,
        )
        self._run_dir = run_dir
        self._log_dir = log_dir
        self._share = verify_log
        self._only_right_logs = only_right_logs

    def run(self) -> AuditResult:
        """Audit to the end. Raises StoppedError (unless it goes on), WrongLogError (only if asked for), RunError,
        OSError."""
        if self._log_dir is None:
            roots = self._run.run(_Alone(self.job))
            return AuditResult(MerkleTree(roots).root, roots, stopped=self._stopped())
        part = Following(self.job, self._log_dir, self._run_dir, self._share, only_right_logs=self._only_right_logs)
        roots = self._run.run(part)
        return AuditResult(MerkleTree(roots).root, roots, part.follower.findings, part.unreadable, self._stopped())

    def _stopped(self) -> str | None:
        if self._run.stopped is not None:
            return str(self._run.stopped)
        return "it stopped before this process was started" if FabricatedValues(self._run_dir).needed else None


class _Alone:
    """A run's part that needs no log and leaves none."""

    def __init__(self, job: Job) -> None:
        self.rounding: Rounding = alone(job.spec)

    def resume(self, done: int) -> None:
        pass

    def begin_interval(self, interval: int) -> None:
        pass

    def before_step(self, step: int) -> None:
        pass

    def after_step(self, step: int) -> None:
        pass

    def end_interval(self, interval: int) -> None:
        pass

    def abandon(self) -> None:
        pass
