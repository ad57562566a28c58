"""Writes the tables of docs/how-to/operating.md that follow from the code: metrics, and gas by call at three prices.

.venv/bin/python scripts/make_operating_docs.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from generated import with_parts, write_or_check
from prometheus_client.parser import text_string_to_metric_families
from tiebreak.operation.metrics import Metrics
from tiebreak.operation.monitor import RoleMonitor
from tiebreak.transactions.signer import DISPUTE_GAS

_ROOT = Path(__file__).resolve().parents[1]
FILE = _ROOT / "docs" / "how-to" / "operating.md"
_SNAPSHOTS = _ROOT / "contracts" / ".gas-snapshot"
PRICES = (1, 10, 50)
"""Prices of gas in gwei: quiet days, usual days, and days on which everybody wants in."""


def page() -> str:
    """The page as it should be."""
    return with_parts(FILE, {"metrics": metrics_table(), "gas": gas_table()})


def metrics_table() -> str:
    """Name and meaning of every metric."""
    rows = []
    for family in text_string_to_metric_families(Metrics(RoleMonitor("auditor")).text().decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append(f"| `{name}` | {family.documentation} |\n")
    return "| metric | meaning |\n| --- | --- |\n" + "".join(rows)


def gas_table() -> str:
    """Gas of every call, and what it costs."""
    measured = _measured("GasTest.json")
    measured |= {f"where audits are paid: {name}": gas for name, gas in _measured("MarketGasTest.json").items()}
    measured["a whole dispute, both sides, as roles reckon with it"] = DISPUTE_GAS
    head = "".join(f" at {price} gwei |" for price in PRICES)
    rows = [
        f"| {name} | {gas:,} |" + "".join(f" {gas * price / 10**9:.6f} |" for price in PRICES) + "\n"
        for name, gas in measured.items()
    ]
    return f"| call | gas |{head}\n| --- | ---: |{' ---: |' * len(PRICES)}\n" + "".join(rows)


def _measured(snapshot: str) -> dict[str, int]:
    return {name: int(gas) for name, gas in json.loads((_SNAPSHOTS / snapshot).read_text()).items()}


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, {FILE: page()}))
