"""The table of the story `operator`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tiebreak.demo.report import Dispute


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


_LEVELS = {
    "CHECKPOINT": "check",
    "STEP": "step",
    "OPERATOR": "oper",
    "CHUNK": "chunk",
    "PARTIAL": "part",
    "PROOF": "proof",
}
"""Headings of the columns with the gas of a level."""


def _cells(dispute: Dispute) -> list[str]:
    mark = "[green]✓[/]" if dispute.ended_as_it_should else "[bold red]✗[/]"
    place = dispute.found or dispute.told
    element = "" if place.element is None else f"[{place.element}]"
    gas = [_thousands(dispute.gas_by_level.get(level, 0)) for level in _LEVELS]
    where = escape(f"{dispute.op} {place.operator}{element}")
    return [mark, where, f"{dispute.rounds}", f"{dispute.transactions}", *gas, _thousands(dispute.gas), dispute.by]


def _thousands(gas: int) -> str:
    return f"{round(gas / 1000):,}" if gas else "-"
