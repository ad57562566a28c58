"""Metrics of a role for Prometheus, and the endpoint on the loopback interface that shows them: `/metrics`, `/health`
and `/ready`. Amounts are in ether, times in seconds; docs/how-to/operating.md explains each metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tiebreak.http_server import LocalServer
from tiebreak.operation.monitor import Cause, RoleMonitor, Situation

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _ether(wei: int | None) -> float | None:
    return None if wei is None else wei / 10**18


def _answers(error: str | None) -> bool | None:
    return None if error is None else not error


def _contradiction(now: Situation) -> int:
    return bool(now.agreement.contradiction) * (1 + now.agreement.undecided)


def _least_clock(now: Situation) -> float:
    return min((game.left / max(1, game.allowance) for game in now.games if game.left is not None), default=1.0)


def _deadline(now: Situation) -> float:
    return math.inf if now.deadline is None else now.deadline


_GAUGES: dict[str, tuple[str, Callable[[Situation], float | None]]] = {
    "last_look_timestamp_seconds": ("When the last look ended, in seconds since 1970", lambda now: now.look_time),
    "chain_block": ("Number of the newest block seen", lambda now: now.block),
    "chain_timestamp_seconds": ("Time of the newest block seen, in seconds since 1970", lambda now: now.block_time),
    "chain_reachable": ("Whether the last look reached the chain", lambda now: _answers(now.chain_error)),
    "nodes_disagree": ("1 while the chain's nodes contradict each other, 2 without a majority", _contradiction),
    "nodes_missing": ("Nodes that do not answer, or lag behind the others", lambda now: len(now.agreement.missing)),
    "store_reachable": ("Whether the content store answers", lambda now: _answers(now.store_error)),
    "balance_ether": ("Balance of the account", lambda now: _ether(now.balance)),
    "needed_ether": ("Gas that the account's disputes may take, and one at least", lambda now: _ether(now.needed)),
    "stake_ether": ("Bonds of the account that jobs hold", lambda now: _ether(now.stake)),
    "games_live": ("Live games of the account", lambda now: len(now.games)),
    "games_with_referee": ("Live games that ask the referee", lambda now: sum(game.called for game in now.games)),
    "least_clock_ratio": ("Least share that is left on a clock of ours; 1 without a game", _least_clock),
    "next_deadline_timestamp_seconds": ("Chain time of our next deadline; +Inf without one", _deadline),
    "disk_free_bytes": ("Free bytes on the role's disk", lambda now: now.disk_free),
    "reserve_missing_bytes": ("Bytes given up of those kept for records of payments", lambda now: now.reserve_missing),
}
"""Gauge -> its meaning, and its value in a situation; None where that is not known."""

_COUNTERS = {
    "looks": "Looks at the chain that ended, with success or without",
    "outages": "Looks that ended because something could not be reached",
    "transactions": "Transactions that a block has taken",
    "gas": "Gas of these transactions",
    "fees_ether": "Fees of these transactions",
    "warnings": "Warnings that were told",
    "training_steps": "Training steps that were executed",
}


class Metrics(Collector):
    """All metrics of one role, as its monitor has them when they are asked for; a gauge whose value is not known shows
    the last one."""

    def __init__(self, monitor: RoleMonitor) -> None:
        self._monitor, self._shown = monitor, dict.fromkeys(_GAUGES, 0.0)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        monitor, now = self._monitor, self._monitor.situation()
        about = "1, with the role, its account and the version"
        info = GaugeMetricFamily("tiebreak_role_info", about, labels=["role", "account", "version"])
        if monitor.account:
            info.add_metric([monitor.role, monitor.account, version("tiebreak")], 1)
        yield info
        for name, (help, value_of) in _GAUGES.items():
            if (known := value_of(now)) is not None:
                self._shown[name] = known
            yield GaugeMetricFamily(f"tiebreak_{name}", help, self._shown[name])
        for name, help in _COUNTERS.items():
            count = monitor.counts["fees"] / 10**18 if name == "fees_ether" else monitor.counts[name]
            yield CounterMetricFamily(f"tiebreak_{name}", help, count)
        alerts = CounterMetricFamily("tiebreak_alerts", "Alerts that were raised", labels=["cause"])
        active = GaugeMetricFamily("tiebreak_alerts_active", "Alerts that are not resolved", labels=["cause"])
        for cause in Cause:
            alerts.add_metric([cause], monitor.alerts[cause])
            active.add_metric([cause], monitor.active[cause])
        yield from (alerts, active)
        yield GaugeMetricFamily("tiebreak_lost_messages", "Alerts that did not arrive", monitor.lost)


Health = Callable[[], tuple[bool, dict[str, object]]]
"""Whether all is well, and facts."""


def endpoint(port: int, metrics: Callable[[], bytes], health: Mapping[str, Health]) -> LocalServer:
    """Serve at http://127.0.0.1:`port` (0: any free port), until `stop`: `/metrics`, and `/health` and `/ready` by what
    `health` says at their paths, with status 200 or 503, as JSON. Raises ServingError."""

    def judged(judge: Health) -> Response:
        is_well, facts = judge()
        return JSONResponse({"ok": is_well} | facts, 200 if is_well else 503)

    handlers: dict[str, Callable[[], Response]] = {path: partial(judged, judge) for path, judge in health.items()}
    handlers["/metrics"] = lambda: Response(metrics(), media_type=CONTENT_TYPE)
    routes = [Route(path, lambda request, answer=answer: answer()) for path, answer in handlers.items()]
    return LocalServer(Starlette(routes=routes), port, "endpoint")
