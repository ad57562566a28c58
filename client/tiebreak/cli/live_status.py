"""`tiebreak status --watch`: the summary on a full screen, with clocks that run, until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tiebreak.cli.account_summary import AccountSummary, Reader
from tiebreak.cli.summary_text import account_text, games_text, jobs_table
from tiebreak.cli.views import job_text
from tiebreak.quantities import in_utc
from tiebreak.rpc.chain_errors import ChainError, printable

_FRAME = 0.25
"""Seconds between two drawings; clocks are shown to the second."""


_MOST_WORDS = 300
"""Characters of an error: a longer one would push the clocks off the screen."""


class LiveScreen:
    """The page that is drawn: the newest summary, moved on by the time since it was read, or why it could not be."""

    def __init__(self, name: str, contract: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """name: of the node. clock: seconds."""
        self._title = f"{name}  {contract}"
        self._clock = clock
        self._summary: AccountSummary | None = None
        self._read_at = 0.0
        self._outage = ""

    def show(self, summary: AccountSummary) -> None:
        """Takes a summary that was just read."""
        self._summary, self._read_at, self._outage = summary, self._clock(), ""

    def fail(self, error: ChainError) -> None:
        """Takes an error; the last summary stays, with its age."""
        self._outage = printable(str(error))[:_MOST_WORDS]

    def __rich__(self) -> RenderableType:
        if self._summary is None:
            return Group(Text(printable(self._title), style="bold"), Text(self._outage or "reading ..."))
        age = int(self._clock() - self._read_at)
        # A screen has few lines: what is over stands at the end.
        jobs = tuple(sorted(self._summary.jobs, key=lambda job: not job.live))
        summary = replace(self._summary, now=self._summary.now + age, jobs=jobs)
        parts: list[RenderableType] = [
            Text(printable(self._title), style="bold"),
            Text(f"block {summary.block:,}  {in_utc(summary.now)} by the chain's clock  Ctrl-C ends", style="dim"),
        ]
        if self._outage:
            parts.append(Text(f"{self._outage} What follows was read {age} seconds ago.", style="yellow"))
        parts.append(Text(""))
        if summary.account is not None:
            parts += [account_text(summary), Text("")]
        if len(summary.jobs) == 1 and summary.account is None:
            parts += [job_text(summary.jobs[0].number, summary.jobs[0].view, summary.now), Text("")]
        parts.append(jobs_table(summary))
        for game in games_text(summary):
            parts += [Text(""), game]
        return Group(*parts)


def watch(reader: Reader, screen: LiveScreen, console: Console, poll: float) -> None:
    """Draws until it is interrupted; reads every `poll` seconds, and goes on through outages of the chain."""
    with Live(screen, console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        due = 0.0
        try:
            while True:
                if time.monotonic() >= due:
                    try:
                        screen.show(reader.read())
                    except ChainError as error:
                        screen.fail(error)
                    due = time.monotonic() + poll
                live.refresh()
                time.sleep(_FRAME)
        except KeyboardInterrupt:
            return
