"""Options for the limits on what a role puts into new undertakings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from tiebreak.cli import quantities

_PANEL = "Taking part"


@dataclass(frozen=True, kw_only=True)
class SpendingLimits:
    """The most wei for new bonds and their gas. What was begun is never held back."""

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
