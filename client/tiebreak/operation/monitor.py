"""The monitor of a role: hears its notices and looks, and judges what a person has to know. Its log file has every
notice and alert as a JSON object on a line, in files that are rotated."""

from __future__ import annotations

import errno
import json
import logging
import logging.handlers
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.operation.alarms import STUCK_SECONDS, Alarms, Alert, Cause, Probe, Situation, due_of, games_of
from tiebreak.operation.messenger import Messenger
from tiebreak.roles.context import RoleContext
from tiebreak.roles.notices import Look, Notice, Notify, What, ignore, plain, sentence
from tiebreak.rpc.chain_errors import ChainError, printable
from tiebreak.store import StoreError
from tiebreak.transactions.signer import funds

if TYPE_CHECKING:
    from tiebreak.operation.metrics import Metrics  # its library is an extra

FILE_BYTES = 10_000_000
"""Size at which a new file is begun."""

FILES = 10
"""Files that are kept, with the one that is written: 100 MB at most."""

_SECONDS_BETWEEN_STEPS = 60.0
"""Training steps are many: one in this time is put on record."""

TICK = 1.0

PROBE_SECONDS = 30.0
"""Seconds between two judgements, and between two questions for balance, store and disk."""

EMPTY_FILE = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
"""The CID of the empty file: a store is asked whether it has it, and any answer will do."""


