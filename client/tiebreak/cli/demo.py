"""`tiebreak demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.failures import ANSWER_IS_NO, CommandError
from tiebreak.demo.report import USUAL, StoryName


def demo(
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what was found as JSON, too.")] = None,
    steps: Annotated[
        int, typer.Option(min=10, help="Training steps of the first three stories, a multiple of 5.")
    ] = 60,
    story: Annotated[
        list[StoryName] | None,
        typer.Option(metavar="NAME", help="Play only this one: honest, poisoned, alarms or operator. Repeatable."),
    ] = None,
) -> None:
    """Play three short stories on real data: an honest trainer, a poisoned batch, and false alarms.

    A fourth one, `--story operator`, takes minutes: everything that can be lied about in one step of a GPT and of a
    convolutional net, by a trainer and by a challenger, down to the one element that the contract computes.

    Needs no node, no network and no settings. Exit code 3 if a story does not end as it should.
    """
    if steps % 5:
        raise typer.BadParameter(f"{steps} is not a multiple of 5.", param_hint="--steps")
    if report is not None and (report.is_dir() or not report.parent.is_dir()):
        raise CommandError(f"the report {report} cannot be written: name a file in a directory that is there.")
    import json

    from rich.console import Console

    from tiebreak.demo.play import play

    found = play(Console(highlight=False), steps=steps, asked=tuple(dict.fromkeys(story or USUAL)))
    if report is not None:
        report.write_text(json.dumps(found.as_json(), indent=2) + "\n")
    if not found.ok:
        raise typer.Exit(ANSWER_IS_NO)
