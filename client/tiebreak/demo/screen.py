"""What the demo shows while it plays: short lines that stay, and progress bars that go when their work is done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tiebreak.chain.errors import printable
from tiebreak.demo.report import Check, Report

_WHO = 16
"""Width of the column in which the speaker's name stands."""


class Screen:
    """One console for everything, so that lines and bars never get in each other's way."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def heading(self, text: str) -> None:
        self.console.print()
        self.console.print(f"[bold]{escape(text)}[/]", soft_wrap=True)

    def text(self, text: str) -> None:
        """A sentence, wrapped to the width of the terminal."""
        self.console.print(escape(text))

    def line(self, who: str, text: str, *, note: str = "", style: str = "default") -> None:
        """One thing that somebody did."""
        tail = f"  [dim]{escape(note)}[/]" if note else ""
        self.console.print(f"  [cyan]{who:<{_WHO}}[/][{style}]{escape(shortened(text))}[/]{tail}", soft_wrap=True)

    def meanwhile(self, text: str) -> None:
        """What nobody does."""
        self.console.print(f"  {'':<{_WHO}}[dim italic]{escape(text)}[/]", soft_wrap=True)

    def check(self, check: Check) -> None:
        if check.holds:
            self.console.print(f"  [green]✓[/] {escape(check.text)}", soft_wrap=True)
        else:
            self.console.print(
                f"  [bold red]✗ {escape(check.text)}[/]: expected {escape(str(check.expected))}, "
                f"found {escape(str(check.observed))}",
                soft_wrap=True,
            )

    @contextmanager
    def bars(self) -> Iterator[None]:
        """Within it, `bar` shows progress. Where nobody watches (a file, a pipe) nothing is shown."""
        columns = (
            TextColumn(f"  [cyan]{{task.fields[who]:<{_WHO}}}[/]{{task.description:<22}}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bars:
            self._bars, self._tasks = bars, {}
            try:
                yield
            finally:
                self._bars = None

    def bar(self, who: str, doing: str, done: int, total: int) -> None:
        """Moves the bar of one piece of work, which goes when it is done."""
        if self._bars is None:
            return
        name = f"{who}/{doing}"
        if done >= total:
            if (task := self._tasks.pop(name, None)) is not None:
                self._bars.remove_task(task)
        elif name not in self._tasks:
            self._tasks[name] = self._bars.add_task(doing, total=total, completed=done, who=who)
        else:
            self._bars.update(self._tasks[name], completed=done)

    def waiting(self, who: str, doing: str) -> None:
        """A bar for work that has begun but cannot tell how far it is; any `bar` of the same speaker replaces it."""
        if self._bars is not None and f"{who}/" not in self._tasks:
            self._tasks[f"{who}/"] = self._bars.add_task(doing, total=None, who=who)

    def stop_waiting(self, who: str) -> None:
        if self._bars is not None and (task := self._tasks.pop(f"{who}/", None)) is not None:
            self._bars.remove_task(task)

    def table(self, report: Report) -> None:
        """The end: one row a story."""
        self.console.print()
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for name in ("story", "root"):
            table.add_column(name)
        for name in ("rounds", "gas", "log"):
            table.add_column(name, justify="right")
        table.add_column("verdict")
        table.add_column("balances, in ether")
        for story in report.stories:
            mark = "[green]✓[/]" if story.ended_as_it_should else "[bold red]✗[/]"
            table.add_row(
                f"{mark} {escape(story.title)}",
                story.root.hex()[:8],
                str(story.rounds),
                f"{story.gas:,}",
                f"{story.log_bytes:,} B",
                escape(story.verdict),
                "\n".join(
                    f"{account.name:<15}{ether(account.moved):>6}" for account in story.accounts if account.moved
                ),
                end_section=True,
            )
            if story is not report.stories[-1]:
                table.add_row()
        self.console.print(table)
        self.console.print()


def shortened(text: str) -> str:
    """A text for one line: roots and content addresses are cut to their beginnings."""
    text = re.sub(r"\b([0-9]+) wei\b", lambda found: f"{ether(int(found[1]))[1:]} ether", text)
    text = re.sub(r"0x([0-9a-f]{8})[0-9a-f]{56}", r"\1…", printable(text))
    return re.sub(r"\b(Qm[1-9A-HJ-NP-Za-km-z]{6})[1-9A-HJ-NP-Za-km-z]{38}\b", r"\1…", text)


def ether(wei: int) -> str:
    """A change of a balance: `+1`, `-0.5`, exact."""
    whole, rest = divmod(abs(wei), 10**18)
    digits = f"{whole}.{rest:018d}".rstrip("0").rstrip(".")
    return f"{'-' if wei < 0 else '+'}{digits}"
