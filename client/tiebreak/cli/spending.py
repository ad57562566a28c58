"""Options for the limits on what a role puts into new undertakings, and on what jobs take of its disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from tiebreak import quantities

_PANEL = "Taking part"


@dataclass(frozen=True, kw_only=True)
class SpendingLimits:
    """The most wei for new bonds and their gas, and the most bytes for jobs. What was begun is never held back."""

    spend_per_day: Annotated[
        int | None,
        typer.Option(
            parser=quantities.wei,
            envvar="TIEBREAK_SPEND_PER_DAY",
            metavar="AMOUNT",
            help="Most for new bonds and their gas in any 24 hours, e.g. 2ether. What was begun goes on.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    spend_per_job: Annotated[
        int | None,
        typer.Option(
            parser=quantities.wei,
            envvar="TIEBREAK_SPEND_PER_JOB",
            metavar="AMOUNT",
            help="Most for new bonds and their gas in one job.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    most_disk: Annotated[
        int | None,
        typer.Option(
            parser=quantities.size,
            envvar="TIEBREAK_MOST_DISK",
            metavar="SIZE",
            help="Most for the files of all jobs together, e.g. 200GiB; those of jobs that the role has left go first, "
            "and a job with a bond at stake takes what it needs (default: half of the disk).",
            rich_help_panel=_PANEL,
        ),
    ] = None
