"""`tiebreak`: the root command and its subcommands."""

from __future__ import annotations

import os
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from tiebreak.cli import (
    chain,
    dashboard,
    demo,
    devnet,
    doctor,
    generation,
    generation_jobs,
    jobs,
    logs,
    model_files,
    models,
    plot,
    receipts,
    roles,
    serving,
    training,
)
from tiebreak.cli.failures import OneSentenceErrors
from tiebreak.cli.ranks import end_at_once

app = typer.Typer(
    cls=OneSentenceErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Hold the trainer of your model to account: bit-exact audits of training, disputes settled on a chain.",
)


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


app.command()(demo.demo)
training.register(app)
models.register(app)
receipts.register(app)
generation.register(app)
generation_jobs.register(jobs.app)
serving.register(app)
plot.register(app)
chain.register(app)
devnet.register(app)
doctor.register(app)
dashboard.register(app)
app.add_typer(jobs.app, name="job")
app.add_typer(model_files.app, name="model")
app.add_typer(roles.trainer, name="trainer")
app.add_typer(roles.auditor, name="auditor")
app.add_typer(roles.referee, name="referee")
app.add_typer(logs.app, name="log")
app.add_typer(chain.accounts, name="account")


def main() -> None:
    """The entry point of the command."""
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
