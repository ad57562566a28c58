"""`tiebreak demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tiebreak import quantities
from tiebreak.cli.dashboard import DEFAULT_PORT
from tiebreak.cli.failures import ANSWER_IS_NO, CommandError, extra
from tiebreak.cli.option_groups import command, option

if TYPE_CHECKING:
    from tiebreak_demo.report import StoryName


@command("demo")
def demo(
    report: Path | None = option("Write what was found as JSON, too.", metavar="FILE"),
    steps: int = option("Training steps of the usual stories and `market`, a multiple of 5.", 60, min=10),
    story: list[str] | None = option(
        "Play only this one: honest, poisoned, alarms or market. Repeatable.", metavar="NAME"
    ),
    dashboard: bool = option(
        "Show it on a local web page meanwhile, and keep that open until Ctrl-C on a terminal.", False
    ),
    port: int = option("TCP port of the page of --dashboard; 0 for any.", DEFAULT_PORT, min=0, max=65535),
    pace: float | None = option(
        "Time from one move to the next, about; 2s is good to watch (default: as fast as 500ms).",
        metavar="TIME",
        parser=quantities.interval(0.1, 600),
    ),
) -> None:
    """Play three short stories on real data: an honest trainer, a poisoned batch, and false alarms.

    A fourth one, `--story market`, is about audits that are paid: what an honest, a lazy and a lying auditor gain where
    a claim is right, and where it is wrong.

    Needs no node, no network and no settings. Exit code 3 if a story does not end as it should.
    """
    if steps % 5:
        raise typer.BadParameter(f"{steps} is not a multiple of 5.", param_hint="--steps")
    if report is not None and (report.is_dir() or not report.parent.is_dir()):
        raise CommandError(f"the report {report} cannot be written: name a file in a directory that is there.")
    asked = _stories(story or [])
    import json

    from rich.console import Console
    from roundlog.storage import replace_file
    from tiebreak_demo.play import play
    from tiebreak_demo.scene import Page

    with extra("dashboard", "the page needs"):
        page = Page(port) if dashboard else None
    found = play(Console(highlight=False), steps=steps, asked=asked, pace=pace, page=page)
    if report is not None:
        with replace_file(report) as file:
            file.write((json.dumps(found.as_json(), indent=2) + "\n").encode())
    if not found.ok:
        raise typer.Exit(ANSWER_IS_NO)


def _stories(names: list[str]) -> tuple[StoryName, ...]:
    """Return the stories of these names, each once; the usual ones for none. Raises BadParameter."""
    from tiebreak_demo.report import USUAL, StoryName

    known = [str(one) for one in StoryName]
    if unknown := [name for name in names if name not in known]:
        listed = ", ".join(map(repr, known))
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {listed}.", param_hint="--story")
    return tuple(map(StoryName, dict.fromkeys(names))) or USUAL
