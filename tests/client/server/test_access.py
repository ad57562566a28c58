"""Who can ask the text server: names of this machine, pages of origins that were allowed, and those with its key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiebreak.http_server import BackgroundServer, bounded_server, listen_at, url_of
from tiebreak.server.completion_server import GuardedApplication, make_completion_app

from tests.client.server.asking import API_KEY, JSON, exchange
from tests.client.server.conftest import PAGE, Served
from tests.client.troublesome_clients import status

CHAT, BEARER = "/v1/chat/completions", f"Bearer {API_KEY}"
PATHS = ("/v1/models", CHAT, "/v1/receipts/0x00", "/health", "/nothing")


WRONG_KEYS = [
    *([], [""], ["Bearer"], ["Bearer "], [API_KEY], [f"Basic {API_KEY}"], [f"Bearer  {API_KEY}"], [BEARER[:-1]]),
    *([f"{BEARER}x"], [BEARER.upper()], [f"{BEARER}, {BEARER}"], ["Bearer schl\xfcssel"], ["Bearer " + "x" * 14_000]),
    *([BEARER, "Bearer x"], ["Bearer x", BEARER], [BEARER, BEARER]),
]
OTHER_ORIGINS = [
    *("null", "*", "", "https://evil.com", "https://chat.example.evil.com", "http://chat.example"),
    *("https://CHAT.example", "https://chat.example/", "https://chat.example:443", f"{PAGE}, {PAGE}"),
]


@pytest.fixture(scope="module")
def locked(served: Served) -> Iterator[str]:
    """Address of another server of the same service, with a key."""
    app = make_completion_app(served.service)
    guarded = GuardedApplication(app, loopback=True, origins=[PAGE], api_key=API_KEY.encode())
    listening = listen_at("127.0.0.1", 0)
    beside = BackgroundServer(bounded_server(guarded), listening, "locked")
    assert beside.start()
    yield url_of(listening)
    beside.stop()


@pytest.mark.slow
def test_openais_client_is_answered_with_the_key_alone(served: Served, locked: str) -> None:
    from openai import AuthenticationError, OpenAI  # some seconds

    how = {"model": served.service.model, "prompt": "x", "max_tokens": 2, "seed": 1}
    right = OpenAI(base_url=f"{locked}v1", api_key=API_KEY, max_retries=0).completions
    text = right.create(**how).choices[0].text
    assert text == "".join(event.choices[0].text for event in right.create(**how, stream=True))
    with pytest.raises(AuthenticationError, match="Authorization: Bearer <key>") as refused:
        OpenAI(base_url=f"{locked}v1", api_key="another", max_retries=0).completions.create(**how)
    assert refused.value.code == "invalid_api_key"
    for path in PATHS:
        assert exchange(locked, path, headers={}).status == (200 if path == "/health" else 401), path
        assert exchange(locked, path, b"{" * 99, headers={}).status == (405 if path == "/health" else 401), path
    assert exchange(locked, f"/v1/models?api_key={API_KEY}", headers={}).status == 401
    assert exchange(locked, "/health", headers={}).response == b""


@pytest.mark.parametrize("values", WRONG_KEYS)
def test_anything_but_the_key_once_is_refused(locked: str, values: list[str]) -> None:
    more = "".join(f"Authorization: {value}\r\n" for value in values)
    assert status(f"{locked}v1/models", "localhost", more=more) == 401
    assert status(f"{locked}v1/models", "localhost", more=f"authorization: bearer {API_KEY}\r\n") == 200


def test_pages_of_an_allowed_origin_read_answers_and_refusals(served: Served, locked: str) -> None:
    body = {"model": served.service.model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    pages = JSON | {"Origin": PAGE}
    for wanted, found in (
        (200, exchange(locked, CHAT, body, headers=pages)),
        (200, exchange(locked, CHAT, body | {"stream": True}, headers=pages)),
        (200, exchange(locked, "/health", headers={"Origin": PAGE})),
        (400, exchange(locked, CHAT, body | {"n": 0}, headers=pages)),
        (401, exchange(locked, CHAT, body, headers={"Origin": PAGE})),
        (404, exchange(locked, "/nothing", headers=pages)),
        (415, exchange(served.url, CHAT, body, headers={"Origin": PAGE})),
    ):
        assert found.status == wanted and found.headers["access-control-allow-origin"] == PAGE, found
        assert "Tiebreak-Receipt" in found.headers["access-control-expose-headers"]
        assert found.headers["vary"] == "Origin" and "access-control-allow-credentials" not in found.headers
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true"}
    asks["Access-Control-Request-Headers"] = "authorization,content-type,x-stainless-os"
    found = exchange(locked, CHAT, method="OPTIONS", headers=asks)
    assert found.status == 200 and found.headers["access-control-allow-origin"] == PAGE
    assert found.headers["access-control-allow-headers"] == asks["Access-Control-Request-Headers"]


@pytest.mark.parametrize("origin", OTHER_ORIGINS)
def test_pages_of_other_origins_are_told_nothing_of_theirs(served: Served, origin: str) -> None:
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    for method, wanted in (("GET", 200), ("OPTIONS", 405)):
        found = exchange(served.url, "/v1/models", method=method, headers=headers)
        assert found.status == wanted and "access-control" not in str(found.headers)


@pytest.mark.parametrize("host", ["evil.com", "localhost:80@evil.com", "localhost.", ""])
def test_an_allowed_origin_and_the_key_are_no_name_of_this_machine(locked: str, host: str) -> None:
    """A page whose own name was made to point here is refused whatever else it sends, before all else."""
    headers = JSON | {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Host": host}
    for path in PATHS:
        for method in ("GET", "OPTIONS", "POST"):
            found = exchange(locked, path, b"{}" if method == "POST" else None, method=method, headers=headers)
            assert found.status in (400, 403) and "access-control" not in str(found.headers), (path, method, found)
