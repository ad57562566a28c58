"""`tiebreak job ...`: what a customer posts and what everyone else looks at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli import options
from tiebreak.cli.failures import CommandError

if TYPE_CHECKING:
    from roundlog.job import Job

app = typer.Typer(no_args_is_help=True, help="Training jobs: make one, post it, look at it.")


@app.command()
def create(
    source: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="my_task.py:function that returns a roundlog.capture.Task, or an example (digits, gpt).",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory for the job's files; made, or empty.")],
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the function; repeatable.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Capture a training task and write it as a job: data that others can run without running your code."""
    from tiebreak.cli import output
    from tiebreak.cli.source import load_task

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CommandError(f"{out} is not an empty directory: choose another place for the job.")
    from roundlog.job import Job

    job = Job.from_task(load_task(source, setting or []))
    job.write(out)
    if json:
        output.show_json(_plain(job) | {"directory": out})
    else:
        output.show_facts(f"Job in {out}", _facts(job))


@app.command()
def show(
    job_directory: options.JobDirectory,
    max_memory: options.Memory = options.DEFAULT_MEMORY,  # type: ignore[assignment]  # parsed by typer
    json: options.Json = False,
) -> None:
    """Check a job and show what it asks for."""
    from tiebreak.cli import output
    from tiebreak.cli.training import read_job

    job = read_job(job_directory, max_memory)
    if json:
        output.show_json(_plain(job))
    else:
        output.show_facts(f"Job in {job_directory}", _facts(job))


def _plain(job: Job) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "spec": asdict(job.spec),
        "run_id": job.spec.run_id,
        "states": {name: str(kind) for name, kind in job.program.states.items()},
        "data": {name: str(kind) for name, kind in job.program.data.items()},
        "state_bytes": sum(kind.nbytes for kind in job.program.states.values()),
        "data_bytes": sum(tensor.nbytes for tensor in job.dataset.values()),
        "step_bytes": job.program.peak_bytes(),
    }


def _facts(job: Job) -> dict[str, object]:
    from tiebreak.cli.output import size

    spec = job.spec
    states = job.program.states
    return {
        "steps": f"{spec.steps}, a checkpoint every {spec.interval}",
        "data": f"{spec.data_rows} rows ({', '.join(job.dataset)}), {spec.batch_size} a step",
        "operators": f"{spec.operator_count} a step",
        "state": f"{spec.state_count} tensors, {size(sum(kind.nbytes for kind in states.values()))}",
        "memory": f"about {size(job.program.peak_bytes())} a step",
        "program root": spec.program_root,
        "initial state root": spec.initial_state_root,
        "data root": spec.data_root,
        "run id": spec.run_id,
    }
