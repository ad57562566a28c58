"""`tiebreak train` and `tiebreak audit`: reproducible training in directories, without any chain."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import options
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError

if TYPE_CHECKING:
    from roundlog.auditor import AuditResult
    from roundlog.job import Job
    from roundlog.rounding import Thresholds
    from roundlog.run import StepEvent

_SHOWN_FINDINGS = 20


def register(app: typer.Typer) -> None:
    """Adds the two commands."""
    app.command()(train)
    app.command()(audit)


def train(
    job_directory: options.JobDirectory,
    run: Annotated[
        Path, typer.Option("--run", help="Directory of the run: checkpoints and log. A killed run carries on.")
    ],
    thresholds: Annotated[
        Path | None,
        typer.Option(
            help="For jobs of the policy threshold: a JSON file with the threshold of each operator, in [0.25, 0.5) of "
            "the distance between numbers. [default: 0.25]",
            show_default=False,
        ),
    ] = None,
    keep_every: options.KeepEvery = 1,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    max_memory: options.Memory = options.DEFAULT_MEMORY,  # type: ignore[assignment]  # parsed by typer
    json: options.Json = False,
) -> None:
    """Train a job, bit for bit as any other machine would, and write its rounding log."""
    from roundlog.trainer import Trainer

    from tiebreak.cli import output

    options.use_threads(threads)
    job = read_job(job_directory, max_memory)
    chosen = _read_thresholds(thresholds, job) if thresholds is not None else None
    started = time.monotonic()
    with output.progress("training", job.spec.steps) as bar:
        last = _Last(bar)
        result = Trainer(job, run, keep_every=keep_every, device=device, on_step=last, thresholds=chosen).run()
    facts = {
        "checkpoint_root": result.checkpoint_root,
        "final_state_root": result.state_roots[-1],
        "steps": job.spec.steps,
        "checkpoints": len(result.state_roots),
        "loss": last.loss,
        "seconds": round(time.monotonic() - started, 3),
        "final_state": result.final_state,
        "log": result.log_dir,
        "log_bytes": result.log_bytes,
    }
    if json:
        output.show_json(facts)
        return
    output.show_facts(
        "Trained",
        {
            "checkpoint root": result.checkpoint_root,
            "steps": f"{job.spec.steps}, a checkpoint every {job.spec.interval}",
            **({"loss": f"{last.loss:.4f}"} if last.loss is not None else {}),
            "final state": result.final_state,
            "log": f"{result.log_dir} ({output.size(result.log_bytes)})",
        },
    )


def _read_thresholds(path: Path, job: Job) -> Thresholds:
    from roundlog.rounding import ThresholdError, Thresholds
    from roundlog.rounding.threshold import MAX_JSON_BYTES
    from roundlog.spec import POLICY_THRESHOLD

    if job.spec.rounding_policy != POLICY_THRESHOLD:
        raise CommandError("this job rounds by the policy certified, which has no thresholds: leave --thresholds away.")
    try:
        with path.open("rb") as file:
            return Thresholds.from_json(file.read(MAX_JSON_BYTES + 1))
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from error
    except ThresholdError as error:
        raise CommandError(f"{path} holds no thresholds: {error}.") from error


def audit(
    job_directory: options.JobDirectory,
    run: Annotated[Path, typer.Option("--run", help="Directory of the audit. A killed audit carries on.")],
    log: Annotated[
        Path | None, typer.Option("--log", help="The trainer's log; without it the audit is slower.")
    ] = None,
    verify_log: options.VerifyLog = options.DEFAULT_VERIFY_LOG,  # type: ignore[assignment]  # parsed by typer
    claim: Annotated[
        str | None,
        typer.Option(
            metavar="ROOT|RUN",
            help="What the trainer claims: its checkpoint root, or its run directory; then the first wrong checkpoint "
            "is named.",
        ),
    ] = None,
    keep_every: options.KeepEvery = 1,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    micro_batches: options.MicroBatches = 1,
    max_memory: options.Memory = options.DEFAULT_MEMORY,  # type: ignore[assignment]  # parsed by typer
    json: options.Json = False,
) -> None:
    """Repeat a training and check what the trainer has written and claimed.

    Exit code 3 if the claim or the log is wrong.
    """
    from roundlog.auditor import Auditor
    from roundlog.rounding import FindingKind

    from tiebreak.cli import output

    options.use_threads(threads)
    claimed = read_claim(claim) if claim is not None else None
    if log is not None and not log.is_dir():
        raise CommandError(f"there is no directory of logs {log}: name the `log` directory of the trainer's run.")
    job = read_job(job_directory, max_memory, micro_batches)
    if claim is not None and isinstance(claimed, list):
        check_roots(Path(claim), claimed, job)
    started = time.monotonic()
    with output.progress("auditing", job.spec.steps) as bar:
        result = Auditor(
            job,
            run,
            log_dir=log,
            verify_log=verify_log,
            keep_every=keep_every,
            device=device,
            on_step=_Last(bar),
            micro_batches=micro_batches,
        ).run()
    agrees, first_wrong = compare(result, claimed)
    forged = any(finding.kind is FindingKind.FORGED for finding in result.findings)
    if json:
        output.show_json(
            {
                "checkpoint_root": result.checkpoint_root,
                "final_state_root": result.state_roots[-1],
                "agrees": agrees,
                "first_wrong_interval": first_wrong,
                "seconds": round(time.monotonic() - started, 3),
                "findings": [
                    {
                        "step": finding.step,
                        "operator": finding.operator,
                        "described": job.program.describe(finding.operator),
                        "element": finding.element,
                        "kind": finding.kind.value,
                        "message": finding.message,
                    }
                    for finding in result.findings
                ],
                "unreadable": result.unreadable,
            }
        )
    else:
        _show_audit(job, result, claimed is not None, agrees, first_wrong, log is not None)
    if agrees is False or forged:
        raise typer.Exit(ANSWER_IS_NO)


def compare(result: AuditResult, claimed: bytes | list[bytes] | None) -> tuple[bool | None, int | None]:
    """(whether the claim is right, or None without a claim; the first interval whose state root is wrong, if the
    claim says so much)."""
    if claimed is None:
        return None, None
    if isinstance(claimed, bytes):
        return claimed == result.checkpoint_root, None
    wrong = [i for i, (ours, theirs) in enumerate(zip(result.state_roots, claimed, strict=True)) if ours != theirs]
    return not wrong, wrong[0] if wrong else None


def read_job(directory: Path, max_memory: int, micro_batches: int = 1) -> Job:
    """A job directory, checked. Raises JobError, CommandError."""
    if not directory.is_dir():
        raise CommandError(f"there is no job directory {directory}: make one with `tiebreak job create`.")
    from roundlog.job import Job, Limits

    return Job.read(directory, Limits(memory_bytes=max_memory, micro_batches=micro_batches))


def read_claim(text: str) -> bytes | list[bytes]:
    """A checkpoint root in hex, or the state roots on record in a run directory. Raises CommandError."""
    if re.fullmatch("(0x)?[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text.removeprefix("0x"))
    path = Path(text) / "roots"
    if not path.is_file():
        raise CommandError(f"{text} is neither a root of 64 hex digits nor the directory of a run: check the claim.")
    if path.stat().st_size > 32 << 32:
        raise CommandError(f"{path} is too large to be the record of a run: check the directory.")
    content = path.read_bytes()
    if len(content) % 32:
        raise CommandError(f"{path} does not hold whole roots of 32 bytes: let the training end first.")
    return [content[i : i + 32] for i in range(0, len(content), 32)]


def check_roots(directory: Path, roots: list[bytes], job: Job) -> None:
    """Whether these are the roots that the run in this directory wrote down for the whole of the job: a damaged file
    accuses nobody. Raises CommandError."""
    from roundlog.run import root_sum

    if len(roots) != job.spec.intervals:
        raise CommandError(
            f"the run {directory} has {len(roots)} of {job.spec.intervals} checkpoints: let its training end first."
        )
    path = directory / "roots.sums"
    if not path.is_file():
        raise CommandError(f"there is no {path}, which says whether the roots are whole: copy it, too.")
    sums = b"".join(root_sum(job.spec.run_id, interval, root) for interval, root in enumerate(roots))
    with path.open("rb") as file:
        recorded = file.read(len(sums) + 1)
    wrong = [i for i in range(len(roots)) if sums[32 * i : 32 * i + 32] != recorded[32 * i : 32 * i + 32]]
    if wrong:
        raise CommandError(
            f"the root of interval {wrong[0]} in {directory / 'roots'} is not what the run wrote there, or the run is "
            "another job's: copy the directory again."
        )


class _Last:
    """Hears of every step: moves the bar, keeps the loss."""

    def __init__(self, bar: _Bar) -> None:
        self.bar = bar
        self.loss: float | None = None

    def __call__(self, event: StepEvent) -> None:
        self.loss = event.loss
        self.bar.done(event.step + 1, f"loss {event.loss:.4f}")


if TYPE_CHECKING:
    from tiebreak.cli.output import Steps as _Bar


def _show_audit(
    job: Job, result: AuditResult, has_claim: bool, agrees: bool | None, first_wrong: int | None, has_log: bool
) -> None:
    from tiebreak.cli import output

    facts: dict[str, object] = {"checkpoint root": result.checkpoint_root}
    if has_claim:
        facts["claim"] = "right: the same root" if agrees else "WRONG: another root"
    if first_wrong is not None:
        first = first_wrong * job.spec.interval
        facts["first wrong"] = (
            f"checkpoint {first_wrong + 1} of {job.spec.intervals}: steps {first} to {first + job.spec.interval - 1}"
        )
    if has_log:
        facts["log"] = f"{len(result.findings)} wrong entries" if result.findings else "no wrong entry found"
    if result.unreadable:
        facts["logs not used"] = f"{len(result.unreadable)}, in whole or in part; audited without"
    output.show_facts("Audited", facts)
    for text in result.unreadable[:_SHOWN_FINDINGS]:
        output.show_line(text)
    if result.findings:
        output.show_table(
            "Wrong entries of the log",
            ["step", "operator", "element", "kind", "what is wrong"],
            [
                [
                    finding.step,
                    job.program.describe(finding.operator),
                    finding.element,
                    finding.kind.value,
                    finding.message,
                ]
                for finding in result.findings[:_SHOWN_FINDINGS]
            ],
        )
    for kind, listed in (("findings", result.findings), ("logs not used", result.unreadable)):
        if len(listed) > _SHOWN_FINDINGS:
            output.show_line(f"... and {len(listed) - _SHOWN_FINDINGS} more {kind}; --json lists all of them.")
