"""The auditor: executes a job again and compares the trainer's log with its own results.

One audit is one run in one directory. `roundlog.training.verdict` uses it to decide whether a claim is right."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from roundlog.commitments import MerkleTree
from roundlog.rounding import LogFinding, Rounding
from roundlog.rounding.policies import without_log
from roundlog.training.fabricated_values import FabricatedValues
from roundlog.training.following import Following
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions
from roundlog.training.run import Run, RunError


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit."""

    checkpoint_root: bytes
    """The right checkpoint root; where the log decides, the root that this log leads to on this machine."""
    state_roots: list[bytes]
    findings: list[LogFinding] = field(default_factory=list)
    """Wrong log entries, in order."""
    unreadable: list[str] = field(default_factory=list)
    """Logs that could not be read, were given up or were not compared, one sentence each. Their steps were audited
    nevertheless."""
    stopped: str | None = None
    """The reason why the run stopped; None if it did not. After a stop, states are fabricated."""


class Auditor:
    """An audit of a job in a directory, resumed there after a kill."""

    def __init__(
        self,
        job: Job,
        run_dir: Path,
        options: RunOptions = DEFAULT_OPTIONS,
        *,
        log_dir: Path | None = None,
        verify_log: float = 1.0,
        only_right_logs: bool = False,
    ) -> None:
        """log_dir: the trainer's logs; None audits without them. verify_log: share of the logged decisions about
        ambiguous elements that are verified, drawn in secret. With 1.0 all are verified, and the roots are those of an
        audit without a log, whatever the log says. With less, a wrong decision that is not drawn makes the roots wrong,
        and the run needs a directory of its own. Where the log decides (`TrainingSpec.log_decides`), the trainer's logs
        are required, and every reversal is checked against the operator's error bound, whatever the share.
        only_right_logs: raise WrongLogError if the log is found wrong, damaged or absent.

        Raises ValueError for a share outside 0..1, RunError if the directory holds another job's run or a required log
        is not given, ProgramError if a batch has fewer samples than micro-batches."""
        if not 0.0 <= verify_log <= 1.0:
            raise ValueError(f"verify_log is {verify_log}: give a share between 0 and 1")
        if log_dir is None and job.spec.log_decides:
            raise RunError(
                f"this job rounds by the policy `{job.spec.policy_name}`, under which the log decides: audit it with "
                "the trainer's log"
            )
        self.job = job
        self._run = Run(
            job,
            run_dir,
            options,
            # States of a sampled audit may be wrong where the sample missed something, so no full audit may resume from
            # them.
            role="auditor" if log_dir is None or verify_log >= 1.0 else "sampling auditor",
        )
        self._run_dir = run_dir
        self._log_dir = log_dir
        self._share = verify_log
        self._only_right_logs = only_right_logs

    def run(self) -> AuditResult:
        """Audits to the end. Raises StoppedError (unless `continue_after_stop`), WrongLogError (only with
        `only_right_logs`), RunError, OSError."""
        if self._log_dir is None:
            roots = self._run.run(_Alone(self.job))
            return AuditResult(MerkleTree(roots).root, roots, stopped=self._stopped())
        following = Following(
            self.job, self._log_dir, self._run_dir, self._share, only_right_logs=self._only_right_logs
        )
        roots = self._run.run(following)
        return AuditResult(
            MerkleTree(roots).root, roots, following.follower.findings, following.unreadable, self._stopped()
        )

    def _stopped(self) -> str | None:
        if self._run.stopped is not None:
            return str(self._run.stopped)
        return "it stopped before this process was started" if FabricatedValues(self._run_dir).needed else None


class _Alone:
    """The hooks of an auditor without a log: they do nothing."""

    def __init__(self, job: Job) -> None:
        self.rounding: Rounding = without_log(job.spec)

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
