"""The auditor: executes the same job again, by the trainer's log or without it, and compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from roundlog.batches import BatchSource
from roundlog.commitments import MerkleTree
from roundlog.dispute.made_up import MadeUp
from roundlog.executor import Executor
from roundlog.job import Job
from roundlog.log import LogError, LogReader
from roundlog.operators import Inexact, operator
from roundlog.policies import alone, follower
from roundlog.rounding import Finding, FindingKind, Rounding
from roundlog.run import Run, RunError, StepEvent
from roundlog.spec import POLICY_CERTIFIED
from roundlog.storage import StorageError, read_record, write_record
from roundlog.trainer import log_header, log_path

MAX_MESSAGES = 100
"""Logs that are reported as unreadable; who sends more has made the point."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What an audit found."""

    checkpoint_root: bytes
    """The right one; under `threshold`, the one that this log leads to here."""
    state_roots: list[bytes]
    findings: list[Finding] = field(default_factory=list)
    """Wrong log entries, in order."""
    unreadable: list[str] = field(default_factory=list)
    """Logs that could not be read or were given up, one sentence each; what follows was audited without."""
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
        verify_log: float = 0.05,
        batches: BatchSource | None = None,
        keep_every: int = 1,
        device: torch.device | str = "cpu",
        on_step: Callable[[StepEvent], None] | None = None,
        micro_batches: int = 1,
        go_on: bool = False,
        executor: Executor | None = None,
    ) -> None:
        """log_dir: the trainer's logs; None audits without. verify_log: the share of the logged decisions inside the
        ambiguous set that are verified, drawn in secret; 1.0 verifies all of them. Under `threshold` the trainer's
        logs are needed, and every reversal is held against the operator's error bound, whatever the share.
        micro_batches: into how many parts every batch is cut, for the same roots and findings in less memory (and some
        disk, in run_dir). go_on, executor: as of a Run.

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
            role="auditor",
            micro_batches=micro_batches,
            go_on=go_on,
            executor=executor,
        )
        self._run_dir = run_dir
        self._log_dir = log_dir
        self._share = verify_log

    def run(self) -> AuditResult:
        """Audit to the end. Raises StoppedError (unless it goes on), RunError, OSError."""
        if self._log_dir is None:
            roots = self._run.run(_Alone(self.job))
            return AuditResult(MerkleTree(roots).root, roots, stopped=self._stopped())
        part = _Following(self.job, self._log_dir, self._run_dir / "findings.json", self._share)
        roots = self._run.run(part)
        return AuditResult(MerkleTree(roots).root, roots, part.follower.findings, part.unreadable, self._stopped())

    def _stopped(self) -> str | None:
        if self._run.stopped is not None:
            return str(self._run.stopped)
        return "it stopped before this process was started" if MadeUp(self._run_dir).needed else None


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


class _Following:
    """A run's part that follows a trainer's log, and records what is wrong with it."""

    def __init__(self, job: Job, log_dir: Path, record: Path, share: float) -> None:
        self.job = job
        self._log_dir = log_dir
        self._record = record
        self._reader: LogReader | None = None
        # Only inexact operators have entries; what a log may make a reader allocate is bounded by their outputs.
        self._sizes = [n.type.numel if isinstance(operator(n.op), Inexact) else 0 for n in job.program.nodes]
        self.follower = follower(job.spec, share)
        self.rounding: Rounding = self.follower
        self.unreadable: list[str] = []
        self._unreadable_at: list[int] = []

    def resume(self, done: int) -> None:
        """Takes up what was found in the intervals that will not be run again. Raises RunError."""
        if not done or not self._record.exists():
            return
        try:
            record = read_record(self._record)
            findings = [_finding(item) for item in record["findings"]]
            unreadable = [(int(interval), str(text)) for interval, text in record["unreadable"]]
        except StorageError as error:
            raise RunError(f"{error}: choose an empty directory") from error
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self._record} is not a record of findings: choose an empty directory") from error
        steps = done * self.job.spec.interval
        self.follower.findings = [finding for finding in findings if finding.step < steps]
        self.unreadable = [text for interval, text in unreadable if interval < done]
        self._unreadable_at = [interval for interval, _ in unreadable if interval < done]

    def begin_interval(self, interval: int) -> None:
        if self.follower.given_up:
            return
        path = log_path(self._log_dir, interval)
        try:
            self._reader = LogReader(path, log_header(self.job, interval), self._sizes)
        except LogError as error:
            self._go_without(interval, str(error))

    def before_step(self, step: int) -> None:
        interval = step // self.job.spec.interval
        self.follower.follow(step, None)
        if self._reader is not None and self.follower.given_up:
            found = len(self.follower.findings)
            self._go_without(interval, f"the log is not followed from step {step} on, after {found} wrong entries")
        elif self._reader is not None:
            try:
                self.follower.read(self._reader, step)
            except LogError as error:
                self._go_without(interval, str(error))

    def _go_without(self, interval: int, why: str) -> None:
        """The log is a hint: without it the audit is slower, not weaker."""
        self.abandon()
        if len(self.unreadable) < MAX_MESSAGES:
            self.unreadable.append(why)
            self._unreadable_at.append(interval)

    def after_step(self, step: int) -> None:
        pass

    def end_interval(self, interval: int) -> None:
        self.abandon()
        write_record(
            self._record,
            {
                "findings": [asdict(finding) for finding in self.follower.findings],
                "unreadable": list(zip(self._unreadable_at, self.unreadable, strict=True)),
            },
        )

    def abandon(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _finding(item: dict[str, Any]) -> Finding:
    """A finding as `asdict` wrote it. Raises KeyError, TypeError, ValueError."""
    return Finding(
        step=int(item["step"]),
        operator=int(item["operator"]),
        element=int(item["element"]),
        kind=FindingKind(item["kind"]),
        message=str(item["message"]),
    )
