"""The monitor of a role: hears its notices and looks, keeps its situation, and calls a person once for each cause; and
the messenger that delivers these alerts to webhooks and commands, from threads of its own.

A role hands an alert over and goes on. What hangs is given up in time, and what fails is tried again a few times. All
else that an operator may want to know stands in the metrics, for which `docs/operating/alerts.yml` has rules."""

from __future__ import annotations

import json
import queue
import shlex
import shutil
import subprocess
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from eth_typing import ChecksumAddress

from tiebreak.contract.enums import Phase, Side
from tiebreak.contract.structs import GameView, JobView
from tiebreak.http_client import Halted, NoResponse, TooLate, ask, pause, session, within
from tiebreak.process_resources import environment_of_others
from tiebreak.quantities import in_ether, in_time
from tiebreak.roles.context import RoleContext
from tiebreak.roles.notices import Notice, Notify, Progress, What, sentence
from tiebreak.rpc.chain_errors import ChainError, printable
from tiebreak.rpc.transport import ALONE, NodeAgreement
from tiebreak.store import StoreError
from tiebreak.transactions.signer import funds

_SECONDS = 15.0
"""Most seconds for one attempt."""

_PAUSES = (2.0, 10.0, 60.0)
"""Seconds before the second and later attempts."""

Message = Mapping[str, object]


class DeliveryFailed(Exception):
    """An alert did not reach its target."""


def check_target(text: str) -> str:
    """Return a text that names an http(s) URL, or a command with its arguments. Raises ValueError with a sentence."""
    if text.startswith(("http://", "https://")):
        if not urllib.parse.urlsplit(text).hostname:
            raise ValueError("the address of the webhook has no host: use the form https://host/path.")
        return text
    if "://" in text.split(" ")[0]:
        raise ValueError("only http and https addresses can be notified: use one, or a command.")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"the command to notify cannot be read ({error}): check its quotes.") from None
    if not words:
        raise ValueError("nothing is named to be notified: give an address or a command.")
    return text


def deliver(target: str, message: Message, stop: threading.Event) -> None:
    """Deliver one alert, a JSON object: by POST to a URL, whose answer of 2xx is a delivery, or on the standard input
    of a command, whose exit code 0 is one; it does not inherit Tiebreak's own variables. Raises DeliveryFailed, and
    Halted when `stop` is set."""
    data = json.dumps(message).encode()

    def post() -> int:
        kind = {"Content-Type": "application/json"}
        with session() as connections:
            return ask(connections, "POST", target, data=data, headers=kind, seconds=_SECONDS, most=0).status

    try:
        if target.startswith(("http://", "https://")):
            if not 200 <= within(_SECONDS, stop, post) < 300:
                raise DeliveryFailed
            return
        subprocess.run(
            shlex.split(target),
            input=data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment_of_others(),
            start_new_session=True,
            timeout=_SECONDS,
            check=True,
        )
    except (NoResponse, TooLate, OSError, subprocess.SubprocessError):
        raise DeliveryFailed from None


