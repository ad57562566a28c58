"""The verdict on a claimed training: whether the claim is right, and the standing of the trainer's log.

The two are independent. The claim is right if its root equals the root of an audit without the log. A log that is
forged, incomplete, damaged or absent is reported, and does not make the claim wrong.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roundlog.execution import StoppedError
from roundlog.rounding import LogFinding
from roundlog.storage import write_record
from roundlog.training.auditor import Auditor, AuditResult, WrongLogError
from roundlog.training.job import Job
from roundlog.training.options import DEFAULT_OPTIONS, RunOptions

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


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a claim and on a log."""

    checkpoint_root: bytes
    """The right checkpoint root; with a log that is SAMPLED, as far as the sample shows. Where the log
    decides, the root that the log leads to on this machine."""
    state_roots: list[bytes]
    right: bool | None
    """Whether the claim is right; None without a claim, and if the log decides and is
    unusable."""
    first_wrong: int | None
    """The first interval with a wrong state root; None if there is none, or the claim does not name all state roots."""
    log: LogStanding
    run_dir: Path
    """Directory of the run that these roots are from."""
    findings: list[LogFinding] = field(default_factory=list)
    """Wrong log entries, in order."""
    unreadable: list[str] = field(default_factory=list)
    """Logs that could not be used, one sentence each, as in `AuditResult`."""
    stopped: str | None = None
    """The reason why the run stopped; None if it did not."""


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
    return Verdict(
        result.checkpoint_root,
        result.state_roots,
        right,
        first_wrong,
        standing,
        run_dir,
        result.findings,
        result.unreadable,
        result.stopped,
    )


def _compare(result: AuditResult, claim: bytes | Sequence[bytes] | None) -> tuple[bool | None, int | None]:
    """(whether the claim is right, or None without a claim; the first interval with a wrong state root, or None as in
    `Verdict`)."""
    if claim is None:
        return None, None
    if isinstance(claim, bytes):
        return claim == result.checkpoint_root, None
    wrong = [i for i, (ours, theirs) in enumerate(zip(result.state_roots, claim, strict=True)) if ours != theirs]
    return not wrong, wrong[0] if wrong else None
