"""The rules file for Prometheus: its expressions read metrics that the endpoint has, and each says what to do."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from tiebreak.operation.metrics import Metrics
from tiebreak.operation.monitor import Situation

FILE = Path(__file__).resolve().parents[3] / "docs" / "operating" / "alerts.yml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
}
TERM = r"(?:time\(\)|[0-9.]+|increase\((?P<rate>\w+)\[1h\]\)|(?P<metric>\w+)(?:\{job=\"tiebreak\"\})?)"
"""A part of an expression: a number, the time, or a metric and how much it has risen."""


def test_every_rule_compares_metrics_that_are_served() -> None:
    metrics = Metrics("trainer")
    metrics.show(Situation(at=1.0, looked_at=0.0), Counter(), 0)
    families = text_string_to_metric_families(metrics.text().decode())
    # `up` is Prometheus' own: whether the endpoint answered.
    served = {one.name for family in families for one in family.samples} | {"up"}
    read: set[str] = set()
    for name, rule in RULES.items():
        left, sign, right = re.split(r" (==|<|>) ", rule["expr"])
        for term in re.split(r" [-+] ", f"{left} + {right}"):
            found = re.fullmatch(TERM, term)
            assert found and sign, f"{name}: {term}"
            read |= {one for one in found.groups() if one}
    assert read and read <= served, read - served


def test_every_rule_says_how_urgent_it_is_and_what_to_do() -> None:
    for name, rule in RULES.items():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, name
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert re.fullmatch(r"[0-9]+[sm]", rule.get("for", "0s"))
        assert rule["annotations"]["summary"].endswith((".", "?"))