class Messenger:
    """A queue of alerts and a thread for each target, so that one that hangs keeps nothing from another. `lost`:
    alerts that did not arrive, so far."""

    def __init__(self, targets: Sequence[str], *, pauses: Sequence[float] = _PAUSES) -> None:
        self.lost = 0
        self._pauses = pauses
        self._stop = threading.Event()
        self._queues: list[queue.SimpleQueue[Message | None]] = [queue.SimpleQueue() for _ in targets]
        self._threads = [
            threading.Thread(target=self._run, args=pair, name="notify", daemon=True)
            for pair in zip(targets, self._queues, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message | None) -> None:
        """Hand an alert over, and return at once. None ends the threads after what waits."""
        for waiting in self._queues:
            waiting.put(message)

    def close(self, patience: float = 5.0) -> None:
        """End after what waits is delivered, or after `patience` seconds."""
        deadline = time.monotonic() + patience
        self.send(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stop.set()

    def _run(self, target: str, waiting: queue.SimpleQueue[Message | None]) -> None:
        with suppress(Halted):
            while not self._stop.is_set() and (message := waiting.get()) is not None:
                self._deliver(target, message)

    def _deliver(self, target: str, message: Message) -> None:
        for seconds in (0.0, *self._pauses):
            pause(seconds, self._stop)
            with suppress(DeliveryFailed):
                return deliver(target, message, self._stop)
        self.lost += 1


STUCK_SECONDS = 300.0
"""Seconds without the end of a look, after which a role counts as stuck. A look's requests give up after 30 seconds."""

TICK, PROBE_SECONDS = 1.0, 30.0
"""Seconds between two judgements, and between two questions for balance, store and disk."""

EMPTY_FILE = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
"""The CID of the empty file: a store is asked whether it has it, and any answer will do."""


class Cause(StrEnum):
    """Cause for which a person is called."""

    FUNDS_LOW = "funds-low"
    CLOCK_HALF_GONE = "clock-half-gone"
    DEADLINE_NEAR = "deadline-near"


@dataclass(frozen=True, slots=True, kw_only=True)
class GameState:
    """A live game of this account. Times in seconds by the chain's clock; `left` is None for a referee, who has no
    chess clock. `called`: whether the referee is asked."""

    job: int
    game: int
    left: int | None
    allowance: int
    called: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The situation of a role. None: not known now. Amounts in wei, sizes in bytes; errors are empty where there is
    none.

    `at`, `looked_at`: now and the end of the last look, in seconds of this machine's steady clock; `look_time`: the
    latter in seconds since 1970. `state`, `stake`, `deadline`: of the last look. `due`: chain time of the next deadline
    that is in no game, such as that of an opening or an appeal, and the seconds until then. `needed`: gas of all
    disputes of the account, and of one at least. `reserve_missing`: bytes that were given up of those kept for records
    of payments."""

    at: float
    looked_at: float
    look_time: float | None = None
    state: str = "not started"
    stake: int | None = None
    deadline: int | None = None
    block: int | None = None
    block_time: int | None = None
    chain_error: str | None = None
    agreement: NodeAgreement = ALONE
    games: tuple[GameState, ...] = ()
    due: tuple[int, int] | None = None
    balance: int | None = None
    needed: int | None = None
    store_error: str | None = None
    disk_free: int | None = None
    reserve_missing: int = 0

    @property
    def silent(self) -> float:
        """Seconds since the end of the last look."""
        return self.at - self.looked_at


def games_of(
    jobs: dict[int, JobView], games: dict[int, GameView], account: ChecksumAddress, now: int
) -> tuple[GameState, ...]:
    """Return the live games in which an account is a party, or which ask it as their referee. now: the chain's time."""
    found = []
    for number, game in sorted(games.items()):
        job = jobs.get(game.job)
        if game.outcome or game.phase is Phase.OVER or job is None:
            continue
        side = next((side for side in Side if game.party(side) == account), None)
        called = game.phase is Phase.REFEREE
        if side is None and not (called and job.spec.referee == account):
            continue
        left = None if side is None else game.left(side, now)
        found.append(
            GameState(job=game.job, game=number, left=left, allowance=job.terms.clock_allowance, called=called)
        )
    return tuple(found)


def due_of(deadline: int | None, games: tuple[GameState, ...], now: int) -> tuple[int, int] | None:
    """Return `Situation.due`, unless the role's next deadline is a game's. now: the chain's time."""
    if deadline is None:
        return None
    left = max(0, deadline - now)
    return None if any(left == game.left for game in games) else (deadline, left)


@dataclass(frozen=True, slots=True)
class Alert:
    """A cause in a situation. `holds`: whether it is there; None: not known, or too near the limit to tell. An alert
    that does not hold tells that the cause is gone."""

    cause: Cause
    text: str
    holds: bool | None
    job: int | None = None
    game: int | None = None


class Alarms:
    """The alarms of one role: from situations to the alerts that are due, one when a cause begins and one when it
    ends."""

    def __init__(self) -> None:
        self._active: dict[tuple[Cause, int | None], Alert] = {}
        """Raised alarms by cause and game."""
        self._windows: dict[int, int] = {}
        """Seconds that were left when a deadline was first seen, by the deadline: the window of an opening or an appeal
        opens when the role can first act in it."""

    @property
    def active(self) -> Counter[Cause]:
        """The number of active alarms by cause."""
        return Counter(cause for cause, _ in self._active)

    def judge(self, now: Situation) -> list[Alert]:
        """Return the alerts that are due now."""
        found = {(one.cause, one.game): one for one in self._causes(now)}
        for key, one in self._active.items():
            found.setdefault(key, replace(one, text="it is over", holds=False))
        due = []
        for key, one in found.items():
            if one.holds is None or one.holds is (key in self._active):
                continue
            if one.holds:
                self._active[key] = one
            else:
                del self._active[key]
            due.append(one)
        return due

    def _causes(self, now: Situation) -> Iterator[Alert]:
        if now.balance is not None and now.needed is not None:
            has, needs = in_ether(now.balance), in_ether(now.needed)
            text = f"the account has {has}, and its disputes may take {needs} of gas: send it more"
            yield Alert(Cause.FUNDS_LOW, text, _is_low(now.balance, now.needed))
        else:
            yield Alert(Cause.FUNDS_LOW, "", None)
        for game in now.games:
            if game.left is not None:
                text = _left(game.left, game.allowance, f"on our clock in game {game.game}")
                is_late = 2 * game.left < game.allowance
                yield Alert(Cause.CLOCK_HALF_GONE, text, is_late, game.job, game.game)
        if now.due is not None:
            at, left = now.due
            # Several jobs take turns in having the nearest deadline.
            self._windows = {one: whole for one, whole in self._windows.items() if one >= at}
            whole = self._windows.setdefault(at, left)
            text = _left(left, whole, f"for what is due ({now.state})")
            yield Alert(Cause.DEADLINE_NEAR, text, 2 * left < whole)


def _left(left: int, whole: int, where: str) -> str:
    return f"{in_time(left)} of {in_time(whole)} are left {where}: see what keeps the role from moving"


def _is_low(value: int, least: int) -> bool | None:
    """Return whether a value is below its least; None up to a quarter above, so that one that swings calls once."""
    return True if value < least else None if 4 * value < 5 * least else False


class RoleMonitor:
    """Watches one role. `tell`: shows notices, alerts too. `clock`: steady seconds. `counts`: sums so far, by the names
    of metrics, `fees` in wei; `alerts`, `active`: how many alerts were raised, and alarms are active, by cause.

    Its threads never wait for the role, nor the role for them."""

    def __init__(
        self,
        role: str,
        tell: Notify = lambda notice: None,
        *,
        messenger: Messenger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.role, self._tell, self._clock = role, tell, clock
        self._messenger = messenger or Messenger(())
        self._alarms = Alarms()
        self.counts, self.alerts, self.active = Counter[str](), Counter[Cause](), Counter[Cause]()
        self._contradiction = ""
        self._context: RoleContext | None = None
        self._lock = threading.Lock()
        self._now = Situation(at=clock(), looked_at=clock())
        self._stop, self._attached = threading.Event(), threading.Event()

    # Notices and looks of the role.

    def attach(self, context: RoleContext) -> None:
        """Take the role's context, once chain and store could be reached."""
        self._context = context
        self._attached.set()

    @property
    def account(self) -> str:
        """Address of the role's account; empty while it is not known."""
        return "" if self._context is None else self._context.address

    @property
    def lost(self) -> int:
        """Alerts that did not arrive."""
        return self._messenger.lost

    def notice(self, notice: Notice) -> None:
        """Show and count a notice."""
        self._tell(notice)
        if notice.what is What.STEP:
            self._count(training_steps=1)
        elif notice.what is What.WARNING:
            self._count(warnings=1)
        elif notice.what is What.SENT and notice.receipt is not None:
            self._count(transactions=1, gas=notice.receipt.gas_used, fees=notice.receipt.fee)

    def look(self, progress: Progress, outage: Exception | None) -> None:
        """Take in a look of the role (`OnLook`); called in the role's thread, and waits for nobody."""
        error = "" if outage is None else printable(sentence(outage))
        found: dict[str, Any] = {"looked_at": self._clock(), "look_time": time.time()}
        found |= {name: getattr(progress, name) for name in ("state", "stake", "deadline")}
        found["chain_error"] = error if isinstance(outage, ChainError) else ""
        if isinstance(outage, StoreError):
            found["store_error"] = error
        if (context := self._context) is not None:
            found["agreement"] = context.contract.node.agreement
            if (head := context.queue.watch.head) is not None:
                found["block"], found["block_time"] = head.number, head.timestamp
            if outage is None:
                now = context.now()
                found["games"] = games_of(*context.queue.watch.at_hand(), context.address, now)
                found["due"] = due_of(progress.deadline, found["games"], now)
        self._learn(**found)
        self._count(looks=1, outages=int(bool(found["chain_error"])))

    def unreachable(self, error: Exception) -> None:
        """Take in that the role could not begin, because something could not be reached. A disk that cannot be used is
        no outage: the role counts as stuck."""
        if isinstance(error, ChainError | StoreError):
            self.look(Progress(state="not started"), error)

    def _learn(self, **found: Any) -> None:
        """Take in fields of the situation."""
        with self._lock:
            self._now = replace(self._now, **found)

    def _count(self, **amounts: int) -> None:
        with self._lock:
            self.counts.update(amounts)

    # The monitor's own rounds.

    def start(self) -> None:
        """Begin to judge, and to probe once the role's context is there."""
        for pair in ((TICK, self.tick), (PROBE_SECONDS, self.probe)):
            threading.Thread(target=self._repeat, args=pair, name="monitor", daemon=True).start()

    def close(self) -> None:
        """End, after the alerts that wait are delivered, or some seconds."""
        self._stop.set()
        self._attached.set()
        self._messenger.close()

    def tick(self) -> list[Alert]:
        """Judge the situation now, send the alerts that are due, and return them."""
        now = self.situation()
        if now.agreement.contradiction and not self._contradiction:
            text = f"the nodes disagree: {now.agreement.contradiction}"
            self.notice(Notice(role=self.role, what=What.WARNING, text=text))
        self._contradiction = now.agreement.contradiction
        alerts = self._alarms.judge(now)
        self.active = self._alarms.active
        for alert in alerts:
            self._call(alert)
        return alerts

    def probe(self) -> None:
        """Ask for the balance, the store and the disk. A question that hangs keeps only the next probe waiting."""
        self._attached.wait()
        if (context := self._context) is None:
            return
        balance = needed = disk_free = None
        store_error = ""
        with suppress(OSError):
            disk_free = shutil.disk_usage(context.directory).free
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
        with self._lock:
            return replace(self._now, at=self._clock())

    def health(self) -> tuple[bool, dict[str, object]]:
        """Return whether the role's loop runs, for what a supervisor may restart it, and facts."""
        now = self.situation()
        facts = {"role": self.role, "seconds_since_look": int(now.silent), "state": printable(now.state)}
        return now.silent < STUCK_SECONDS, facts

    def ready(self) -> tuple[bool, dict[str, object]]:
        """Return whether the role can do its work, since chain and store answer, and facts. A restart would not help
        it."""
        now = self.situation()
        is_ready = now.chain_error == "" and not now.store_error
        return is_ready, {"role": self.role, "chain": now.chain_error or "", "store": now.store_error or ""}

    def _call(self, alert: Alert) -> None:
        text = f"{'' if alert.holds else 'resolved: '}{alert.cause.value}: {alert.text}"
        self.notice(Notice(role=self.role, what=What.ALERT, text=text, job=alert.job, game=alert.game))
        self.alerts[alert.cause] += bool(alert.holds)
        message = {
            "role": self.role,
            "account": self.account,
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
                self.notice(Notice(role=self.role, what=What.WARNING, text=printable(text)))
                self._stop.wait(60.0)
            self._stop.wait(seconds)
