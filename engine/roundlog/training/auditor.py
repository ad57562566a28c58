"""The auditor: executes a job again and compares the trainer's log with its own results.

One audit is one run in one directory. `audit` uses it to decide whether a claim is right.

Its hooks compare the log with computed decisions, or follow it, and record findings:

    findings.json    the share that is verified, wrong entries, and logs that could not be used
    compared         32 bytes an interval: the root of the log that was compared in it, zeros where none was in whole
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from roundlog.commitments import MerkleTree
from roundlog.execution import StoppedError
from roundlog.log import LogError, LogReader
from roundlog.rounding import LogFinding, LogFindingKind, follower, payload_format
from roundlog.rounding.policies import without_log
from roundlog.storage import StorageError, append_file, read_hashes, read_record, replace_file, write_record
from roundlog.training.fabricated_values import FabricatedValues
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions
from roundlog.training.run import IntervalHooks, Run, RunError
from roundlog.training.run_files import inexact_sizes
from roundlog.training.trainer import log_header, log_path

MAX_MESSAGES = 100
"""Most logs that are reported as unreadable; more messages would say nothing new."""

_NONE = bytes(32)


class WrongLogError(Exception):
    """The log is wrong, damaged or absent, and only a right one was to be followed. The message is one clause."""


class Following(IntervalHooks):
    """Hooks that compare or follow a log."""

    def __init__(self, job: Job, log_dir: Path, run_dir: Path, share: float, *, only_right_logs: bool = False) -> None:
        """All arguments are as of `Auditor`."""
        self.job = job
        self._log_dir = log_dir
        self._record = run_dir / "findings.json"
        self._compared = run_dir / "compared"
        self._share = share
        self._only_right = only_right_logs
        self._reader: LogReader | None = None
        # Only inexact operators have entries. Their output sizes bound the memory that a log can make a reader
        # allocate.
        self._sizes = inexact_sizes(job.program)
        self.follower = follower(job.spec, share)
        super().__init__(self.follower)
        self.unreadable: list[str] = []
        self._unreadable_at: list[int] = []
        self._roots: list[bytes] = []

    # The methods of `IntervalHooks`.

    def resume(self, done: int) -> None:
        """Reads the findings of intervals that will not be run again. Raises RunError, WrongLogError."""
        if not done:
            self._write_compared()
            return
        share = self._take_up(done)
        roots = self._read_compared(done)
        stale = [i for i in range(done) if i not in self._unreadable_at and not self._is_compared(i, roots[i], share)]
        # Entries of another log say nothing about this one.
        old = set(stale)
        self.follower.findings = [f for f in self.follower.findings if f.step // self.job.spec.interval not in old]
        self._roots = [_NONE if i in old else root for i, root in enumerate(roots)]
        self._write_compared()
        if stale and not self.follower.given_up:
            self._report_stale(stale)
        self._require_right()

    def begin_interval(self, interval: int) -> None:
        self._roots.append(_NONE)
        if self.follower.given_up:
            return
        try:
            self._reader = self._open(interval)
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

    def after_step(self, step: int) -> None:
        self._require_right()

    def end_interval(self, interval: int) -> None:
        if self._reader is not None:
            self._roots[-1] = self._reader.root
        self.abandon()
        # Findings are written first, so that a log recorded as compared has no findings that are not on record.
        write_record(
            self._record,
            {
                "share": self._share,
                "findings": [asdict(finding) for finding in self.follower.findings],
                "unreadable": list(zip(self._unreadable_at, self.unreadable, strict=True)),
            },
        )
        append_file(self._compared, self._roots[-1])

    def abandon(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # Logs that cannot be used.

    def _open(self, interval: int) -> LogReader:
        return LogReader(
            log_path(self._log_dir, interval),
            log_header(self.job, interval),
            self._sizes,
            payload_format(self.job.spec),
        )

    def _go_without(self, interval: int, why: str) -> None:
        """Gives the log of an interval up. The log is a hint: without it the audit is slower, not weaker."""
        self.abandon()
        if len(self.unreadable) < MAX_MESSAGES:
            self.unreadable.append(why)
            self._unreadable_at.append(interval)
        self._require_right()

    def _require_right(self) -> None:
        if not self._only_right:
            return
        if self.follower.findings:
            first = self.follower.findings[0]
            where = f"step {first.step}, operator {first.operator}, element {first.element}"
            raise WrongLogError(f"the log is wrong at {where}: {first.message}")
        if self.unreadable:
            raise WrongLogError(f"the log cannot be used: {self.unreadable[0]}")

    # The record of former findings.

    def _take_up(self, done: int) -> float:
        """Reads the record of findings. Returns the share that was verified, 0 without a record."""
        if not self._record.exists():
            return 0.0
        try:
            record = read_record(self._record)
            findings = [_finding(item) for item in record["findings"]]
            unreadable = [(int(interval), str(text)) for interval, text in record["unreadable"]]
            share = float(record["share"])
        except StorageError as error:
            raise RunError(f"{error}: choose an empty directory and audit again") from error
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{self._record} is not a record of findings: choose an empty directory and audit again"
            ) from error
        steps = done * self.job.spec.interval
        self.follower.findings = [finding for finding in findings if finding.step < steps]
        self.unreadable = [text for interval, text in unreadable if interval < done]
        self._unreadable_at = [interval for interval, _ in unreadable if interval < done]
        return share

    def _read_compared(self, done: int) -> list[bytes]:
        compared = read_hashes(self._compared, done)
        return compared + [_NONE] * (done - len(compared))

    def _write_compared(self) -> None:
        with replace_file(self._compared) as file:
            file.write(b"".join(self._roots))

    def _is_compared(self, interval: int, root: bytes, share: float) -> bool:
        """Whether exactly this log was compared in an interval, with at least the share asked for now."""
        if root == _NONE or share < self._share:
            return False
        try:
            with self._open(interval) as reader:
                if reader.root != root:
                    return False
                for step in range(reader.header.first_step, reader.header.first_step + reader.header.steps):
                    self.follower.read(reader, step)
        except LogError:
            return False
        finally:
            self.follower.follow(0, None)
        return True

    def _report_stale(self, stale: list[int]) -> None:
        many = f" and of {len(stale) - 1} more intervals" if len(stale) > 1 else ""
        why = (
            f"{log_path(self._log_dir, stale[0])} was not compared{many}: these steps were audited before, without "
            "this log: audit in an empty directory to compare it"
        )
        if self.job.spec.log_decides:
            raise RunError(f"{why}, since under the policy `{self.job.spec.policy_name}` the log decides")
        self.unreadable.append(why)
        self._unreadable_at.append(self.job.spec.intervals)  # not kept: it is found again when it is looked for


def _finding(item: dict[str, Any]) -> LogFinding:
    """A finding as `asdict` wrote it. Raises KeyError, TypeError, ValueError."""
    return LogFinding(
        step=int(item["step"]),
        operator=int(item["operator"]),
        element=int(item["element"]),
        kind=LogFindingKind(item["kind"]),
        message=str(item["message"]),
    )


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
            roots = self._run.run(IntervalHooks(without_log(self.job.spec)))
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


BY_LOG = "by-log"
"""Subdirectory of the audit for the run that follows a log and verifies a sample of it."""


class LogStanding(enum.StrEnum):
    """The standing of a trainer's log after an audit."""

    NOT_GIVEN = "not given"
    RIGHT = "right"
    """Every decision was verified."""
    SAMPLED = "sampled"
    """A sample was verified, and nothing wrong was found; the rest was followed unverified."""
    WRONG = "wrong"
    """It has forged entries, or lacks entries."""
    UNUSABLE = "unusable"
    """It is damaged or absent, in whole or in part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(AuditResult):
    """The verdict on a claim and on a log. With a log that is SAMPLED, `checkpoint_root` is the right one as far as the
    sample shows."""

    right: bool | None
    """Whether the claim is right; None without a claim, and if the log decides and is
    unusable."""
    first_wrong: int | None
    """The first interval with a wrong state root; None if there is none, or the claim does not name all state roots."""
    log: LogStanding
    run_dir: Path
    """Directory of the run that these roots are from."""


def audit(
    job: Job,
    run_dir: Path,
    options: RunOptions = DEFAULT_OPTIONS,
    *,
    claim: bytes | Sequence[bytes] | None = None,
    log_dir: Path | None = None,
    verify_log: float = 1.0,
    on_distrust: Callable[[str], None] | None = None,
) -> Verdict:
    """Audits a claim in a directory; after a kill the audit is resumed there.

    claim: the claimed checkpoint root, or the state root of every interval. verify_log: share of the log's decisions
    that are verified. With 1.0 the roots do not depend on the log. With less, the log is followed until something is
    wrong with it, or it leads to another root than the claimed one. Then `on_distrust` is called with the reason, in
    one clause, and the whole audit is made again without relying on the log. All other arguments are as of `Auditor`.

    Raises as Auditor and Auditor.run."""
    certified = not job.spec.log_decides
    if log_dir is not None and certified and verify_log < 1.0:
        room = run_dir / BY_LOG
        found = _by_sample(
            lambda: Auditor(job, room, options, log_dir=log_dir, verify_log=verify_log, only_right_logs=True),
            room,
            claim,
        )
        if isinstance(found, AuditResult):
            return _verdict(found, claim, LogStanding.SAMPLED, room)
        if on_distrust is not None:
            on_distrust(found)
    result = Auditor(job, run_dir, options, log_dir=log_dir).run()
    if log_dir is None:
        standing = LogStanding.NOT_GIVEN
    elif result.findings:
        standing = LogStanding.WRONG
    else:
        standing = LogStanding.UNUSABLE if result.unreadable else LogStanding.RIGHT
    decided = certified or not result.unreadable
    return _verdict(result, claim if decided else None, standing, run_dir)


def _by_sample(make: Callable[[], Auditor], room: Path, claim: bytes | Sequence[bytes] | None) -> AuditResult | str:
    """The result of an audit that found nothing wrong with the log; otherwise the reason, in one clause, to distrust
    the log."""
    reason = room / "distrusted.json"
    if reason.exists():
        # Another sample might miss what the first one has found.
        return "a former audit has found it wrong"
    why = "it leads to another root than the claimed one"
    try:
        result = make().run()
        if result.stopped is not None:
            why = f"it leads to a run that stops ({result.stopped})"
        elif _compare(result, claim)[0] is not False:
            return result
    except WrongLogError as error:
        why = str(error)
    except StoppedError as error:
        why = f"it leads to a run that stops ({error})"
    write_record(reason, {"why": why})
    return why


def _verdict(
    result: AuditResult, claim: bytes | Sequence[bytes] | None, standing: LogStanding, run_dir: Path
) -> Verdict:
    right, first_wrong = _compare(result, claim)
    own = {one.name: getattr(result, one.name) for one in fields(result)}
    return Verdict(**own, right=right, first_wrong=first_wrong, log=standing, run_dir=run_dir)


def _compare(result: AuditResult, claim: bytes | Sequence[bytes] | None) -> tuple[bool | None, int | None]:
    """(whether the claim is right, or None without a claim; the first interval with a wrong state root, or None as in
    `Verdict`)."""
    if claim is None:
        return None, None
    if isinstance(claim, bytes):
        return claim == result.checkpoint_root, None
    wrong = [i for i, (ours, theirs) in enumerate(zip(result.state_roots, claim, strict=True)) if ours != theirs]
    return not wrong, wrong[0] if wrong else None
