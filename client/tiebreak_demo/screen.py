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

from tiebreak_demo.report import Check, Dispute, Report

_WHO = 16
_DOING = 28
"""Widths of the columns for the speaker's name and for what is being done."""

_NOW = "now/"

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
        self.console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def heading(self, text: str) -> None:
        self.console.print()
        self.console.print(f"[bold]{escape(text)}[/]", soft_wrap=True)

    def text(self, text: str) -> None:
        """A sentence, wrapped to the width of the terminal."""
        self.console.print(escape(text))

    def line(self, who: str, text: str, *, note: str = "", is_move: bool = False) -> None:
        """Shows an act of a party; moves of games are many, and are dimmed."""
        style = "dim" if is_move else "default"
        tail = f"  [dim]{escape(note)}[/]" if note else ""
        self.console.print(f"  [cyan]{who:<{_WHO}}[/][{style}]{escape(shortened(text))}[/]{tail}", soft_wrap=True)

    def meanwhile(self, text: str) -> None:
        """Shows an event that no party causes, such as the passing of time."""
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
        """A block within which `bar` shows progress, on a terminal only."""
        columns = (
            TextColumn(f"  [cyan]{{task.fields[who]:<{_WHO}}}[/]{{task.description:<{_DOING}}} "),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[count]:>7}"),
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
        doing = _fitting(doing)
        if done >= total:
            if (task := self._tasks.pop(name, None)) is not None:
                self._bars.remove_task(task)
        elif name not in self._tasks:
            self._tasks[name] = self._bars.add_task(
                doing, total=total, completed=done, who=who, count=f"{done}/{total}"
            )
        else:
            self._bars.update(self._tasks[name], completed=done, count=f"{done}/{total}")

    def waiting(self, who: str, doing: str) -> None:
        """A bar for work that has begun but cannot tell how far it is, until `end_bars`."""
        if self._bars is not None and f"{who}/" not in self._tasks:
            self._tasks[f"{who}/"] = self._bars.add_task(doing, total=None, who=who, count="")

    def now(self, who: str, doing: str) -> None:
        """Shows the last act of any party in one common bar."""
        if self._bars is None:
            return
        if _NOW not in self._tasks:
            self._tasks[_NOW] = self._bars.add_task("", total=None, who="", count="")
        self._bars.update(self._tasks[_NOW], who=who, description=_fitting(doing))

    def end_bars(self, who: str) -> None:
        """Removes the bars of a party, which does something else now."""
        for name in [name for name in self._tasks if name.startswith(f"{who}/")]:
            task = self._tasks.pop(name)
            if self._bars is not None:
                self._bars.remove_task(task)

    def dispute(self, dispute: Dispute) -> None:
        """Shows a game in two lines: the lie and the winner, then the place where it ended."""
        mark = "[green]✓[/]" if dispute.ended_as_it_should else "[bold red]✗[/]"
        won = f"the {dispute.winner} wins by {dispute.by}, after {dispute.rounds} moves"
        self.console.print(f"  {mark} {escape(dispute.lie)}: {won}", soft_wrap=True)
        self.console.print(f"    [dim]{escape(_where(dispute))}[/]", soft_wrap=True)

    def table(self, report: Report) -> None:
        """The end: all figures."""
        if report.stories:
            self._stories(report)
        if report.disputes:
            disputes_table(self.console, report.disputes)
        if report.contrast is not None:
            hashes = " and ".join(f"{value[:8]} on {name}" for name, value in report.contrast.trained.items())
            self.console.print(f"\nPlain PyTorch trains to {hashes}.", soft_wrap=True)
        if report.ok:
            self.console.print(f"[green]Everything went as it should[/], in {report.seconds:.0f} seconds.")
        else:
            self.console.print("[bold red]Not everything went as it should[/]: see the lines marked with ✗.")

    def _stories(self, report: Report) -> None:
        """Shows the table: a row a story, with gains and losses below it."""
        self.console.print()
        self._row("story", "root", "rounds", "gas", "log, bytes", "verdict", style="dim")
        for story in report.stories:
            mark = "[green]✓[/]" if story.ended_as_it_should else "[bold red]✗[/]"
            numbers = (f"{story.rounds}", f"{story.gas:,}", f"{story.log_bytes:,}")
            self._row(story.title, story.root.hex()[:8], *numbers, story.verdict, mark=mark)
            changes = [f"{account.name} {ether(account.moved)}" for account in story.accounts if account.moved]
            self.console.print(f"  [dim]{', '.join(changes)} ether[/]", soft_wrap=True)

    def _row(
        self,
        story: str,
        root: str,
        rounds: str,
        gas: str,
        log: str,
        verdict: str,
        *,
        mark: str = " ",
        style: str = "default",
    ) -> None:
        cells = f"{story:<28}{root:<10}{rounds:>6}{gas:>11}{log:>12}  {verdict}"
        self.console.print(f"{mark} [{style}]{escape(cells)}[/]", soft_wrap=True)