class RotatingLog:
    """The file `path`, and `path.1` to `path.9` with what was before. Raises OSError if it cannot be opened; later, a
    disk that is full costs lines and never ends the role. Thread-safe."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        if path.is_fifo():
            raise OSError(errno.EINVAL, "it is a pipe, whose writer may wait for ever")
        self._handler = _Handler(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._clock = clock
        self._next: dict[object, float] = {}

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._handler.lost

    def write(self, entry: Mapping[str, object]) -> None:
        """Writes an object; of those about progress (`what` is `step` or `transfer`) only some."""
        if (what := entry.get("what")) in ("step", "transfer"):
            now = self._clock()
            if now < self._next.get(what, float("-inf")):
                return
            self._next[what] = now + _SECONDS_BETWEEN_STEPS
        line = logging.LogRecord("tiebreak", logging.INFO, "", 0, json.dumps(entry), None, None)
        self._handler.handle(line)

    def close(self) -> None:
        self._handler.close()


class _Handler(logging.handlers.RotatingFileHandler):
    lost = 0

    def handleError(self, record: logging.LogRecord) -> None:
        """Counts what is lost; the standard library would print a traceback for each line."""
        self.lost += 1


class RoleMonitor:
    """Watches one role. `tell`: shows notices, alerts too. `clock`: steady seconds; `today`: seconds since 1970.

    Its threads never wait for the role, nor the role for them."""

    def __init__(
        self,
        role: str,
        tell: Notify = ignore,
        *,
        messenger: Messenger | None = None,
        log: RotatingLog | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], float] = time.time,
        free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self._role, self._tell = role, tell
        self._messenger, self._log, self._metrics = messenger, log, metrics
        self._clock, self._today, self._free = clock, today, free
        self._alarms = Alarms()
        self._context: RoleContext | None = None
        self._lock = threading.Lock()
        self._now = Situation(at=clock(), started_at=clock())
        self._stop = threading.Event()
        self._attached = threading.Event()
        self._threads: list[threading.Thread] = []

    # Notices and looks of the role.

    def attach(self, context: RoleContext) -> None:
        """Takes the role's context, once chain and store could be reached."""
        self._context = context
        if self._metrics is not None:
            self._metrics.attach(context.address)
        self._attached.set()

    def notice(self, notice: Notice) -> None:
        """Shows, logs and counts a notice."""
        self._tell(notice)
        if self._log is not None:
            self._log.write(plain(notice))
        if self._metrics is not None:
            self._metrics.notice(notice)

    def look(self, look: Look) -> None:
        """Takes in a look of the role; called in the role's thread, and waits for nobody."""
        error = look.outage
        games, due, agreement = self._now.games, self._now.due, self._now.agreement
        head = None
        if self._context is not None:
            agreement = self._context.contract.node.agreement
            head = self._context.queue.watch.head
            if error is None:
                jobs, views = self._context.queue.watch.at_hand()
                now = self._context.now()
                games = games_of(jobs, views, self._context.address, now)
                due = due_of(look, games, now)
        chain_error = sentence(error) if isinstance(error, ChainError) else ""
        with self._lock:
            self._now = replace(
                self._now,
                looked_at=self._clock(),
                look=look,
                chain_error=printable(chain_error),
                games=games,
                due=due,
                agreement=agreement,
            )
        if self._metrics is not None:
            block, timestamp = (None, None) if head is None else (head.number, head.timestamp)
            self._metrics.looked(at=self._today(), reached=not chain_error, block=block, timestamp=timestamp)

    def unreachable(self, error: Exception) -> None:
        """Takes in that the role could not begin, because something could not be reached."""
        if isinstance(error, StoreError):
            with self._lock:
                probe = replace(self._now.probe, store_error=printable(str(error)))
                self._now = replace(self._now, looked_at=self._clock(), probe=probe)
        elif isinstance(error, ChainError):
            with self._lock:
                self._now = replace(self._now, looked_at=self._clock(), chain_error=printable(str(error)))

    def ended(self, why: str) -> None:
        """Calls a person because the role has ended by an error. why: a sentence."""
        # The command says it on standard error; of a role that never began there is nothing else to be told.
        self._call(Alert(cause=Cause.ROLE_ENDED, text=why.rstrip(".")), show=self._context is not None)

    # The monitor's own rounds.

    def start(self) -> None:
        """Begins to judge, and to probe once the role's context is there."""
        for seconds, work in ((TICK, self.tick), (PROBE_SECONDS, self._probe_in_time)):
            thread = threading.Thread(target=self._repeat, args=(seconds, work), name="monitor", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Ends, after the alerts that wait are delivered, or some seconds."""
        self._stop.set()
        self._attached.set()
        if self._messenger is not None:
            self._messenger.close()
        if self._log is not None:
            self._log.close()

    def tick(self) -> list[Alert]:
        """Judges the situation now, and sends the alerts that are due."""
        now = self.situation()
        alerts = self._alarms.judge(now)
        for alert in alerts:
            self._call(alert)
        if self._metrics is not None:
            self._metrics.show(now, self._alarms.active, self.lost)
        return alerts

    def probe(self) -> None:
        """Asks for the balance, the store and the disk. A question that hangs keeps only the next probe waiting."""
        context = self._context
        if context is None:
            return
        found = Probe(
            disk_free=self._disk(context.directory),
            store_error=self._store(context),
            balance=None,
            needed=None,
            reserve_missing=context.sender.reserve.missing,
        )
        try:
            games = max(1, len(self.situation().games))
            account = funds(context.contract.node, context.address, 0, games=games)
            found = replace(found, balance=account.balance, needed=account.needed)
        except ChainError:
            pass  # the role's looks tell of outages
        with self._lock:
            self._now = replace(self._now, probe=found)

    def _probe_in_time(self) -> None:
        self._attached.wait()
        self.probe()

    def situation(self) -> Situation:
        """The situation now."""
        with self._lock:
            return replace(self._now, at=self._clock(), late_ranks=self._late_ranks())

    def _late_ranks(self) -> str:
        helpers = None if self._context is None else self._context.engine.helpers
        return "" if helpers is None else printable(helpers.problem or "")

    @property
    def lost(self) -> int:
        """Alerts that did not arrive, and lines that could not be logged."""
        failed = 0 if self._messenger is None else self._messenger.failed
        return failed + (0 if self._log is None else self._log.lost)

    # Questions of programs.

    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether the role's loop runs: what a supervisor may restart it for."""
        now = self.situation()
        silent = now.at - (now.started_at if now.looked_at is None else now.looked_at)
        state = now.look.progress.state if now.look is not None else "not started"
        return silent < STUCK_SECONDS, {
            "role": self._role,
            "seconds_since_look": int(silent),
            "state": printable(state),
        }

    def ready(self) -> tuple[bool, dict[str, object]]:
        """Whether the role can do its work: chain and store answer. A restart would not help it."""
        now = self.situation()
        is_ready = now.chain_error == "" and not now.probe.store_error
        return is_ready, {"role": self._role, "chain": now.chain_error or "", "store": now.probe.store_error or ""}

    def _call(self, alert: Alert, *, show: bool = True) -> None:
        text = f"{'resolved: ' if alert.resolved else ''}{alert.cause.value}: {alert.text}"
        if show:
            notice = Notice(role=self._role, what=What.ALERT, text=text, job=alert.job, game=alert.game, at=alert.at)
            self.notice(notice)
        if self._metrics is not None and not alert.resolved:
            self._metrics.alert(alert.cause)
        if self._messenger is not None:
            account = "" if self._context is None else self._context.address
            message = {
                "role": self._role,
                "account": account,
                "cause": alert.cause.value,
                "resolved": alert.resolved,
                "text": printable(alert.text),
                "job": alert.job,
                "game": alert.game,
                "time": int(alert.at),
            }
            self._messenger.send(message)

    def _disk(self, directory: Path) -> int | None:
        try:
            return self._free(directory)
        except OSError:
            return None

    def _store(self, context: RoleContext) -> str:
        try:
            context.store.has(EMPTY_FILE)
        except (StoreError, OSError) as error:
            return printable(sentence(error))
        return ""

    def _repeat(self, seconds: float, work: Callable[[], object]) -> None:
        while not self._stop.is_set():
            try:
                work()
            except Exception as error:
                # A defect here must not silence the alarms for the rest of the month.
                text = f"the monitor has failed ({type(error).__name__}: {error})"
                self.notice(Notice(role=self._role, what=What.WARNING, text=printable(text)))
                self._stop.wait(60.0)
            self._stop.wait(seconds)
