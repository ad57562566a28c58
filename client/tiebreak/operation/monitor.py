"""The monitor of a role: hears its notices and looks, and judges what a person has to know. Its log file has every
notice and alert as a JSON object on a line, in files that are rotated."""

from __future__ import annotations

import errno
import json
import logging.handlers
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebreak.operation.alarms import STUCK_SECONDS, Alarms, Alert, Cause, Situation, due_of, games_of
from tiebreak.operation.messenger import Messenger
from tiebreak.roles.context import RoleContext
from tiebreak.roles.notices import Look, Notice, Notify, Progress, What, ignore, plain, sentence
from tiebreak.rpc.chain_errors import ChainError, printable
from tiebreak.store import StoreError
from tiebreak.transactions.signer import funds

if TYPE_CHECKING:
    from tiebreak.operation.metrics import Metrics  # its library is an extra

FILE_BYTES, FILES = 10_000_000, 10
"""Size at which a new log file is begun, and files that are kept: 100 MB at most."""

_SECONDS_BETWEEN_STEPS = 60.0
"""Training steps are many: one in this time is put on record."""

TICK, PROBE_SECONDS = 1.0, 30.0
"""Seconds between two judgements, and between two questions for balance, store and disk."""

EMPTY_FILE = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
"""The CID of the empty file: a store is asked whether it has it, and any answer will do."""


