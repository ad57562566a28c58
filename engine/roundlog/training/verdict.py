"""The verdict on a claimed training: is the claim right, and what is the trainer's log worth?

These are two questions. The claim is right if its root is the one that an audit without the log comes to. A log that
is forged, incomplete, damaged or absent is reported, and accuses nobody of a wrong claim.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from roundlog.execution.batches import BatchSource
from roundlog.execution.executor import Executor, StoppedError
from roundlog.rounding import LogFinding
from roundlog.spec import POLICY_CERTIFIED
from roundlog.storage import write_record
from roundlog.training.auditor import Auditor, AuditResult
from roundlog.training.following import WrongLogError
from roundlog.training.job import Job
from roundlog.training.run import StepEvent

BY_LOG = "by-log"
"""Folder, inside that of the audit, of the run that follows a log of which a sample is verified."""


class LogStanding(enum.StrEnum):
    """What a trainer's log is worth."""

    NOT_GIVEN = "not given"
    RIGHT = "right"
    """Every decision was verified."""
    SAMPLED = "sampled"
    """A sample was verified, and nothing found; the rest was believed."""
    WRONG = "wrong"
    """It has forged entries, or lacks some."""
    UNUSABLE = "unusable"
    """It is damaged or absent, in whole or in part."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a claim and of a log."""

    checkpoint_root: bytes
    """The right one. Where the log's standing is SAMPLED, as far as its sample tells; under the policy `threshold`,
    the one that the log leads to here."""
    state_roots: list[bytes]
    right: bool | None
    """Whether the claim is; None without a claim, and under `threshold` where the log that decides is unusable."""
    first_wrong: int | None
    """The first interval whose state root is wrong, of a claim that names them all."""
    log: LogStanding
    run_dir: Path
    """Where the run is that came to these roots."""
    findings: list[LogFinding] = field(default_factory=list)
    """Wrong log entries, in order."""
    unreadable: list[str] = field(default_factory=list)
    """As of an AuditResult."""
    stopped: str | None = None
    """As of an AuditResult."""


def audit(
    job: Job,
    run_dir: Path,
    *,
    claim: bytes | Sequence[bytes] | None = None,
    log_dir: Path | None = None,
    verify_log: float = 1.0,
    batches: BatchSource | None = None,
    keep_every: int = 1,
    device: torch.device | str = "cpu",
    on_step: Callable[[StepEvent], None] | None = None,
    on_distrust: Callable[[str], None] | None = None,
    micro_batches: int = 1,
    continue_after_stop: bool = False,
    executor: Executor | None = None,
) -> Verdict:
    """Audits a claim in a directory; carries on from there after a kill.

    claim: the claimed checkpoint root, or the state root of every interval. verify_log: the share of the log's
    decisions that is verified. With 1.0 nothing of the log gets into the roots. With less, the log is followed until
    anything is wrong with it, or it leads to another root than the claimed one; then, for a reason that `on_distrust`
    is told in one clause, the whole audit is made again without relying on it. All else as of an Auditor.

    Raises as Auditor and Auditor.run."""

    def auditor(room: Path, share: float, *, only_right_logs: bool) -> Auditor:
        return Auditor(
            job,
            room,
            log_dir=log_dir,
            verify_log=share,
            batches=batches,
            keep_every=keep_every,
            device=device,
            on_step=on_step,
            micro_batches=micro_batches,
            continue_after_stop=continue_after_stop,
            executor=executor,
            only_right_logs=only_right_logs,
        )

    certified = job.spec.rounding_policy == POLICY_CERTIFIED
    if log_dir is not None and certified and verify_log < 1.0:
        room = run_dir / BY_LOG
        found = _by_sample(lambda: auditor(room, verify_log, only_right_logs=True), room, claim)
        if isinstance(found, AuditResult):
            return _verdict(found, claim, LogStanding.SAMPLED, room)
        if on_distrust is not None:
            on_distrust(found)
    result = auditor(run_dir, 1.0, only_right_logs=False).run()
    if log_dir is None:
        standing = LogStanding.NOT_GIVEN
    elif result.findings:
        standing = LogStanding.WRONG
    else:
        standing = LogStanding.UNUSABLE if result.unreadable else LogStanding.RIGHT
    decided = certified or not result.unreadable
    return _verdict(result, claim if decided else None, standing, run_dir)


def _by_sample(make: Callable[[], Auditor], room: Path, claim: bytes | Sequence[bytes] | None) -> AuditResult | str:
    """The result of an audit that found nothing to object to; else, in one clause, why its log is not relied on."""
    reason = room / "distrusted.json"
    if reason.exists():
        # Another draw might miss what the first one has found.
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
    """(whether the claim is right, or None without a claim; the first interval whose state root is wrong, if the
    claim says so much)."""
    if claim is None:
        return None, None
    if isinstance(claim, bytes):
        return claim == result.checkpoint_root, None
    wrong = [i for i, (ours, theirs) in enumerate(zip(result.state_roots, claim, strict=True)) if ours != theirs]
    return not wrong, wrong[0] if wrong else None