class QuietScreen(Screen):
    """Shows of a story only what is being done, and what is not as it should be: for stories that are many."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen.console)
        self._screen = screen

    def line(self, who: str, text: str, *, note: str = "", is_move: bool = False) -> None:
        self._screen.now(who, shortened(text))

    def bar(self, who: str, doing: str, done: int, total: int) -> None:
        self._screen.now(who, doing)

    def end_bars(self, who: str) -> None:
        pass

    def check(self, check: Check) -> None:
        if not check.holds:
            super().check(check)


def _fitting(text: str) -> str:
    return text if len(text) <= _DOING else f"{text[: _DOING - 1]}…"


def _where(dispute: Dispute) -> str:
    place = dispute.found or dispute.told
    names = (dispute.op, dispute.source, dispute.slot)
    element = "" if place.element is None else f", element {place.element}"
    segment = "" if dispute.segment is None else f", segment {dispute.segment} of its sum"
    return f"step {place.step}, operator {place.operator} ({', '.join(filter(None, names))}){element}{segment}"


def shortened(text: str) -> str:
    """A text for one line: roots and content addresses are cut to their beginnings."""
    text = re.sub(r"\b([0-9]+) wei\b", lambda found: f"{ether(int(found[1]))[1:]} ether", text)
    text = re.sub(r"0x([0-9a-f]{8})[0-9a-f]{56}", r"\1…", printable(text))
    return re.sub(r"\b(baf[a-z2-7]{9})[a-z2-7]{47}\b", r"\1…", text)


def ether(wei: int) -> str:
    """A change of a balance: `+1`, `-0.5`, exact."""
    whole, rest = divmod(abs(wei), 10**18)
    digits = f"{whole}.{rest:018d}".rstrip("0").rstrip(".")
    return f"{'-' if wei < 0 else '+'}{digits}"


def disputes_table(console: Console, disputes: Sequence[Dispute]) -> None:
    """Prints a row a game: its subject, its end, and its gas by level, in thousands."""
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
            table.add_row(*_cells(dispute))
        console.print(table)
    console.print("[dim]Gas in thousands, by the level of a move; all: with job, claim and payments.[/]")


def _cells(dispute: Dispute) -> list[str]:
    mark = "[green]✓[/]" if dispute.ended_as_it_should else "[bold red]✗[/]"
    place = dispute.found or dispute.told
    element = "" if place.element is None else f"[{place.element}]"
    gas = [_thousands(dispute.gas_by_level.get(level, 0)) for level in _LEVELS]
    where = escape(f"{dispute.op} {place.operator}{element}")
    return [mark, where, f"{dispute.rounds}", f"{dispute.transactions}", *gas, _thousands(dispute.gas), dispute.by]


def _thousands(gas: int) -> str:
    return f"{round(gas / 1000):,}" if gas else "-"
