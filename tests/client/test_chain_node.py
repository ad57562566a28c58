"""Nodes that answer wrongly, rudely or not at all, and the development chains."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import requests
from tiebreak.chain import transport as transport_module
from tiebreak.chain.accounts import devnet_account
from tiebreak.chain.devnet import ANVIL_VARIABLE, find_anvil, start_devnet
from tiebreak.chain.devnet_accounts import BALANCE
from tiebreak.chain.embedded import EmbeddedChain
from tiebreak.chain.errors import ChainUnavailable, DevnetError, InvalidAnswer, RpcRefused
from tiebreak.chain.node import Node, connect
from tiebreak.chain.rpc_server import MAX_REQUEST
from tiebreak.chain.sender import Sender
from tiebreak.chain.transport import HttpTransport

ADDRESS = devnet_account(0).address
HASH = "0x" + "11" * 32


class Canned:
    """A transport that gives prepared answers; a callable is called with the parameters."""

    name = "the canned node"

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, list[object]]] = []

    def request(self, method: str, params: list[object]) -> object:
        self.asked.append((method, params))
        answer = self.answers[method]
        return answer(*params) if callable(answer) else answer


def block(number: object = "0x5", **changes: object) -> dict[str, object]:
    return {"number": number, "hash": HASH, "timestamp": "0x10", "baseFeePerGas": "0x7"} | changes


def log(number: int, index: int = 0, **changes: object) -> dict[str, object]:
    return {
        "address": ADDRESS.lower(),
        "topics": [HASH],
        "data": "0x00",
        "blockNumber": hex(number),
        "blockHash": HASH,
        "transactionHash": HASH,
        "logIndex": hex(index),
        "removed": False,
    } | changes


def receipt(**changes: object) -> dict[str, object]:
    return {
        "transactionHash": HASH,
        "blockNumber": "0x5",
        "blockHash": HASH,
        "status": "0x1",
        "gasUsed": "0x5208",
        "effectiveGasPrice": "0x2",
        "contractAddress": None,
        "logs": [],
    } | changes


JUNK = [None, True, 7, -1, 1.5, "", "0x", "7", "0xzz", "0x-1", "0x00", "0x 1", "0x" + "f" * 65, "é", [], {}, ["0x1"]]


@pytest.mark.parametrize("junk", JUNK)
def test_a_number_that_is_none_is_refused(junk: object) -> None:
    for method, ask in {
        "eth_chainId": lambda node: node.chain_id,
        "eth_getBalance": lambda node: node.balance(ADDRESS),
        "eth_getTransactionCount": lambda node: node.nonce(ADDRESS),
        "eth_estimateGas": lambda node: node.estimate_gas(ADDRESS, b"", sender=ADDRESS),
        "eth_maxPriorityFeePerGas": lambda node: node.fees(),
    }.items():
        with pytest.raises(InvalidAnswer):
            ask(Node(Canned(**{method: junk})))


@pytest.mark.parametrize("junk", [*JUNK[:6], *JUNK[7:10], "0x1", "0xabc", "0x" + "11" * 31, [], {}])
def test_bytes_that_are_none_or_have_the_wrong_length_are_refused(junk: object) -> None:
    with pytest.raises(InvalidAnswer):
        Node(Canned(eth_sendRawTransaction=junk)).send_raw(b"x")


@pytest.mark.parametrize(
    "junk", [7, "0x1", [], {}, block(None), block(hash="0x11"), block(timestamp="now"), block(number=5)]
)
def test_a_block_that_is_none_is_refused(junk: object) -> None:
    node = Node(Canned(eth_getBlockByNumber=junk))
    with pytest.raises(InvalidAnswer):
        node.head()


def test_another_block_than_the_wanted_one_is_refused() -> None:
    node = Node(Canned(eth_getBlockByNumber=block("0x6")))
    with pytest.raises(InvalidAnswer, match="block 6"):
        node.block(5)
    assert Node(Canned(eth_getBlockByNumber=None)).block(5) is None
    with pytest.raises(InvalidAnswer, match="newest"):
        Node(Canned(eth_getBlockByNumber=None)).head()


@pytest.mark.parametrize(
    "changes",
    [
        {"transactionHash": "0x" + "22" * 32},
        {"status": "0x2"},
        {"status": None},
        {"gasUsed": "0x" + "f" * 20},
        {"contractAddress": "0x1234"},
        {"logs": None},
        {"logs": [7]},
        {"logs": [log(1, topics=["0x11"])]},
        {"logs": [log(1, topics=[HASH] * 5)]},
        {"blockNumber": None},
    ],
)
def test_a_receipt_that_does_not_hold_together_is_refused(changes: dict[str, object]) -> None:
    node = Node(Canned(eth_getTransactionReceipt=receipt(**changes)))
    with pytest.raises(InvalidAnswer):
        node.receipt(bytes.fromhex(HASH[2:]))


def logs_node(answer: Any, head: int = 9, confirmations: int = 0) -> Node:
    return Node(Canned(eth_getLogs=answer, eth_getBlockByNumber=chain(head)), confirmations=confirmations)


def chain(head: int, says: int | None = None, hash_of: Callable[[int], str] = lambda number: HASH) -> Any:
    """Blocks up to `head`; `says`: what is given as the newest one."""

    def answer(tag: str, full: bool) -> object:
        number = (head if says is None else says) if tag == "latest" else int(tag, 16)
        return block(hex(number), hash=hash_of(number)) if tag == "latest" or number <= head else None

    return answer


@pytest.mark.parametrize(
    "items",
    [
        [log(1, address="0x" + "22" * 20)],
        [log(10)],
        [log(3), log(2)],
        [log(2, 1), log(2, 1)],
        [log(2, topics=["0x" + "22" * 32])],
        [log(2, topics=[])],
        [log(2, data="0x0")],
        "0x",
        None,
        [None],
    ],
)
def test_events_that_were_not_asked_for_or_are_out_of_order_are_refused(items: object) -> None:
    with pytest.raises(InvalidAnswer):
        logs_node(items).logs(ADDRESS, from_block=0, topics=[bytes.fromhex(HASH[2:])])


def test_events_of_a_dropped_block_are_not_shown() -> None:
    found = logs_node([log(1), log(2, removed=True), log(3)]).logs(ADDRESS, from_block=0)
    assert [item.block for item in found] == [1, 3]


def test_events_are_shown_only_when_confirmed() -> None:
    def between(query: dict[str, str]) -> list[dict[str, object]]:
        return [log(i) for i in range(int(query["fromBlock"], 16), int(query["toBlock"], 16) + 1)]

    assert len(logs_node(between).logs(ADDRESS, from_block=0)) == 10
    assert [item.block for item in logs_node(between, confirmations=4).logs(ADDRESS, from_block=3)] == [3, 4, 5]
    assert logs_node(between, confirmations=40).logs(ADDRESS, from_block=0) == []


def every_block(query: dict[str, str]) -> list[dict[str, object]]:
    first, until = int(query["fromBlock"], 16), int(query["toBlock"], 16)
    return [log(i) for i in range(first, min(until, 9) + 1)]


def test_a_wanted_last_block_need_not_be_confirmed() -> None:
    found = logs_node(every_block, confirmations=4).logs(ADDRESS, from_block=3, to_block=8)
    assert [item.block for item in found] == [3, 4, 5, 6, 7, 8]
    assert [item.block for item in logs_node(every_block).logs(ADDRESS, from_block=8, to_block=50)] == [8, 9]


@pytest.mark.parametrize("says", [10, 5_000, 10**12, 2**64 - 1])
@pytest.mark.parametrize("confirmations", [0, 1])
def test_a_newest_block_that_the_node_does_not_have_is_no_end_to_search_to(says: int, confirmations: int) -> None:
    head = 9 - confirmations
    liar = Canned(eth_getLogs=every_block, eth_getBlockByNumber=chain(head, says))
    with pytest.raises(InvalidAnswer, match=f"newest block is {says}, but does not have block {says - confirmations}"):
        Node(liar, confirmations=confirmations).logs(ADDRESS, from_block=0)
    assert "eth_getLogs" not in [method for method, _ in liar.asked]


def test_a_node_that_has_made_up_all_the_blocks_there_could_be_keeps_nobody_busy() -> None:
    liar = Canned(eth_getLogs=[], eth_getBlockByNumber=chain(2**64 - 1))
    with pytest.raises(InvalidAnswer, match="use another node"):
        Node(liar).logs(ADDRESS, from_block=0)
    assert len(liar.asked) < 5


def test_after_a_newest_block_that_was_not_one_every_event_is_found() -> None:
    node = Canned(eth_getLogs=every_block, eth_getBlockByNumber=chain(9, 2**40))
    client = Node(node)
    with pytest.raises(InvalidAnswer):
        client.logs(ADDRESS, from_block=0)
    node.answers["eth_getBlockByNumber"] = chain(9)
    assert [item.block for item in client.logs(ADDRESS, from_block=0)] == list(range(10))


def test_a_node_that_is_behind_the_first_block_asked_for_has_not_shown_that_there_is_nothing() -> None:
    with pytest.raises(InvalidAnswer, match="newest block is 9, after it had block 19: wait until it has caught up"):
        logs_node([]).logs(ADDRESS, from_block=20)
    assert logs_node([]).logs(ADDRESS, from_block=10) == []


def test_a_node_that_goes_far_back_is_not_believed_until_it_has_caught_up() -> None:
    node = Canned(eth_getLogs=[], eth_getBlockByNumber=chain(500))
    client = Node(node)
    client.logs(ADDRESS, from_block=0)
    node.answers["eth_getBlockByNumber"] = chain(435)
    with pytest.raises(InvalidAnswer, match="newest block is 435, after it had block 500"):
        client.logs(ADDRESS, from_block=0)
    node.answers["eth_getBlockByNumber"] = chain(436)  # as far as a chain is reorganised
    assert client.logs(ADDRESS, from_block=0) == []
    node.answers["eth_getBlockByNumber"] = chain(501)
    assert client.logs(ADDRESS, from_block=0) == []


def test_events_are_asked_for_again_where_the_chain_was_reorganised_meanwhile() -> None:
    hashes = iter(["11", "22", *["33"] * 10])  # the last block's, before and after the events, again and again
    times = []

    def answer(tag: str, full: bool) -> object:
        return block("0x9", hash=HASH if tag == "latest" else "0x" + next(hashes) * 32)

    def events(query: dict[str, str]) -> list[dict[str, object]]:
        times.append(query)
        return [log(3)] if len(times) == 1 else [log(3), log(4)]

    node = Node(Canned(eth_getLogs=events, eth_getBlockByNumber=answer))
    assert [item.block for item in node.logs(ADDRESS, from_block=0)] == [3, 4]
    assert len(times) == 2


def test_a_node_that_takes_its_last_block_back_every_time_is_one_error() -> None:
    asked = []

    def answer(tag: str, full: bool) -> object:
        asked.append(tag)
        return None if asked.count(tag) % 2 == 0 and tag != "latest" else block("0x9")

    with pytest.raises(InvalidAnswer, match="takes blocks back"):
        Node(Canned(eth_getLogs=[], eth_getBlockByNumber=answer)).logs(ADDRESS, from_block=0)


def test_a_node_that_limits_ranges_still_gives_every_event_once() -> None:
    def stingy(query: dict[str, str]) -> list[dict[str, object]]:
        first, last = int(query["fromBlock"], 16), int(query["toBlock"], 16)
        if last - first > 700:
            raise RpcRefused("eth_getLogs", -32005, "query returned more than 10000 results")
        return [log(i) for i in range(first, last + 1) if i % 97 == 0]

    found = logs_node(stingy, head=5_000).logs(ADDRESS, from_block=10)
    assert [item.block for item in found] == [i for i in range(10, 5_001) if i % 97 == 0]


def test_a_node_that_refuses_even_one_block_is_one_error() -> None:
    def refuse(query: dict[str, str]) -> None:
        raise RpcRefused("eth_getLogs", -32005, "no")

    with pytest.raises(RpcRefused):
        logs_node(refuse).logs(ADDRESS, from_block=0)


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        httpd.server_close()


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"\xff\xfe", b"null", b"[]", b"7", b"{}", b"[" * 100_000, b'{"jsonrpc": "2.0", "id": 1}',
        b'{"jsonrpc": "2.0", "id": 99, "result": "0x1"}', b'{"jsonrpc": "1.0", "id": 1, "result": "0x1"}',
        b'{"jsonrpc": "2.0", "id": null, "result": "0x1"}', b'{"id": 1, "result": "0x1"}',
    ],
)  # fmt: skip
def test_an_answer_that_is_not_json_rpc_is_one_clear_error(body: bytes) -> None:
    with server(lambda handler, _: send(handler, body)) as url:
        with pytest.raises(InvalidAnswer, match=r"127\.0\.0\.1"):
            HttpTransport(url).request("eth_chainId", [])
        with pytest.raises(ChainUnavailable, match="not an Ethereum node"):
            connect(url)


@pytest.mark.parametrize(
    "error",
    [7, "text", [], {"code": "x"}, {"message": 7}, {"code": 3, "message": "m", "data": 7}, {"data": {"data": "0x1"}}],
)
def test_an_error_of_any_shape_is_a_refusal(error: object) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()
    with server(lambda handler, _: send(handler, body)) as url, pytest.raises(RpcRefused):
        HttpTransport(url).request("eth_call", [])


def test_a_refusal_cannot_rewrite_the_terminal() -> None:
    message = "\x1b[2J\x1b]0;owned\x07\n" + "x" * 10_000
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": message}}).encode()
    with server(lambda handler, _: send(handler, body)) as url, pytest.raises(RpcRefused) as caught:
        HttpTransport(url).request("eth_call", [])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "MAX_ANSWER", 1 << 20)
    sent = 0

    def endless(handler: BaseHTTPRequestHandler, _: object) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.end_headers()
        try:
            while sent < 1 << 30:
                handler.wfile.write(b" " * (1 << 16))
                sent += 1 << 16
        except OSError:
            pass

    with server(endless) as url, pytest.raises(InvalidAnswer, match="more than"):
        HttpTransport(url).request("eth_chainId", [])
    assert sent < 1 << 26


def test_a_busy_node_is_asked_again_and_a_redirect_is_not_followed() -> None:
    asked = 0

    def busy(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            send(handler, b"slow down", 429)
        elif asked == 2:
            send(handler, b"bad gateway", 502)
        else:
            send(handler, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "0x7"}).encode())

    with server(busy) as url:
        assert HttpTransport(url).request("eth_chainId", []) == "0x7"
        assert asked == 3
        with server(lambda handler, _: send(handler, b"", 307, Location=url)) as detour, pytest.raises(InvalidAnswer):
            HttpTransport(detour).request("eth_chainId", [])
    assert asked == 3


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    """Half an answer looks like nonsense, but says nothing against the node."""
    calls = []

    def break_off_once(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        calls.append(request["method"])
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": "0x" + "ab" * 5000}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2] if len(calls) == 1 else body)
        handler.close_connection = True

    with server(break_off_once) as url:
        assert HttpTransport(url).request("eth_getCode", []) == "0x" + "ab" * 5000
        assert len(calls) == 2
        calls.clear()
        with pytest.raises(ChainUnavailable, match="the connection broke off"):
            HttpTransport(url, attempts=1).request("eth_getCode", [])


def test_nobody_there_is_one_clear_error_that_keeps_secrets() -> None:
    with pytest.raises(ChainUnavailable, match="start the node") as caught:
        HttpTransport("http://user:password@127.0.0.1:1/v3/api-key", attempts=2).request("eth_chainId", [])
    assert not any(secret in str(caught.value) for secret in ("password", "api-key", "user"))


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "localhost:8545", "http://", "http://x:y", "http://x:99999", "file:///etc"]
)
def test_an_address_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ChainUnavailable, match="http"):
        connect(url)


def test_a_development_chain_has_funded_accounts_and_a_clock_that_moves(node: Node) -> None:
    assert node.balance(ADDRESS) == BALANCE
    assert node.code(ADDRESS) == b""
    assert node.nonce(ADDRESS) == node.nonce(ADDRESS, pending=True) == 0
    before = node.head()
    node.advance_time(10_000)
    assert node.head().timestamp - before.timestamp == 10_000
    sent = Sender(node, devnet_account(0)).send(devnet_account(1).address, b"", value=5)
    assert (sent.gas_used, sent.succeeded) == (21_000, True)
    assert node.balance(devnet_account(1).address) == BALANCE + 5
    found = node.block(sent.block)
    assert found is not None
    assert found.hash == sent.block_hash
    assert 10_000 <= found.timestamp - before.timestamp < 10_060
    assert node.receipt(bytes(32)) is None
    assert node.block(10**6) is None


def test_time_travel_on_any_other_chain_is_refused() -> None:
    def refuse(*_: object) -> None:
        raise RpcRefused("evm_setNextBlockTimestamp", -32601, "method not found")

    with pytest.raises(DevnetError, match="development chain"):
        Node(Canned(evm_setNextBlockTimestamp=refuse, eth_getBlockByNumber=block())).advance_time(1)


def test_time_does_not_run_backwards_or_stand_still() -> None:
    node = connect("embedded")
    for seconds in (0, -1, 2**41):
        with pytest.raises(DevnetError):
            node.advance_time(seconds)


@pytest.mark.parametrize("kind", ["embedded", "anvil"])
def test_a_port_that_is_taken_is_one_clear_error(kind: str) -> None:
    if kind == "anvil" and find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(DevnetError, match="is taken"):
            start_devnet(taken.getsockname()[1], kind=kind)


def test_anvil_where_there_is_none_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ANVIL_VARIABLE, "")
    with pytest.raises(DevnetError, match="npm"):
        start_devnet(kind="anvil")
    with start_devnet() as devnet:
        assert devnet.kind == "embedded"
    monkeypatch.setenv(ANVIL_VARIABLE, "/bin/false")
    with pytest.raises(DevnetError, match="did not start"):
        start_devnet(kind="anvil")
    with pytest.raises(DevnetError, match="kind"):
        start_devnet(kind="mainnet")


def test_a_served_chain_is_shared_by_processes_and_is_gone_when_it_is_closed() -> None:
    script = "import sys; from tiebreak.chain.node import connect; node = connect(sys.argv[1]); node.advance_time(500)"
    with start_devnet(kind="embedded") as devnet:
        node = connect(devnet.url)
        before = node.head()
        subprocess.run([sys.executable, "-c", script, devnet.url], check=True, timeout=60)
        assert node.head().timestamp == before.timestamp + 500
    with pytest.raises(ChainUnavailable):
        HttpTransport(devnet.url, attempts=1).request("eth_chainId", [])


def test_many_threads_can_use_one_served_chain() -> None:
    with start_devnet(kind="embedded") as devnet:
        failures: list[BaseException] = []

        def work(index: int) -> None:
            try:
                sender = Sender(connect(devnet.url), devnet_account(index))
                for _ in range(5):
                    sender.send(ADDRESS, b"", value=1)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert connect(devnet.url).balance(ADDRESS) == BALANCE + 20


def test_the_server_refuses_what_a_web_page_could_send_and_what_is_too_large() -> None:
    good = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []})
    json_type = {"Content-Type": "application/json"}
    with start_devnet(kind="embedded") as devnet:

        def post(body: str | bytes, **headers: str) -> requests.Response:
            return requests.post(devnet.url, data=body, headers=headers, timeout=10)

        assert post(good, **json_type).json()["result"].startswith("0x")
        assert post(good, **{"Content-Type": "text/plain"}).status_code == 403
        assert post(good, **json_type, Origin="http://evil.example").status_code == 403
        assert post(good, **json_type, Host="evil.example").status_code == 403
        assert post(b" " * (MAX_REQUEST + 1), **json_type).status_code == 413
        assert requests.get(devnet.url, timeout=10).status_code == 501
        for bad in ("", "{", "[]", "7", "[" * 100_000, '{"id": [], "method": "x"}', '{"id": 1, "method": 7}'):
            assert "error" in post(bad, **json_type).json()
        for method in ("eth_accounts", "eth_sendTransaction", "admin_peers", "evm_revert", "__init__", "", "x" * 1000):
            answer = post(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": []}), **json_type).json()
            assert "error" in answer
        for method in ("eth_getBalance", "eth_call", "eth_getLogs", "eth_sendRawTransaction", "evm_increaseTime"):
            for params in ([], [None], [{}], ["0x"], [7, 7, 7, 7], [[]], ["zz", "latest"]):
                body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
                answer = post(body, **json_type).json()
                assert ("error" in answer) != ("result" in answer)
        assert post(good, **json_type).json()["result"].startswith("0x")


def test_a_client_that_is_killed_leaves_no_traces_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with start_devnet(kind="embedded") as devnet:
        port = int(devnet.url.rsplit(":", 1)[1])
        before = set(threading.enumerate())
        killed = socket.create_connection(("127.0.0.1", port))
        # A good request: its answer leaves the connection open, and the server's thread waiting for the next one.
        body = b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}'
        killed.sendall(
            b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        assert killed.recv(12) == b"HTTP/1.1 200"
        (serving,) = set(threading.enumerate()) - before
        # With this option the kernel resets the connection, as it does when a process dies with an answer unread.
        killed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        killed.close()
        serving.join(10)
        assert not serving.is_alive()
    assert capfd.readouterr().err == ""


def test_a_slow_client_keeps_nobody_else_waiting() -> None:
    with start_devnet(kind="embedded") as devnet:
        port = int(devnet.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\nhalf")
            started = time.monotonic()
            assert connect(devnet.url).chain_id > 0
            assert time.monotonic() - started < 5


def test_the_embedded_chain_refuses_a_transaction_that_breaks_the_rules() -> None:
    node = Node(EmbeddedChain())
    for raw in (b"", b"\x02", b"\x02\xc0", b"\xff" * 100):
        with pytest.raises(RpcRefused):
            node.send_raw(raw)


def test_a_command_that_only_reads_the_chain_loads_neither_torch_nor_the_store_nor_an_evm() -> None:
    names = "'torch', 'eth_tester', 'web3', 'eth_account', 'ipfshttpclient', 'tiebreak.store'"
    script = f"import sys, tiebreak.chain.game; print([name for name in ({names}) if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["accounts", "embedded"])
def test_deeply_nested_json_cannot_crash_the_process(module: str) -> None:
    script = f"""
import json, tiebreak.chain.{module}, eth_account, eth_tester
for text in ("[" * 10**6, '{{"a":' * 10**6):
    try:
        json.loads(text)
    except RecursionError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "refused"]
