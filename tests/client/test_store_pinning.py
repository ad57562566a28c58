"""Pinning services by way of Kubo: its commands kept as its source has them, and answers that are none."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest
from tiebreak.store import FolderStore, open_stores
from tiebreak.store.dagpb import RAW, Cid
from tiebreak.store.kubo import KuboStore
from tiebreak.store.pinning import PinningService
from tiebreak.store.replicated_store import ReplicatedStore
from tiebreak.store.store_errors import StoreError, StoreUnavailable

from tests.client.http_stand_in import Request, serving

X = str(Cid.of(b"x", RAW))


def service(url: str, name: str = "keeper", patience: float = 1.0) -> PinningService:
    return PinningService(name, KuboStore(url, attempts=1), pace=0.01, patience=patience)


def shows(*states: str, seen: list[tuple[str, dict[str, list[str]]]] | None = None) -> Callable[[Request], None]:
    """A daemon whose service shows these states, one a look, the last one again; and its requests, in `seen`."""
    left = [*states]

    def answer(request: Request) -> None:
        url = urllib.parse.urlsplit(request.path)
        command = url.path.removeprefix("/api/v0/pin/remote/")
        if seen is not None:
            seen.append((command, urllib.parse.parse_qs(url.query)))
        state = (left.pop(0) if len(left) > 1 else left[0]) if command == "ls" else "queued"
        lines = [json.dumps({"Status": one, "Cid": X, "Name": ""}) for one in state.split()]
        request.send(200, "\n".join(lines).encode())

    return answer


def test_content_is_pinned_waited_for_and_unpinned(kubo_url: str) -> None:
    warnings = list[str]()
    store = open_stores([kubo_url], pin_service="keeper", warn=warnings.append)
    assert isinstance(store, ReplicatedStore)
    cid = store.add_bytes(b"for the service")
    seen = service(kubo_url)
    assert seen._state(cid) == "pinned" and warnings == []
    seen.pin(cid)
    store.unpin(cid)
    assert seen._state(cid) == ""
    store.unpin(cid)


def test_a_request_that_is_under_way_is_found_again_and_only_ours_are_removed() -> None:
    seen: list[tuple[str, dict[str, list[str]]]] = []
    with serving(shows("queued failed", "pinning", "pinned", seen=seen)) as url:
        service(url).pin(X)
        service(url).unpin(X)
    assert [command for command, _ in seen] == ["ls", "ls", "ls", "rm"]
    assert seen[-1][1]["name"] == [f"tiebreak {X}"] and seen[-1][1]["service"] == ["keeper"]


def test_a_failure_is_told_and_its_request_removed() -> None:
    seen: list[tuple[str, dict[str, list[str]]]] = []
    with serving(shows("failed", "queued", "failed", seen=seen)) as url, pytest.raises(StoreError, match="could not"):
        service(url).pin(X)
    assert [command for command, _ in seen] == ["ls", "rm", "add", "ls", "ls"]
    assert seen[1][1]["status"] == ["failed"]


def test_one_that_takes_too_long_is_left_to_go_on() -> None:
    with serving(shows("queued")) as url, pytest.raises(StoreUnavailable, match=r"has not pinned .* look again later"):
        service(url, patience=0.1).pin(X)


def test_what_a_service_says_is_repeated_nowhere() -> None:
    """It may say the token, which this program does not know and so could not leave out."""

    def echo(request: Request) -> None:
        request.send(500, json.dumps({"Message": "\x1b[31mBearer secret-token"}).encode())

    with serving(echo) as url, pytest.raises(StoreError, match="ipfs pin remote service ls") as caught:
        service(url).pin(X)
    assert "secret" not in repr(caught.value) and caught.value.__cause__ is None


@pytest.mark.parametrize(
    "body", [b"[]", b"[" * 100_000, b"\xff\xfe", b"{" + b" " * (1 << 22), b'{"Status": "PINNED"}', b'{"Status": []}']
)
def test_an_answer_that_is_none_is_refused(body: bytes) -> None:
    with serving(lambda request: request.send(200, body)) as url:
        with pytest.raises(StoreUnavailable, match=r"does not answer like Kubo's RPC|no whole answer") as caught:
            service(url).pin(X)
        assert len(str(caught.value)) < 300


def test_what_is_published_is_pinned_again_once_the_service_is_known(kubo_url: str) -> None:
    warnings = list[str]()
    store = open_stores([kubo_url], pin_service="unknown", warn=warnings.append)
    cid = store.add_bytes(b"not yet")
    assert len(warnings) == 1 and cid in warnings[0] and "the pinning service unknown" in warnings[0]
    open_stores([kubo_url], pin_service="keeper", warn=pytest.fail).mend(frozenset([cid]))
    assert service(kubo_url)._state(cid) == "pinned"


def test_a_folder_alone_cannot_be_pinned_from(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="give Kubo's RPC"):
        open_stores([tmp_path / "a", "gateway+https://x.example"], pin_service="keeper", warn=pytest.fail)
    assert isinstance(open_stores([tmp_path / "a"], warn=pytest.fail), FolderStore)
