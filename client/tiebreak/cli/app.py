"""`tiebreak`: the root command, and the modules that register its commands."""

from __future__ import annotations

import os
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from tiebreak.cli import (  # noqa: F401
    audits,
    chain,
    dashboard,
    demo,
    devnet,
    doctor,
    evaluations,
    generation,
    job_files,
    job_texts,
    jobs,
    model_files,
    posted_receipts,
    receipts,
    roles,
    serving,
    training,
)
from tiebreak.cli.option_groups import app
from tiebreak.cli.ranks import end_at_once


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiebreak {version_of('tiebreak')}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="TIEBREAK_DEBUG", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of every command. `debug` is read by OneSentenceErrors."""


def main() -> None:
    """Run the command of this process's command line."""
    # Read when the kernels' libraries are loaded: threads that wait should sleep, not spin, or two processes on a few
    # cores take several times as long. No influence on any result.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except SystemExit as end:
        end_at_once(end.code)
        raise


if __name__ == "__main__":
    main()
