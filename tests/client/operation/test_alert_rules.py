"""The rules file for Prometheus: its expressions read metrics that the endpoint has, and fire when they should.

There is no promtool among our packages, so a small reader evaluates the part of PromQL that the rules use: sums and
differences of metrics, numbers, `time()` and `increase(metric[1h])`, compared once.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tiebreak.operation.metrics import Metrics
from tiebreak.operation.monitor import Situation

FILE = Path(__file__).resolve().parents[3] / "docs" / "operating" / "alerts.yml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
}

Values = dict[str, float]

NOW = 1_800_000_000.0


def fires(expression: str, now: Values, hour_ago: Values, time: float = NOW) -> bool:
    """Whether an expression holds. Fails at whatever it does not understand, and at metrics that are not there."""
    found = re.fullmatch(r"(.+?) (==|<|>) (.+)", expression)
    assert found, f"no comparison: {expression}"
    left, right = (value(side, now, hour_ago, time) for side in (found[1], found[3]))
    return {"==": left == right, "<": left < right, ">": left > right}[found[2]]


def value(text: str, now: Values, hour_ago: Values, time: float) -> float:
    total, sign = 0.0, 1.0
    for word in text.split():
        if word in ("+", "-"):
            sign = 1.0 if word == "+" else -1.0
            continue
        name = re.sub(r"\{job=\"tiebreak\"\}$", "", word)
        if re.fullmatch(r"[0-9.]+", word):
            total += sign * float(word)
        elif word == "time()":
            total += sign * time
        elif increase := re.fullmatch(r"increase\((\w+)\[1h\]\)", word):
            total += sign * (now[increase[1]] - hour_ago[increase[1]])
        else:
            total += sign * now[name]
    return total


def served() -> Values:
    """All metrics of a role for which all is well."""
    metrics = Metrics("trainer")
    situation = Situation(
        at=1.0,
        looked_at=0.0,
        look_time=NOW - 2,
        block=1,
        block_time=int(NOW) - 12,
        chain_error="",
        stake=0,
        balance=10**18,
        needed=10**17,
        store_error="",
        disk_free=1 << 40,
    )
    metrics.show(situation, Counter(), 0)
    families = text_string_to_metric_families(metrics.text().decode())
    # `up` is Prometheus' own: whether the endpoint answered.
    return {one.name: one.value for family in families for one in family.samples if not one.labels} | {"up": 1.0}


TROUBLES: dict[str, Values] = {
    "TiebreakRoleGone": {"up": 0},
    "TiebreakRoleStuck": {"tiebreak_last_look_timestamp_seconds": NOW - 301},
    "TiebreakClockHalfGone": {"tiebreak_least_clock_ratio": 0.49},
    "TiebreakDeadlineNear": {
        "tiebreak_next_deadline_timestamp_seconds": NOW + 1700,
        "tiebreak_chain_timestamp_seconds": NOW - 12,
    },
    "TiebreakFundsLow": {"tiebreak_balance_ether": 0.0999},
    "TiebreakChainUnreachable": {"tiebreak_chain_reachable": 0},
    "TiebreakChainStalled": {"tiebreak_chain_timestamp_seconds": NOW - 601},
    "TiebreakNodesDisagree": {"tiebreak_nodes_disagree": 1},
    "TiebreakNodeMissing": {"tiebreak_nodes_missing": 1},
    "TiebreakStoreUnreachable": {"tiebreak_store_reachable": 0},
    "TiebreakRefereeCalled": {"tiebreak_games_with_referee": 1},
    "TiebreakDiskNearlyFull": {"tiebreak_disk_free_bytes": (2 << 30) - 1},
    "TiebreakDiskFull": {"tiebreak_reserve_missing_bytes": 16384},
    "TiebreakRankLate": {"tiebreak_ranks_late": 1},
    "TiebreakManyWarnings": {"tiebreak_warnings_total": 21},
    "TiebreakMessagesLost": {"tiebreak_lost_messages": 1},
}


def test_every_rule_has_a_trouble_here_and_is_quiet_where_all_is_well() -> None:
    assert set(RULES) == set(TROUBLES)
    well = served()
    assert [name for name, rule in RULES.items() if fires(rule["expr"], well, well)] == []


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_makes_its_rule_fire_and_no_other(name: str) -> None:
    well = served()
    assert set(TROUBLES[name]) <= set(well), "a metric that nobody serves"
    firing = [one for one, rule in RULES.items() if fires(rule["expr"], well | TROUBLES[name], well)]
    assert firing == [name]


def test_every_rule_says_how_urgent_it_is_and_what_to_do() -> None:
    for name, rule in RULES.items():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, name
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert re.fullmatch(r"[0-9]+[sm]", rule.get("for", "0s"))
        assert rule["annotations"]["summary"].endswith((".", "?"))