class RotatingLog(logging.handlers.RotatingFileHandler):
    """The file `path`, and `path.1` to `path.9` with what was before. `lost`: lines that could not be written. Raises
    OSError if it cannot be opened; later, a disk that is full costs lines and never ends the role. Thread-safe."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        if path.is_fifo():
            raise OSError(errno.EINVAL, "it is a pipe, whose writer may wait for ever")
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")
        self.lost = 0
        self._clock = clock
        self._next: dict[object, float] = {}

    def write(self, entry: Mapping[str, object]) -> None:
        """Write an object; of those about progress (`what` is `step` or `transfer`) only some."""
        if (what := entry.get("what")) in ("step", "transfer"):
            now = self._clock()
            if now < self._next.get(what, now):
                return
            self._next[what] = now + _SECONDS_BETWEEN_STEPS
        self.handle(logging.LogRecord("tiebreak", logging.INFO, "", 0, json.dumps(entry), None, None))

    def handleError(self, record: logging.LogRecord) -> None:
        """Count what is lost; the standard library would print a traceback for each line."""
        self.lost += 1


class RoleMonitor:
    """Watches one role. `tell`: shows notices, alerts too. `clock`: steady seconds.

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
    ) -> None:
        self._role, self._tell, self._clock = role, tell, clock
        self._messenger, self._log, self._metrics = messenger, log, metrics
        self._alarms = Alarms()
        self._context: RoleContext | None = None
        self._lock = threading.Lock()
        self._now = Situation(at=clock(), looked_at=clock())
        self._stop, self._attached = threading.Event(), threading.Event()

    # Notices and looks of the role.

    def attach(self, context: RoleContext) -> None:
        """Take the role's context, once chain and store could be reached."""
        self._context = context
        if self._metrics is not None:
            self._metrics.attach(context.address)
        self._attached.set()

    def notice(self, notice: Notice) -> None:
        """Show, log and count a notice."""
        self._tell(notice)
        if self._log is not None:
            self._log.write(plain(notice))
        if self._metrics is not None:
            self._metrics.notice(notice)

    def look(self, look: Look) -> None:
        """Take in a look of the role; called in the role's thread, and waits for nobody."""
        error = "" if look.outage is None else printable(sentence(look.outage))
        found: dict[str, Any] = {"looked_at": self._clock(), "look_time": time.time()}
        found |= {name: getattr(look.progress, name) for name in ("state", "stake", "deadline")}
        found["chain_error"] = error if isinstance(look.outage, ChainError) else ""
        if isinstance(look.outage, StoreError):
            found["store_error"] = error
        if (context := self._context) is not None:
            found["agreement"] = context.contract.node.agreement
            if (head := context.queue.watch.head) is not None:
                found["block"], found["block_time"] = head.number, head.timestamp
            if look.outage is None:
                now = context.now()
                found["games"] = games_of(*context.queue.watch.at_hand(), context.address, now)
                found["due"] = due_of(look.progress.deadline, found["games"], now)
        self._learn(**found)
        if self._metrics is not None:
            self._metrics.looked(reached=not found["chain_error"])

    def unreachable(self, error: Exception) -> None:
        """Take in that the role could not begin, because something could not be reached. A disk that cannot be used is
        no outage: the role counts as stuck."""
        if isinstance(error, ChainError | StoreError):
            self.look(Look(progress=Progress(state="not started"), outage=error))

    def ended(self, why: str) -> None:
        """Call a person because the role has ended by an error. why: a sentence."""
        # The command says it on standard error; of a role that never began there is nothing else to be told.
        self._call(Alert(Cause.ROLE_ENDED, why.rstrip("."), True), show=self._context is not None)

    def _learn(self, **found: Any) -> None:
        """Take in fields of the situation."""
        with self._lock:
            self._now = replace(self._now, **found)

    # The monitor's own rounds.

    def start(self) -> None:
        """Begin to judge, and to probe once the role's context is there."""
        for pair in ((TICK, self.tick), (PROBE_SECONDS, self.probe)):
            threading.Thread(target=self._repeat, args=pair, name="monitor", daemon=True).start()

    def close(self) -> None:
        """End, after the alerts that wait are delivered, or some seconds."""
        self._stop.set()
        self._attached.set()
        for one in (self._messenger, self._log):
            if one is not None:
                one.close()

    def tick(self) -> list[Alert]:
        """Judge the situation now, send the alerts that are due, and return them."""
        now = self.situation()
        alerts = self._alarms.judge(now)
        for alert in alerts:
            self._call(alert)
        if self._metrics is not None:
            lost = sum(one.lost for one in (self._messenger, self._log) if one is not None)
            self._metrics.show(now, self._alarms.active, lost)
        return alerts

    def probe(self) -> None:
        """Ask for the balance, the store and the disk. A question that hangs keeps only the next probe waiting."""
        self._attached.wait()
        if (context := self._context) is None:
            return
        balance = needed = disk_free = None
        store_error = ""
        with suppress(OSError):
            disk_free = free_bytes(context.directory)
        try:
            context.store.has(EMPTY_FILE)
        except (StoreError, OSError) as error:
            store_error = printable(sentence(error))
        with suppress(ChainError):  # the role's looks tell of outages
            account = funds(context.contract.node, context.address, 0, games=max(1, len(self._now.games)))
            balance, needed = account.balance, account.needed
        missing = context.sender.reserve.missing
        self._learn(
            balance=balance, needed=needed, store_error=store_error, disk_free=disk_free, reserve_missing=missing
        )

    def situation(self) -> Situation:
        """Return the situation now."""
        helpers = None if self._context is None else self._context.engine.helpers
        late = "" if helpers is None else printable(helpers.problem or "")
        with self._lock:
            return replace(self._now, at=self._clock(), late_ranks=late)

    def health(self) -> tuple[bool, dict[str, object]]:
        """Return whether the role's loop runs, for what a supervisor may restart it, and facts."""
        now = self.situation()
        facts = {"role": self._role, "seconds_since_look": int(now.silent), "state": printable(now.state)}
        return now.silent < STUCK_SECONDS, facts

    def ready(self) -> tuple[bool, dict[str, object]]:
        """Return whether the role can do its work, since chain and store answer, and facts. A restart would not help
        it."""
        now = self.situation()
        is_ready = now.chain_error == "" and not now.store_error
        return is_ready, {"role": self._role, "chain": now.chain_error or "", "store": now.store_error or ""}

    def _call(self, alert: Alert, *, show: bool = True) -> None:
        if show:
            text = f"{'' if alert.holds else 'resolved: '}{alert.cause.value}: {alert.text}"
            self.notice(Notice(role=self._role, what=What.ALERT, text=text, job=alert.job, game=alert.game))
        if self._metrics is not None and alert.holds:
            self._metrics.alert(alert.cause)
        if self._messenger is not None:
            message = {
                "role": self._role,
                "account": "" if self._context is None else self._context.address,
                "cause": alert.cause.value,
                "resolved": not alert.holds,
                "text": printable(alert.text),
                "job": alert.job,
                "game": alert.game,
                "time": int(time.time()),
            }
            self._messenger.send(message)

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


def free_bytes(directory: Path) -> int:
    """Return the free bytes of a directory's disk. Raises OSError."""
    return shutil.disk_usage(directory).free
