"""Metrics of a role for Prometheus, and the endpoint on the loopback interface that shows them: `/metrics`, `/health`
and `/ready`. Amounts are in ether, times in seconds; docs/how-to/operating.md explains each metric."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from tiebreak.http_server import LoopbackHandler, LoopbackServer
from tiebreak.operation.alarms import Cause, Situation
from tiebreak.roles.notices import Notice, What


class Endpoint(LoopbackServer):
    """Serves at http://127.0.0.1:`port` (0: any free port) in threads of this process, until `close`.

    `metrics`: the text of `/metrics` and its type. `health`: what `/health` and `/ready` say, by their paths: whether
    all is well (200) or not (503), and the facts, as JSON. Raises OSError where the port cannot be had.
    """

    def __init__(
        self,
        port: int,
        metrics: Callable[[], tuple[str, bytes]],
        health: Mapping[str, Callable[[], tuple[bool, dict[str, object]]]],
    ) -> None:
        super().__init__(port, type("Handler", (_Handler,), {"metrics": staticmethod(metrics), "health": health}))
        self.start("endpoint")


class _Handler(LoopbackHandler):
    metrics: Callable[[], tuple[str, bytes]]
    health: Mapping[str, Callable[[], tuple[bool, dict[str, object]]]]

    def do_GET(self) -> None:
        self.has_request()
        if not self.is_for_this_machine():
            self._answer(403, "text/plain", b"only local programs may ask\n")
        elif self.path == "/metrics":
            kind, text = self.metrics()
            self._answer(200, kind, text)
        elif self.path in self.health:
            is_well, facts = self.health[self.path]()
            body = json.dumps({"ok": is_well} | facts).encode() + b"\n"
            self._answer(200 if is_well else 503, "application/json", body)
        else:
            self._answer(404, "text/plain", b"there is /metrics, /health and /ready\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_ETHER = 10**18
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All metrics of one role, in a registry of their own. Thread-safe."""

    def __init__(self, role: str) -> None:
        self._registry = CollectorRegistry()
        self._role = role

        def gauge(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"tiebreak_{name}", help, labels, registry=self._registry)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"tiebreak_{name}", help, labels, registry=self._registry)

        self._info = gauge("role_info", "1, with the role, its account and the version", "role", "account", "version")
        self._looks = counter("looks", "Looks at the chain that ended, with success or without")
        self._outages = counter("outages", "Looks that ended because something could not be reached")
        self._looked = gauge("last_look_timestamp_seconds", "When the last look ended, in seconds since 1970")
        self._block = gauge("chain_block", "Number of the newest block seen")
        self._chain_time = gauge("chain_timestamp_seconds", "Time of the newest block seen, in seconds since 1970")
        self._chain_up = gauge("chain_reachable", "Whether the last look reached the chain")
        self._disagree = gauge(
            "nodes_disagree", "1 while the chain's nodes contradict each other, 2 without a majority"
        )
        self._missing = gauge("nodes_missing", "Nodes of the chain that do not answer, or lag behind the others")
        self._store_up = gauge("store_reachable", "Whether the content store answers")
        self._balance = gauge("balance_ether", "Balance of the account")
        self._needed = gauge("needed_ether", "Gas that the account's disputes may take, and one at least")
        self._stake = gauge("stake_ether", "Bonds of the account that jobs hold")
        self._games = gauge("games_live", "Live games of the account")
        self._referee = gauge("games_with_referee", "Live games that ask the referee")
        self._clock = gauge("least_clock_ratio", "Least share that is left on a clock of ours; 1 without a game")
        self._due = gauge("next_deadline_timestamp_seconds", "Chain time of our next deadline; +Inf without one")
        self._ranks_late = gauge("ranks_late", "1 while a rank keeps the others waiting for minutes, amid a step")
        self._disk = gauge("disk_free_bytes", "Free bytes on the role's disk")
        self._reserve = gauge("reserve_missing_bytes", "Bytes that are given up of those kept for records of payments")
        self._sent = counter("transactions", "Transactions that a block has taken")
        self._gas = counter("gas", "Gas of these transactions")
        self._fees = counter("fees_ether", "Fees of these transactions")
        self._warnings = counter("warnings", "Warnings that were told")
        self._steps = counter("training_steps", "Training steps that were executed")
        self._alerts = counter("alerts", "Alerts that were raised", "cause")
        self._active = gauge("alerts_active", "Alerts that are not resolved", "cause")
        self._lost = gauge("lost_messages", "Alerts that did not arrive, and lines that could not be logged")
        for cause in Cause:
            self._alerts.labels(cause)
            self._active.labels(cause)
        self._clock.set(1.0)
        self._due.set(math.inf)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def attach(self, account: str) -> None:
        """Names the account, once it is known."""
        self._info.labels(self._role, account, version("tiebreak")).set(1)

    def notice(self, notice: Notice) -> None:
        """Counts a notice."""
        if notice.what is What.STEP:
            self._steps.inc()
        elif notice.what is What.WARNING:
            self._warnings.inc()
        elif notice.what is What.SENT and notice.receipt is not None:
            self._sent.inc()
            self._gas.inc(notice.receipt.gas_used)
            self._fees.inc(notice.receipt.fee / _ETHER)

    def looked(self, *, at: float, reached: bool, block: int | None, timestamp: int | None) -> None:
        """Counts a look. at: seconds since 1970."""
        self._looks.inc()
        self._outages.inc(not reached)
        self._looked.set(at)
        self._chain_up.set(reached)
        if block is not None and timestamp is not None:
            self._block.set(block)
            self._chain_time.set(timestamp)

    def show(self, now: Situation, active: dict[Cause, int], lost: int) -> None:
        """Shows a situation."""
        probe = now.probe
        if now.chain_error is not None:
            self._chain_up.set(not now.chain_error)
        self._disagree.set((2 if now.agreement.undecided else 1) if now.agreement.contradiction else 0)
        self._missing.set(len(now.agreement.missing))
        self._ranks_late.set(bool(now.late_ranks))
        if now.look is not None:
            self._stake.set(now.look.progress.stake / _ETHER)
            due = now.look.progress.deadline
            self._due.set(math.inf if due is None else due)
        if probe.balance is not None and probe.needed is not None:
            self._balance.set(probe.balance / _ETHER)
            self._needed.set(probe.needed / _ETHER)
        if probe.store_error is not None:
            self._store_up.set(not probe.store_error)
        if probe.disk_free is not None:
            self._disk.set(probe.disk_free)
        self._reserve.set(probe.reserve_missing)
        self._games.set(len(now.games))
        self._referee.set(sum(game.called for game in now.games))
        shares = [game.left / max(1, game.allowance) for game in now.games if game.left is not None]
        self._clock.set(min(shares, default=1.0))
        for cause, count in active.items():
            self._active.labels(cause).set(count)
        self._lost.set(lost)

    def alert(self, cause: Cause) -> None:
        """Counts an alert that was raised."""
        self._alerts.labels(cause).inc()
