"""The demo's screen: short lines that stay, and progress bars that go when their work is done."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from tiebreak.rpc.chain_errors import printable

from tiebreak_demo.report import Check, Dispute, Report, Story

_WHO = 16
_DOING = 28
"""Widths of the columns for the speaker's name and for what is being done."""

_LEVELS = {
    "CHECKPOINT": "check",
    "STEP": "step",
    "OPERATOR": "oper",
    "CHUNK": "chunk",
    "PARTIAL": "part",
    "PROOF": "proof",
}
"""Headings of the columns with the gas of a level."""


class Screen:
    """The one console of lines and bars, so that they never get in each other's way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._quiet = False
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Show within the block only what is being done, in one common bar, and what is not as it should be: for
        stories that are many."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def heading(self, text: str) -> None:
        """Show the title of what follows."""
        self._print(f"\n[bold]{escape(text)}[/]")

    def text(self, text: str) -> None:
        """Show a sentence, wrapped to the width of the terminal."""
        self._console.print(escape(text))

    def line(self, who: str, text: str, *, note: str = "", is_move: bool = False) -> None:
        """Show an act of a party; moves of games are many, and are dimmed."""
        if self._quiet:
            self._show("now", who, shortened(text))
            return
        style = "dim" if is_move else "default"
        tail = f"  [dim]{escape(note)}[/]" if note else ""
        self._print(f"  [cyan]{who:<{_WHO}}[/][{style}]{escape(shortened(text))}[/]{tail}")

    def meanwhile(self, text: str) -> None:
        """Show an event that no party causes, such as the passing of time."""
        if not self._quiet:
            self._print(f"  {'':<{_WHO}}[dim italic]{escape(text)}[/]")

    def check(self, check: Check) -> None:
        """Show an expectation and, if it does not hold, what was found."""
        if not check.holds:
            found = escape(f"expected {check.expected}, found {check.observed}")
            self._print(f"  {_mark(False)} [bold red]{escape(check.text)}[/]: {found}")
        elif not self._quiet:
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
        name = "now" if self._quiet else f"{who}/{'' if total is None else doing}"
        if total is not None and done >= total:
            self.end_bars(name)
        else:
            self._show(name, who, doing, done, total)

    def end_bars(self, name: str) -> None:
        """Remove the bars of a party, which does something else now."""
        if self._bars is not None and not self._quiet:
            for task in [task for task in self._tasks if task == name or task.startswith(f"{name}/")]:
                self._bars.remove_task(self._tasks.pop(task))

    def _show(self, name: str, who: str, doing: str, done: int = 0, total: int | None = None) -> None:
        if self._bars is None:
            return
        shown = doing if len(doing) <= _DOING else f"{doing[: _DOING - 1]}…"
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task("", who="", count="")
        count = "" if total is None else f"{done}/{total}"
        self._bars.update(self._tasks[name], description=shown, completed=done, total=total, who=who, count=count)

    def dispute(self, dispute: Dispute) -> None:
        """Show a game in two lines: the lie and the winner, then the place where it ended."""
        won = f"the {dispute.winner} wins by {dispute.by}, after {dispute.rounds} moves"
        place = dispute.found or dispute.told
        names = ", ".join(filter(None, (dispute.op, dispute.source, dispute.slot)))
        element = "" if place.element is None else f", element {place.element}"
        segment = "" if dispute.segment is None else f", segment {dispute.segment} of its sum"
        self._print(f"  {_mark(dispute.ended_as_it_should)} {escape(dispute.lie)}: {won}")
        where = f"step {place.step}, operator {place.operator} ({names}){element}{segment}"
        self._print(f"    [dim]{escape(where)}[/]")

    def table(self, report: Report) -> None:
        """Show the end: all figures."""
        if report.stories:
            self._print(f"\n  [dim]{_row('story', 'root', 'rounds', 'gas', 'log, bytes', 'verdict')}[/]")
        for story in report.stories:
            self._story(story)
        if report.disputes:
            _disputes_table(self._console, report.disputes)
        if report.contrast is not None:
            hashes = " and ".join(f"{value[:8]} on {name}" for name, value in report.contrast.trained.items())
            self._print(f"\nPlain PyTorch trains to {hashes}.")
        if report.ok:
            self._print(f"[green]Everything went as it should[/], in {report.seconds:.0f} seconds.")
        else:
            self._print("[bold red]Not everything went as it should[/]: see the lines marked with ✗.")

    def _story(self, story: Story) -> None:
        """Show a row of the table, with gains and losses below it."""
        numbers = (f"{story.rounds}", f"{story.gas:,}", f"{story.log_bytes:,}")
        row = _row(story.title, story.root.hex()[:8], *numbers, story.verdict)
        self._print(f"{_mark(story.ended_as_it_should)} [default]{escape(row)}[/]")
        changes = [f"{account.name} {ether(account.moved)}" for account in story.accounts if account.moved]
        self._print(f"  [dim]{', '.join(changes)} ether[/]")

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
    whole, rest = divmod(abs(wei), 10**18)
    digits = f"{whole}.{rest:018d}".rstrip("0").rstrip(".")
    return f"{'-' if wei < 0 else '+'}{digits}"


def _disputes_table(console: Console, disputes: Sequence[Dispute]) -> None:
    """Print a row a game: its subject, its end, and its gas by level, in thousands."""
    for (training, liar), games in groupby(disputes, key=lambda dispute: (dispute.training, dispute.liar)):
        console.print()
        table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 1), title_justify="left", title_style="bold")
        table.title = escape(f"{training}: the {liar} lies")
        table.add_column("", no_wrap=True)
        table.add_column("operator", style="default", header_style="dim", overflow="fold")
        for name in ("moves", "txs", *_LEVELS.values(), "all"):
            table.add_column(name, justify="right", header_style="dim", no_wrap=True)
        table.add_column("won by", header_style="dim", no_wrap=True)
        for dispute in games:
            place = dispute.found or dispute.told
            element = "" if place.element is None else f"[{place.element}]"
            where = escape(f"{dispute.op} {place.operator}{element}")
            gas = [dispute.gas_by_level.get(level, 0) for level in _LEVELS] + [dispute.gas]
            thousands = [f"{round(one / 1000):,}" if one else "-" for one in gas]
            moves = f"{dispute.rounds}", f"{dispute.transactions}"
            table.add_row(_mark(dispute.ended_as_it_should), where, *moves, *thousands, dispute.by)
        console.print(table)
    console.print("[dim]Gas in thousands, by the level of a move; all: with job, claim and payments.[/]")
