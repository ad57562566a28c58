"""Servers of this machine's own programs: hosts that they refuse, and clients that keep them waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.devnet.launcher import RpcServer
from tiebreak.http_server import LoopbackHandler, names_this_machine
from tiebreak.operation.metrics import Endpoint

from tests.client.troublesome_clients import HOSTILE_HOSTS, LOCAL_HOSTS, seconds_until_cut_off, silent, status

ASKS = '{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}'


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Address of a role's metrics."""
    made = Endpoint(0, lambda: b"well\n", {})
    yield f"{made.url}/metrics"
    made.close()


@pytest.fixture
def chain() -> Iterator[str]:
    """Address of an embedded chain."""
    made = RpcServer(EmbeddedChain())
    yield made.url
    made.close()


def asked(url: str, *hosts: str) -> int:
    """Status of the chain's answer to a good request with these Host headers."""
    more = f"Content-Type: application/json\r\nContent-Length: {len(ASKS)}\r\n"
    return status(url, *hosts, method="POST", more=more, body=ASKS)


def test_requests_that_name_this_machine_are_answered_and_no_others(endpoint: str, chain: str) -> None:
    for host in LOCAL_HOSTS:
        assert names_this_machine([host]), host
    for host in (*HOSTILE_HOSTS, "localhost\n", "127.0.0.1\r\n"):
        assert not names_this_machine([host]), host
    assert (status(endpoint, "localhost:80"), asked(chain, "localhost:80")) == (200, 200)
    for hosts in ((), ("evil.com",), ("localhost", "evil.com"), ("localhost", "localhost")):
        assert (status(endpoint, *hosts), asked(chain, *hosts)) == (403, 403)


def test_silent_clients_take_neither_the_files_of_a_role_nor_anybody_s_answer(endpoint: str) -> None:
    before = len(list(Path(f"/proc/{os.getpid()}/fd").iterdir()))
    with silent(endpoint, 300):
        assert requests.get(endpoint, timeout=5).status_code == 200
        # Both ends of a connection are this process's here; its own are 300.
        assert len(list(Path(f"/proc/{os.getpid()}/fd").iterdir())) - before - 300 < 80


@pytest.mark.parametrize(
    ("begin", "drop"),
    [(b"", b""), (b"GET /metrics HTTP/1.1\r\nX: ", b"x"), (b"GET /metrics HTTP/1.1\r\n", b"X: x\r\n")],
    ids=["silent", "a byte at a time", "a header at a time"],
)
def test_a_slow_request_is_cut_off(begin: bytes, drop: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopbackHandler, "timeout", 1.0)
    made = Endpoint(0, lambda: b"", {})
    try:
        assert 0.9 < seconds_until_cut_off(made.url, begin, drop) < 3
    finally:
        made.close()


def test_a_body_that_takes_long_to_come_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiebreak.devnet import launcher

    monkeypatch.setattr(launcher._Handler, "timeout", 1.0)
    made = RpcServer(EmbeddedChain())
    begin = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    try:
        assert 0.9 < seconds_until_cut_off(made.url, begin, b" ") < 3
        assert asked(made.url, "localhost") == 200
    finally:
        made.close()
