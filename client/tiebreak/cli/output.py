"""Results go to standard output, for people or (`--json`) for programs; progress and errors go to standard error."""

from __future__ import annotations

import json
import math
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tiebreak.quantities import in_ether, in_time, in_utc
from tiebreak.rpc.chain_errors import printable

if TYPE_CHECKING:
    from roundlog.training import StepEvent

COLUMNS = 80
"""Width of what is printed for people, which every terminal has."""

_UNBOUNDED = 1 << 20
"""Width in a file or a pipe, where nothing is folded."""

_LINES = threading.Lock()
"""Held while a line of JSON is printed."""

_SECONDS_BETWEEN_LINES = 10.0
"""Least time between lines of progress in a file or a pipe."""


def results() -> Console:
    """Return standard output; as wide as it takes where that is no terminal, since nothing there may be folded."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=1000)


@cache
def errors() -> Console:
    """Return standard error."""
    return Console(stderr=True, highlight=False)


def show_json(content: object) -> None:
    """Print indented JSON, for programs; bytes as 0x-hex, paths as text. Amounts in wei are strings, since they exceed
    what many JSON readers keep exactly."""
    print(json.dumps(content, indent=2, default=_plain))


def show_json_line(content: object) -> None:
    """Print one JSON object on a line, for programs that read while this one works. May be called from several
    threads."""
    with _LINES:  # `print` writes a line and its end one after the other
        print(json.dumps(content, default=_plain), flush=True)


def _plain(value: object) -> object:
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)


def show_result(
    as_json: bool, plain: Mapping[str, object], title: str, facts: Mapping[str, object] | None = None
) -> None:
    """Print the result of a command. facts: for people; None: those for programs, in words."""
    if as_json:
        show_json(plain)
    else:
        show_facts(title, in_words(plain) if facts is None else facts)


def in_words(plain: Mapping[str, object], before: str = "") -> dict[str, object]:
    """Return facts for programs as people read them: wei in ether, bytes as a size, deadlines as instants, lists by
    commas, what an object has under both names; and nothing that is empty. before: the names of objects around it."""
    found: dict[str, object] = {}
    for name, value in plain.items():
        words = f"{before}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            found |= in_words(value, f"{words} ")
        elif name.endswith("_wei"):
            found[words.removesuffix(" wei")] = in_ether(int(str(value)))
        elif name.endswith("_bytes") and isinstance(value, int):
            found[words.removesuffix(" bytes")] = size(value)
        elif "deadline" in words and isinstance(value, int):
            found |= {words: in_utc(value)} if value else {}
        elif value not in (None, "", [], ()):
            found[words] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return found


def show_facts(title: str, facts: Mapping[str, object]) -> None:
    """Print a title and aligned lines of name and value, for people. Values are never cut, to be copied."""
    text = facts_text(title, facts, COLUMNS if results().is_terminal else _UNBOUNDED)
    results().print(text, soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def facts_text(title: str, facts: Mapping[str, object], columns: int = COLUMNS) -> Text:
    """Return a title and aligned lines of name and value, `columns` wide where the values' words allow it. A value that
    does not fit beside its name stands below it; no word (a hash, an address) is ever cut, and None is left out."""
    facts = {name: value for name, value in facts.items() if value is not None}
    width = max(map(len, facts), default=0)
    text = Text(printable(title), style="bold")
    for name, value in facts.items():
        shown, indent = printable(str(_plain(value))), width + 4
        text.append(f"\n  {name:<{width}}", style="dim")
        lines = _wrapped(shown, columns - indent)
        if any(indent + len(line) > columns for line in lines):
            indent, lines = 4, ["", *_wrapped(shown, columns - 4)]
        first, *rest = lines
        text.append(f"  {first}" if first else "", style="default")
        text.append("".join(f"\n{' ' * indent}{line}" for line in rest), style="default")
    return text


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table, for people; columns whose values are all numbers are set flush right."""
    look = {"title_justify": "left", "title_style": "bold", "header_style": "dim"}
    table = Table(title=escape(printable(title)), box=None, pad_edge=False, **look)  # type: ignore[arg-type]
    for position, column in enumerate(columns):
        is_number = all(isinstance(row[position], int | float) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        # Nothing in a value is markup, and nothing controls the terminal.
        table.add_row(*(Text(f"{value:,}" if isinstance(value, int) else printable(str(value))) for value in row))
    results().print(table)


def show_line(text: str) -> None:
    """Print one line, never wrapped, for people."""
    results().print(escape(printable(text)), soft_wrap=True)


def warn(text: str) -> None:
    """Print one line on standard error, never wrapped, for people."""
    errors().print(escape(printable(text)), soft_wrap=True)


def flush() -> None:
    """Flush standard output, for a reader that works while this process goes on."""
    sys.stdout.flush()


class Steps:
    """Progress of a long work on standard error until `close`: a bar, or a line now and then where that is no
    terminal."""

    def __init__(self, name: str, total: int = 1, stages: int = 0) -> None:
        """stages: number of those that are told of, if any; on a terminal nothing of them stays."""
        self.name, self.total, self._stages = name, total, stages
        self._number, self._stage, self._first, self._line = 0, "", 0.0, ""
        self._start = self._began = time.monotonic()
        self._ended = threading.Event()
        self._bar = None
        if errors().is_terminal:
            columns = BarColumn(bar_width=12), TimeElapsedColumn(), TextColumn("{task.description}")
            # A redirected standard output would end where the bar is: on standard error.
            self._bar = Progress(*columns, console=errors(), transient=stages > 0, redirect_stdout=False)
            self._task = self._bar.add_task(escape(name), total=1.0)
            self._bar.start()
        else:
            threading.Thread(target=self._print, name="progress", daemon=True).start()

    def done(self, count: int, note: str = "") -> None:
        """Show that `count` of the total are done."""
        self.tell(self.name, count / max(self.total, 1), f"{count} of {self.total} {note}".rstrip())

    def tell(self, stage: str, share: float = 0.0, detail: str = "") -> None:
        """Show a stage, the share of it that is done, what is done there now, and the time that the rest of it takes
        at the pace so far."""
        now, left = time.monotonic(), ""
        if stage != self._stage:
            self._number, self._stage, self._first, self._began = self._number + 1, stage, share, now
        if now - self._began >= 2 and self._first < share < 1:
            seconds = int((now - self._began) * (1 - share) / (share - self._first)) + 1
            left = f"{in_time(seconds if seconds < 60 else seconds // 10 * 10)} left"
        head = f"{self._number}/{self._stages} {stage}" if self._stages else stage
        self._line = ", ".join(part for part in (head, detail, left) if part)
        if self._bar is not None:
            self._bar.update(self._task, completed=share, description=escape(self._line))

    def show_facts(self, title: str, facts: Mapping[str, object]) -> None:
        """Print facts above the bar, on standard error as well."""
        errors().print(facts_text(title, facts), soft_wrap=True)

    def _print(self) -> None:
        """Print lines, at longer and longer intervals where nothing new is told."""
        printed, pause = "", _SECONDS_BETWEEN_LINES
        while not self._ended.wait(pause):
            pause = _SECONDS_BETWEEN_LINES if printed != self._line else 2 * pause
            printed = self._line
            name, past = f"{self.name}: " * (self._stages > 0), in_time(int(time.monotonic() - self._start))
            errors().print(escape(f"{name}{printed}, {past} so far"), soft_wrap=True)

    def close(self) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()


def progress(name: str, total: int = 1, stages: int = 0) -> closing[Steps]:
    """Return the progress of one long part, for `with`."""
    return closing(Steps(name, total, stages))


def size(count: int) -> str:
    """Return a number of bytes for people: `1.4 MB`."""
    value: float = count
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


class Listener:
    """Listener to a run: says where it carries on, moves the bar, keeps the loss."""

    def __init__(self, bar: Steps, steps: int, also: Callable[[int], None] = lambda step: None) -> None:
        """also: called with every step that was executed."""
        self.bar, self._also = bar, also
        self.steps = steps
        self.loss: float | None = None
        self.validation: float | None = None
        self.resumed_from = 0
        """Steps that earlier processes have done."""

    def resumes(self, steps: int) -> None:
        """Say from where a resumed run carries on."""
        self.resumed_from = steps
        if steps == self.steps:
            warn(f"all {steps} steps were done already")
        elif steps:
            warn(f"carries on from step {steps} of {self.steps}")
        self.bar.done(steps)

    def validated(self, step: int, loss: float) -> None:
        """Keep the loss of a validation."""
        # JSON has no NaN.
        self.validation = loss if math.isfinite(loss) else None

    def __call__(self, event: StepEvent) -> None:
        self.loss = event.loss
        self._also(event.step)
        self.bar.done(event.step + 1, f"loss {event.loss:.4f}")
