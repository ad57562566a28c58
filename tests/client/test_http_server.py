"""Servers for programs of this machine: hosts that they refuse, and clients that keep them waiting. How a single client
is cut off, tests/dashboard/test_serving.py says of the same server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.devnet.rpc_server import serve_chain
from tiebreak.http_server import ServingError, listen_at, names_this_machine
from tiebreak.operation.metrics import endpoint

from tests.client.troublesome_clients import HOSTILE_HOSTS, LOCAL_HOSTS, silent, status

ASKS = '{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}'


@pytest.fixture
def metrics() -> Iterator[str]:
    """Address of a role's metrics."""
    made = endpoint(0, lambda: b"well\n", {})
    yield f"{made.url}/metrics"
    made.stop()


@pytest.fixture
def chain() -> Iterator[str]:
    """Address of an embedded chain."""
    made = serve_chain(EmbeddedChain())
    yield made.url
    made.stop()


def asked(url: str, *hosts: str) -> int:
    """Status of the chain's answer to a good request with these Host headers."""
    more = f"Content-Type: application/json\r\nContent-Length: {len(ASKS)}\r\n"
    return status(url, *hosts, method="POST", more=more, body=ASKS)


def test_requests_that_name_this_machine_are_answered_and_no_others(metrics: str, chain: str) -> None:
    for host in LOCAL_HOSTS:
        assert names_this_machine([host]), host
    for host in (*HOSTILE_HOSTS, "localhost\n", "127.0.0.1\r\n"):
        assert not names_this_machine([host]), host
    assert (status(metrics, "localhost:80"), asked(chain, "localhost:80")) == (200, 200)
    assert (status(metrics, "evil.com"), asked(chain, "evil.com")) == (403, 403)
    for hosts in ((), ("localhost", "evil.com"), ("localhost", "localhost")):
        assert (status(metrics, *hosts), asked(chain, *hosts)) == (400, 400)


def test_silent_clients_take_neither_the_files_of_a_role_nor_anybody_s_answer(metrics: str) -> None:
    before = len(list(Path(f"/proc/{os.getpid()}/fd").iterdir()))
    with silent(metrics, 300):
        assert requests.get(metrics, timeout=5).status_code == 200
        # Both ends of a connection are this process's here; its own are 300.
        assert len(list(Path(f"/proc/{os.getpid()}/fd").iterdir())) - before - 300 < 140


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "127.0.0.1.example.com", ""])
def test_addresses_beyond_this_machine_are_refused(host: str) -> None:
    with pytest.raises(ServingError, match=r"use 127\.0\.0\.1"):
        listen_at(host, 0, only_local=True)


def test_a_port_that_is_taken_is_told() -> None:
    with listen_at("127.0.0.1", 0) as first, pytest.raises(ServingError, match="choose another, or 0 for any"):
        listen_at("localhost", first.getsockname()[1])
