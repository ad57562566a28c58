"""`tiebreak log inspect`: the contents of a rounding log, every byte checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.cli import output
from tiebreak.cli.failures import CommandError
from tiebreak.cli.option_groups import DEFAULT_MEMORY, JSON, argument, command, option

if TYPE_CHECKING:
    from roundlog.program import Program
    from roundlog.rounding import LogSummary


@command("log inspect")
def inspect(
    path: Path = argument("LOG", "A log file, or a directory of them."),
    job: Path | None = option("Directory of the job: names the operators and checks that the log is for it."),
    json: bool = JSON,
) -> None:
    """Check a rounding log and show what it holds."""
    from roundlog.rounding import summarise

    program, run_id = _program(job)
    files = sorted(path.glob("*.rlog")) if path.is_dir() else [path]
    if not files:
        raise CommandError(f"{path} holds no .rlog files: name the `log` directory of a trainer's run.")
    summaries = []
    with output.progress("reading", len(files)) as bar:
        for number, file in enumerate(files, 1):
            summary = summarise(file)
            if run_id is not None and summary.header.run_id != run_id:
                raise CommandError(f"{file} is the log of another job than {job}: name the job that it belongs to.")
            summaries.append(summary)
            bar.done(number)
    if json:
        output.show_json([_plain(summary, program) for summary in summaries])
        return
    output.show_table(
        "Log files",
        ["file", "steps", "bytes", "entries", "up", "down", "value"],
        [_row(summary) for summary in summaries],
    )
    totals: dict[int, int] = {}
    for summary in summaries:
        for step in summary.steps:
            for operator, counts in step.operators.items():
                totals[operator] = totals.get(operator, 0) + counts.total
    busiest = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:10]
    output.show_line("")
    output.show_table(
        "Operators with the most entries",
        ["operator", "entries"],
        [[_name(operator, program), count] for operator, count in busiest],
    )
    output.show_line("")
    output.show_facts("Log roots", {summary.path.name: summary.root for summary in summaries[:20]})


def _program(job: Path | None) -> tuple[Program | None, bytes | None]:
    if job is None:
        return None, None
    from tiebreak.cli.job_files import read_job
    from tiebreak.quantities import memory

    found = read_job(job, memory(DEFAULT_MEMORY))
    return found.program, found.spec.run_id


def _name(operator: int, program: Program | None) -> str:
    if program is not None and operator < len(program.nodes):
        return program.describe(operator)
    return f"operator {operator}"


def _row(summary: LogSummary) -> list[object]:
    counts = [step.counts for step in summary.steps]
    first = summary.header.first_step
    return [
        summary.path.name,
        f"{first}..{first + summary.header.steps - 1}",
        summary.bytes,
        sum(c.total for c in counts),
        sum(c.up for c in counts),
        sum(c.down for c in counts),
        sum(c.value for c in counts),
    ]


def _plain(summary: LogSummary, program: Program | None) -> dict[str, object]:
    header = summary.header
    return {
        "path": summary.path,
        "bytes": summary.bytes,
        "root": summary.root,
        "run_id": header.run_id,
        "program_root": header.program_root,
        "guard": header.guard,
        "first_step": header.first_step,
        "steps": [
            {
                "step": step.step,
                "offset": step.offset,
                "bytes": step.bytes,
                "payload_bytes": step.payload,
                "operators": [
                    {
                        "operator": operator,
                        **({"described": _name(operator, program)} if program is not None else {}),
                        "up": counts.up,
                        "down": counts.down,
                        "value": counts.value,
                    }
                    for operator, counts in step.operators.items()
                ],
            }
            for step in summary.steps
        ],
    }
