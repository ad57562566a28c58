"""The endpoint on the loopback interface, and the metrics behind it."""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Iterator

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from tiebreak.http_server import LocalServer
from tiebreak.operation.metrics import Metrics, endpoint
from tiebreak.operation.monitor import Cause, GameState, Situation
from tiebreak.roles.notices import Notice, What
from tiebreak.rpc.answers import TransactionReceipt
from tiebreak.rpc.transport import NodeAgreement

ACCOUNT = "0x" + "11" * 20


def samples(metrics: Metrics) -> dict[str, float]:
    """Name of a sample, with its labels -> its value, as Prometheus reads them."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for one in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(one.labels.items()) if name != "version")
            found[one.name.removeprefix("tiebreak_") + (f"{{{labels}}}" if labels else "")] = one.value
    return found


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("trainer")


def test_a_role_that_has_not_begun_shows_no_alarm(metrics: Metrics) -> None:
    found = samples(metrics)
    assert (found["least_clock_ratio"], found["next_deadline_timestamp_seconds"]) == (1.0, math.inf)
    assert all(found[f"alerts_active{{cause={cause}}}"] == 0 for cause in Cause)


def test_metrics_are_what_the_role_told(metrics: Metrics) -> None:
    metrics.attach(ACCOUNT)
    receipt = TransactionReceipt(
        transaction=bytes(32),
        block=1,
        block_hash=bytes(32),
        succeeded=True,
        gas_used=21_000,
        gas_price=10**11,
        contract=None,
        logs=(),
    )
    for _ in range(2):
        metrics.notice(Notice(role="trainer", what=What.SENT, text="commit", receipt=receipt))
    metrics.notice(Notice(role="trainer", what=What.WARNING, text="x"))
    metrics.notice(Notice(role="trainer", what=What.STEP, text="trains", done=1, total=2))
    metrics.looked(reached=True)
    metrics.looked(reached=False)
    metrics.alert(Cause.FUNDS_LOW)
    game = GameState(job=1, game=2, left=25, allowance=100, called=False)
    situation = Situation(
        at=1.0,
        looked_at=0.0,
        look_time=1235.5,
        block=17,
        block_time=99,
        chain_error="away",
        agreement=NodeAgreement(nodes=3, contradiction="x", undecided=True, missing=("a", "b")),
        stake=10**18,
        deadline=4321,
        games=(game, GameState(job=1, game=3, left=50, allowance=100, called=True)),
        balance=5 * 10**17,
        needed=10**17,
        store_error="",
        disk_free=77,
    )
    metrics.show(situation, Counter({Cause.FUNDS_LOW: 1}), 4)
    expected = {
        f"role_info{{account={ACCOUNT},role=trainer}}": 1,
        "transactions_total": 2,
        "gas_total": 42_000,
        "fees_ether_total": 0.0042,
        "warnings_total": 1,
        "training_steps_total": 1,
        "looks_total": 2,
        "outages_total": 1,
        "last_look_timestamp_seconds": 1235.5,
        "chain_block": 17,
        "chain_timestamp_seconds": 99,
        "chain_reachable": 0,
        "nodes_disagree": 2,
        "nodes_missing": 2,
        "store_reachable": 1,
        "balance_ether": 0.5,
        "needed_ether": 0.1,
        "stake_ether": 1,
        "games_live": 2,
        "games_with_referee": 1,
        "least_clock_ratio": 0.25,
        "next_deadline_timestamp_seconds": 4321,
        "disk_free_bytes": 77,
        "alerts_total{cause=funds-low}": 1,
        "alerts_active{cause=funds-low}": 1,
        "lost_messages": 4,
    }
    found = samples(metrics)
    assert {name: found[name] for name in expected} == expected


@pytest.fixture
def served(metrics: Metrics) -> Iterator[LocalServer]:
    paths = {"/health": lambda: (True, {"state": "waits"}), "/ready": lambda: (False, {"chain": "away"})}
    made = endpoint(0, metrics.text, paths)
    yield made
    made.stop()


def test_three_pages_are_served_to_programs_of_this_machine(served: LocalServer) -> None:
    answer = requests.get(f"{served.url}/metrics", timeout=5)
    assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "tiebreak_least_clock_ratio" in answer.text
    health, ready = (requests.get(f"{served.url}{path}", timeout=5) for path in ("/health", "/ready"))
    assert (health.status_code, health.json()) == (200, {"ok": True, "state": "waits"})
    assert (ready.status_code, ready.json()) == (503, {"ok": False, "chain": "away"})
    for path in ("/", "/metrics/x"):
        assert requests.get(f"{served.url}{path}", timeout=5).status_code == 404
    assert requests.get(f"{served.url}/metrics", headers={"Host": "evil.example"}, timeout=5).status_code == 403
    assert requests.post(f"{served.url}/metrics", data=b"x", timeout=5).status_code == 405
    port = int(served.url.rsplit(":", 1)[1])
    with pytest.raises(OSError), socket.create_connection((socket.gethostbyname(socket.gethostname()), port), 2):
        if socket.gethostbyname(socket.gethostname()).startswith("127."):
            raise OSError("this machine's name is the loopback interface: nothing to be tried")
