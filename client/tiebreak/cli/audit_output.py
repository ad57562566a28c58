"""The verdict of `tiebreak audit` on a claim and a log, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.cli import output
from tiebreak.cli.output import size

if TYPE_CHECKING:
    from roundlog.training import Job, Verdict

_SHOWN_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class States:
    """The states in a claimed run directory, held against the claim."""

    has_final: bool
    wrong: list[str]
    """One sentence for each file that is not the claimed state."""


def claimed_states(directory: Path, job: Job, roots: Sequence[bytes]) -> States:
    """Check every state in a run directory against the state roots that it claims, one an interval."""
    from roundlog.training import checkpoint_path, wrong_checkpoints

    wrong = [
        f"{path} is not the claimed state: {why}; copy the file again, or run `tiebreak train` in {directory}, which "
        "mends it"
        for path, why in wrong_checkpoints(directory, job, roots)
    ]
    return States(checkpoint_path(directory, job.spec.steps).exists(), wrong)


def has_failure(verdict: Verdict, states: States | None) -> bool:
    """Return whether something that was given is not right."""
    from roundlog.training import LogStanding

    if states is not None and states.wrong:
        return True
    return verdict.right is False or verdict.log in (LogStanding.WRONG, LogStanding.UNUSABLE)


def plain_verdict(job: Job, verdict: Verdict, states: States | None) -> dict[str, object]:
    """Return the verdict for programs."""
    return {
        "checkpoint_root": verdict.checkpoint_root,
        "final_state_root": verdict.state_roots[-1],
        "agrees": verdict.right,
        "first_wrong_interval": verdict.first_wrong,
        "log": verdict.log.value,
        "findings": [
            {
                "step": finding.step,
                "operator": finding.operator,
                "described": job.program.describe(finding.operator),
                "element": finding.element,
                "kind": finding.kind.value,
                "message": finding.message,
            }
            for finding in verdict.findings
        ],
        "unreadable": verdict.unreadable,
        "has_final_state": states.has_final if states is not None else None,
        "wrong_states": states.wrong if states is not None else [],
    }


def show_verdict(
    job: Job, verdict: Verdict, states: States | None, *, fetched: int | None, has_claim: bool, share: float
) -> None:
    """Print the verdict for people. fetched: as of `about_data`. share: of the log's decisions that were to be
    verified."""
    unread, wrong, first = len(verdict.unreadable), verdict.first_wrong, ""
    if wrong is not None:
        steps = range(wrong * job.spec.interval, (wrong + 1) * job.spec.interval)
        first = f"checkpoint {wrong + 1} of {job.spec.intervals}: steps {steps[0]} to {steps[-1]}"
    facts = {
        "checkpoint root": verdict.checkpoint_root,
        "final state root": verdict.state_roots[-1],
        **about_data(job, fetched),
        "claim": _claim(verdict) if has_claim else None,
        "first wrong": first or None,
        "claimed states": about_states(states) if states is not None else None,
        "log": _log(verdict, share),
        "logs not used": f"{unread}, in whole or in part; audited without: to check them, copy them again and audit in "
        "an empty directory"
        if unread
        else None,
    }
    output.show_facts("Audited", facts)
    for text in [*(states.wrong if states is not None else []), *verdict.unreadable][:_SHOWN_FINDINGS]:
        output.show_line(text)
    if verdict.findings:
        rows = [
            [one.step, job.program.describe(one.operator), one.element, one.kind.value, one.message]
            for one in verdict.findings[:_SHOWN_FINDINGS]
        ]
        output.show_table("Wrong entries of the log", ["step", "operator", "element", "kind", "what is wrong"], rows)
    for kind, listed in (("findings", verdict.findings), ("logs not used", verdict.unreadable)):
        if len(listed) > _SHOWN_FINDINGS:
            output.show_line(f"... and {len(listed) - _SHOWN_FINDINGS} more {kind}; --json lists all of them.")


def _claim(verdict: Verdict) -> str:
    from roundlog.training import LogStanding

    if verdict.right is None:
        return "undecided: under this job's rounding policy the log decides, and this one cannot be used in whole"
    if not verdict.right:
        return "WRONG: another root"
    if verdict.log is LogStanding.SAMPLED:
        return "the same root, if the part of the log that was not verified is right"
    return "right: the same root"


def about_states(states: States) -> str:
    """Return the verdict on the states of a claimed run, in one clause."""
    if states.wrong:
        return f"WRONG: {len(states.wrong)} files are not the states that are claimed"
    if not states.has_final:
        return "the final state is not there, so that only its root was compared"
    return "right: every state that is there, and the final one, has the claimed root"


def _log(verdict: Verdict, share: float) -> str | None:
    """Return the worth of the log, in one clause; None if there was none."""
    from roundlog.training import LogStanding

    match verdict.log:
        case LogStanding.NOT_GIVEN:
            return None
        case LogStanding.RIGHT:
            return "right: no wrong entry, and none is missing"
        case LogStanding.SAMPLED:
            return f"no wrong entry found in a sample of {100 * share:g} %; the rest was believed"
        case LogStanding.WRONG:
            return f"WRONG: {len(verdict.findings)} wrong entries; nothing else was concluded from them"
        case LogStanding.UNUSABLE:
            return "DAMAGED or absent, in whole or in part: it says nothing"


def about_data(job: Job, count: int | None) -> dict[str, object]:
    """Return the fact for people that `count` bytes of a job's data were fetched; None: they lie in its directory."""
    if count is None:
        return {}
    whole = sum(field.nbytes for field in job.dataset.values())
    return {"data fetched": f"{size(count)} of {size(whole)}"}
