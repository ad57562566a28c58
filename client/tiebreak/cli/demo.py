"""`tiebreak demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli.failures import ANSWER_IS_NO


def demo(
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write what was found as JSON, too.")] = None,
    steps: Annotated[int, typer.Option(min=10, help="Training steps, a multiple of 5.")] = 60,
) -> None:
    """Play three short stories on real data: an honest trainer, a poisoned batch, and false alarms.

    Needs no node, no network and no settings. Exit code 3 if a story does not end as it should.
    """
    if steps % 5:
        raise typer.BadParameter(f"{steps} is not a multiple of 5.", param_hint="--steps")
    import json

    from rich.console import Console

    from tiebreak.demo.play import play

    found = play(Console(highlight=False), steps=steps)
    if report is not None:
        report.write_text(json.dumps(found.as_json(), indent=2) + "\n")
    if not found.ok:
        raise typer.Exit(ANSWER_IS_NO)
