"""The client of pinning services, against a server that keeps the rules of their API, and others that do not."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import requests
from tiebreak.store import FolderStore, open_stores
from tiebreak.store.dagpb import RAW, Cid
from tiebreak.store.kubo import KuboStore
from tiebreak.store.pinning import PinningService, read_token
from tiebreak.store.replicated_store import ReplicatedStore
from tiebreak.store.store_errors import StoreError, StoreUnavailable

from tests.client.http_stand_in import Request, serving
from tests.client.pinning_stand_in import TOKEN, Service

X = str(Cid.of(b"x", RAW))


def client(url: str, token: str = TOKEN, **options: Any) -> PinningService:
    return PinningService(f"{url}/psa", token, **{"pace": 0.01, "attempts": 3, **options})


class Daemon:
    """A Kubo daemon, as far as a pinning service needs one. `called`: the peers that it was told to call."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def addresses(self) -> list[str]:
        return [f"/ip4/192.0.2.1/tcp/{port}" for port in range(30)]

    def connect(self, peers: Sequence[str]) -> None:
        self.called += peers


def test_content_is_pinned_waited_for_and_unpinned() -> None:
    service, daemon = Service(), Daemon()
    with serving(service) as url:
        client(url).pin(X, [daemon])  # type: ignore[list-item]
        (pin,) = service.pins.values()
        assert pin["cid"] == X and len(pin["origins"]) == 20 and len(daemon.called) == 1
        client(url).pin(X)
        assert service.posted == 1
        client(url).unpin(X)
        client(url).unpin(X)
    assert service.pins == {}


def test_only_our_own_requests_are_removed() -> None:
    service = Service()
    theirs = service.add(X, "by hand")
    with serving(service) as url:
        client(url).pin(X)
        assert service.posted == 0, "it is pinned there already"
        client(url).unpin(X)
        assert list(service.pins) == [theirs]


def test_a_service_that_always_has_more_to_remove_holds_nobody_up() -> None:
    """Regression: a service had us remove a thousand pins five times, which took two days."""
    removed: list[str] = []

    def endless(request: Request) -> None:
        if request.command == "DELETE":
            time.sleep(0.05)
            removed.append(request.path)
            return request.send(202)
        pins = [
            {"requestid": f"{i}", "status": "pinned", "pin": {"cid": X, "name": f"tiebreak {X}"}} for i in range(999)
        ]
        return request.send(200, json.dumps({"count": 999, "results": pins}).encode())

    with serving(endless) as url:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"takes too long to unpin .*: the rest is withdrawn when it"):
            client(url, patience=0.5).unpin(X)
        assert time.monotonic() - began < 5 and 2 <= len(removed) < 100


def test_faults_that_pass_are_outlived_and_a_request_whose_answer_is_lost_is_found_again() -> None:
    service = Service()
    with serving(service) as url:
        service.faults = [429, 503]
        client(url).pin(X)
        client(url).unpin(X)
        assert service.pins == {} and service.posted == 1
        service.lose_answers = True
        client(url).pin(X)
    assert service.posted == 2 and len(service.pins) == 1


def test_a_failure_is_told_and_its_request_removed() -> None:
    service = Service("queued", "failed")
    with serving(service) as url, pytest.raises(StoreError, match=r"could not pin .* \(no \[2J peers\)") as caught:
        client(url).pin(X)
    assert "\x1b" not in str(caught.value) and service.pins == {}


def test_a_token_that_is_refused_is_one_clear_error() -> None:
    with serving(Service()) as url, pytest.raises(StoreUnavailable, match="TIEBREAK_PIN_TOKEN") as caught:
        client(url, TOKEN[:-1]).pin(X)
    assert TOKEN[:-1] not in str(caught.value) and "no such token" in str(caught.value)


@pytest.mark.parametrize("status", [401, 500])
def test_the_token_never_stands_in_an_error(status: int) -> None:
    def echo(request: Request) -> None:
        words = {"error": {"reason": request.headers["Authorization"], "details": f"\x1b[31m{TOKEN * 3}"}}
        request.send(status, json.dumps(words).encode())

    with serving(echo) as url, pytest.raises(StoreError) as caught:
        client(url, attempts=1).pin(X)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert TOKEN not in str(chain) and "\x1b" not in str(chain)
        chain = chain.__cause__
    assert TOKEN not in repr(caught.value)


def status(**changes: Any) -> dict[str, Any]:
    return {"requestid": "1", "status": "pinned", "pin": {"cid": X}, "delegates": [], **changes}


