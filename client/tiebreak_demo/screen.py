"""The demo's screen: short lines that stay, and progress bars that go when their work is done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from tiebreak.quantities import exact_ether
from tiebreak.rpc.chain_errors import printable

from tiebreak_demo.report import Check, Report, hold

_WHO = 16
_DOING = 28
"""Widths of the columns for the speaker's name and for what is being done."""


class Screen:
    """The one console of lines and bars, so that they never get in each other's way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def heading(self, text: str) -> None:
        """Show the title of what follows."""
        self._print(f"\n[bold]{escape(text)}[/]")

    def text(self, text: str) -> None:
        """Show a sentence, wrapped to the width of the terminal."""
        self._console.print(escape(text))

    def line(self, who: str, text: str, *, note: str = "", is_move: bool = False) -> None:
        """Show an act of a party; moves of games are many, and are dimmed."""
        style = "dim" if is_move else "default"
        tail = f"  [dim]{escape(note)}[/]" if note else ""
        self._print(f"  [cyan]{who:<{_WHO}}[/][{style}]{escape(shortened(text))}[/]{tail}")

    def meanwhile(self, text: str) -> None:
        """Show an event that no party causes, such as the passing of time."""
        self._print(f"  {'':<{_WHO}}[dim italic]{escape(text)}[/]")

    def check(self, check: Check) -> None:
        """Show an expectation and, if it does not hold, what was found."""
        if not check.holds:
            found = escape(f"expected {check.expected}, found {check.observed}")
            self._print(f"  {_mark(False)} [bold red]{escape(check.text)}[/]: {found}")
        else:
            self._print(f"  {_mark(True)} {escape(check.text)}")

    @contextmanager
    def bars(self) -> Iterator[None]:
        """Show bars within the block, on a terminal only."""
        columns = (
            TextColumn(f"  [cyan]{{task.fields[who]:<{_WHO}}}[/]{{task.description:<{_DOING}}} "),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[count]:>7}"),
            TimeElapsedColumn(),
        )
        terminal = self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=not terminal) as bars:
            self._bars, self._tasks = bars, {}
            try:
                yield
            finally:
                self._bars = None

    def bar(self, who: str, doing: str, done: int = 0, total: int | None = None) -> None:
        """Move the bar of a party's work, which goes when it is done. total: None for work that cannot tell how far it
        is, whose bar goes with `end_bars`."""
        name = f"{who}/{'' if total is None else doing}"
        if total is not None and done >= total:
            self.end_bars(name)
        elif self._bars is not None:
            shown = doing if len(doing) <= _DOING else f"{doing[: _DOING - 1]}…"
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task("", who="", count="")
            count = "" if total is None else f"{done}/{total}"
            self._bars.update(self._tasks[name], description=shown, completed=done, total=total, who=who, count=count)

    def end_bars(self, name: str) -> None:
        """Remove the bars of a party, which does something else now."""
        if self._bars is not None:
            for task in [task for task in self._tasks if task == name or task.startswith(f"{name}/")]:
                self._bars.remove_task(self._tasks.pop(task))

    def table(self, report: Report) -> None:
        """Show the end: all figures, each story's with gains and losses below it."""
        if report.stories:
            self._print(f"\n  [dim]{_row('story', 'root', 'rounds', 'gas', 'log, bytes', 'verdict')}[/]")
        for story in report.stories:
            numbers = (f"{story.rounds}", f"{story.gas:,}", f"{story.log_bytes:,}")
            row = _row(story.title, story.root.hex()[:8], *numbers, story.verdict)
            self._print(f"{_mark(hold(story.checks))} [default]{escape(row)}[/]")
            changes = [f"{account.name} {ether(account.moved)}" for account in story.accounts if account.moved]
            self._print(f"  [dim]{', '.join(changes)} ether[/]")
        if report.contrast is not None:
            hashes = " and ".join(f"{value[:8]} on {name}" for name, value in report.contrast.trained.items())
            self._print(f"\nPlain PyTorch trains to {hashes}.")
        if report.ok:
            self._print(f"[green]Everything went as it should[/], in {report.seconds:.0f} seconds.")
        else:
            self._print("[bold red]Not everything went as it should[/]: see the lines marked with ✗.")

    def _print(self, text: str) -> None:
        """Print text with markup, in lines as long as they are."""
        self._console.print(text, soft_wrap=True)


def _mark(ok: bool) -> str:
    return "[green]✓[/]" if ok else "[bold red]✗[/]"


def _row(story: str, root: str, rounds: str, gas: str, log: str, verdict: str) -> str:
    return f"{story:<28}{root:<10}{rounds:>6}{gas:>11}{log:>12}  {verdict}"


def shortened(text: str) -> str:
    """Return a text for one line: roots and content addresses are cut to their beginnings."""
    text = re.sub(r"\b([0-9]+) wei\b", lambda found: f"{ether(int(found[1]))[1:]} ether", text)
    text = re.sub(r"0x([0-9a-f]{8})[0-9a-f]{56}", r"\1…", printable(text))
    return re.sub(r"\b(baf[a-z2-7]{9})[a-z2-7]{47}\b", r"\1…", text)


def ether(wei: int) -> str:
    """Return a change of a balance: `+1`, `-0.5`, exact."""
    return ("" if wei < 0 else "+") + exact_ether(wei).removesuffix(" ether")
