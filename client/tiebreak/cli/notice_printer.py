"""Notices of a role as output: lines for people, JSON lines for programs, a progress bar for long work."""

from __future__ import annotations

import threading

from rich.markup import escape

from tiebreak.cli import output
from tiebreak.roles.notices import Notice, What, plain, time_of
from tiebreak.rpc.chain_errors import printable

_STYLES = {What.SENT: "green", What.WARNING: "yellow", What.ALERT: "bold red", What.HEARTBEAT: "dim"}


class NoticePrinter:
    """Printer of notices. A context gets its `show`, which may be called from several threads; leaving the `with` block
    ends the last progress bar."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._bar: output.Steps | None = None
        self._doing = ""
        self._lock = threading.RLock()

    def show(self, notice: Notice) -> None:
        """Show one notice."""
        if self._as_json:
            output.show_json_line(plain(notice))
            return
        with self._lock:
            self._print(notice)

    def _print(self, notice: Notice) -> None:
        if notice.what in (What.STEP, What.TRANSFER):
            self._step(notice)
            return
        self._end_bar()
        about = " ".join(
            f"{name} {value}" for name, value in (("job", notice.job), ("game", notice.game)) if value is not None
        )
        gas = f" [dim]({notice.receipt.gas_used:,} gas)[/]" if notice.receipt is not None else ""
        style = _STYLES.get(notice.what, "default")
        head = f"[dim]{time_of(notice)} {notice.role} {about}[/]"
        text = f"[{style}]{escape(printable(notice.text))}[/]"
        output.results().print(f"{head}  {text}{gas}", soft_wrap=True)
        output.flush()

    def _step(self, notice: Notice) -> None:
        name = f"{notice.role}: {printable(notice.text)}"
        done, total, note = notice.done, notice.total, ""
        if notice.what is What.TRANSFER:
            unit, size = ("MB", 10**6) if total >= 10**7 else ("kB", 10**3)
            name, done, total = f"{name}, {unit}", done // size, total // size
        elif notice.loss is not None:
            note = f"loss {notice.loss:.4f}"
        if self._bar is None or self._doing != name:
            self._end_bar()
            self._bar = output.Steps(name, total)
            self._doing = name
        self._bar.done(done, note)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> NoticePrinter:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_bar()