HOSTILE = [
    b"", b"[]", b"[" * 100_000, b"\xff\xfe", b"{" + b" " * (1 << 21) + b"}",
    *(
        json.dumps({"count": 1, "results": results}).encode()
        for results in (
            None, [None], [{}], [status(status="PINNED")], [status(status=[])], [status(requestid="")],
            [status(requestid="..")], [status(requestid=7)], [status(requestid="x" * 2000)], [status(pin=None)],
            [status(pin={"cid": 7})], [status(pin={"cid": str(Cid.of(b"y", RAW))})], [status()] * 1001,
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE)
def test_an_answer_that_is_none_is_refused(body: bytes) -> None:
    with serving(lambda request: request.send(200, body)) as url:
        with pytest.raises(StoreUnavailable, match="does not answer like the Pinning Service API") as caught:
            client(url, attempts=1).unpin(X)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("request_id", ["a/../../b", "?x=y#z", "%2e%2e", "a\nb é"])
def test_a_request_id_stays_one_part_of_a_path(request_id: str) -> None:
    paths = []

    def answer(request: Request) -> None:
        paths.append(request.path)
        if "?" in request.path:
            body = {"results": [status(requestid=request_id, pin={"cid": X, "name": f"tiebreak {X}"})]}
            return request.send(200, json.dumps(body).encode())
        return request.send(202)

    with serving(answer) as url:
        client(url).unpin(X)
    removed = [path for path in paths if "?" not in path]
    assert {urllib.parse.unquote(path.removeprefix("/psa/pins/")) for path in removed} == {request_id}
    assert all(path.count("/") == 3 for path in removed)


@pytest.mark.parametrize("address", ["http://pins.example/psa", "ftp://x", "https://", "https://u:p@x", "x"])
def test_an_address_that_would_leak_the_token_is_refused(address: str) -> None:
    with pytest.raises(StoreUnavailable, match="https://"):
        PinningService(address, TOKEN)


@pytest.mark.parametrize("token", ["", "two words", "line\nfeed", "x" * 10_000])
def test_a_token_of_another_form_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(StoreUnavailable, match="copy it again") as caught:
        PinningService("https://x", token)
    assert not token or token not in str(caught.value)


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    assert read_token(file) == TOKEN
    for mode in (0o640, 0o604, 0o644):
        file.chmod(mode)
        with pytest.raises(StoreUnavailable, match="chmod 600"):
            read_token(file)
    with pytest.raises(StoreUnavailable, match="check the path"):
        read_token(tmp_path / "absent")
    monkeypatch.setenv("TIEBREAK_PIN_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    monkeypatch.delenv("TIEBREAK_PIN_TOKEN")
    with pytest.raises(StoreUnavailable, match="TIEBREAK_PIN_TOKEN"):
        read_token(None)


def test_what_is_published_is_pinned_at_the_service_as_well(kubo_url: str) -> None:
    service, warnings = Service(), list[str]()
    with serving(service) as url:
        store = ReplicatedStore([KuboStore(kubo_url)], [client(url)], warn=warnings.append)
        cid = store.add_bytes(b"for the service")
        (pin,) = service.pins.values()
        assert pin["cid"] == cid and pin["origins"] == KuboStore(kubo_url).addresses()
        service.faults = [500] * 9
        other = store.add_bytes(b"not yet")
        assert len(warnings) == 1 and other in warnings[0] and TOKEN not in warnings[0]
        service.faults = []
        store.mend()
        assert {pin["cid"] for pin in service.pins.values()} == {cid, other}
        store.unpin(cid)
        assert {pin["cid"] for pin in service.pins.values()} == {other}
    called = requests.post(f"{kubo_url}/api/v0/called", timeout=10).json()["Strings"]
    assert len(called) >= 2 and set(called) == {"/ip4/192.0.2.9/tcp/4001/p2p/12D3KooW"}


@pytest.mark.parametrize(
    "delegates",
    [
        "x", [7], ["/ip4/1.2.3.4/tcp/1"], ["/ip4/1.2.3.4/tcp/1/p2p/Qm\x1b"], ["/ip4/1.2.3.4/tcp/1/p2p/Qm?arg=/x"],
        ["/dns4/" + "x" * 600 + "/p2p/Qm"],
    ],
)  # fmt: skip
def test_addresses_that_are_none_are_not_called(delegates: object) -> None:
    looks = []

    def answer(request: Request) -> None:
        looks.append(request.path)
        now = status(status="queued" if len(looks) < 3 else "pinned", delegates=delegates)
        listed = request.command == "GET" and "?" in request.path
        request.send(200, json.dumps({"results": []} if listed else now).encode())

    with serving(answer) as url:
        client(url).pin(X, [daemon := Daemon()])  # type: ignore[list-item]
    assert len(looks) == 3 and daemon.called == []


def test_a_folder_alone_cannot_be_pinned_from(tmp_path: Path) -> None:
    service = PinningService("https://pins.example", TOKEN)
    with pytest.raises(StoreUnavailable, match="give Kubo's RPC"):
        open_stores([tmp_path / "a"], services=[service], warn=pytest.fail)
    assert isinstance(open_stores([tmp_path / "a"], warn=pytest.fail), FolderStore)
