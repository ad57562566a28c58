"""Nodes behind WebSocket and IPC: real ones, and some that hang, crumble, break off, or never end."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.launcher import find_anvil, start_devnet
from tiebreak.rpc import sockets as module
from tiebreak.rpc.chain_errors import ChainError, ChainUnavailable, InvalidAnswer, RpcRefused, Stopped
from tiebreak.rpc.node import ChainNode, connect
from tiebreak.rpc.sockets import IpcTransport, WebSocketTransport
from tiebreak.rpc.transport import RepeatingTransport
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from websockets.sync.server import ServerConnection, serve

Answer = Callable[[bytes, Callable[[bytes], None]], None]
"""Answers a request: gets its bytes, and sends bytes back by the function; to return without sending says nothing, and
an EOFError breaks the connection."""


@contextmanager
def ipc_node(path: Path, answer: Answer) -> Iterator[RepeatingTransport]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def talk(connection: socket.socket) -> None:
        with connection:
            try:
                while line := connection.recv(1 << 20):
                    answer(line, connection.sendall)
            except (EOFError, OSError):
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield IpcTransport(path, timeout=1.0, deadline=3.0, attempts=2)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextmanager
def web_node(path: Path, answer: Answer) -> Iterator[RepeatingTransport]:
    def talk(connection: ServerConnection) -> None:
        for message in connection:
            pieces: list[bytes] = []
            try:
                answer(message.encode() if isinstance(message, str) else message, pieces.append)
            except EOFError:
                connection.socket.shutdown(socket.SHUT_RDWR)
                return
            if pieces:
                connection.send(b"".join(pieces).decode("utf-8", "replace"))

    with serve(talk, "127.0.0.1", 0, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.socket.getsockname()[1]
        yield WebSocketTransport(f"ws://user:secret@127.0.0.1:{port}/key", timeout=1.0, deadline=3.0, attempts=2)
        server.shutdown()


@pytest.fixture(params=[ipc_node, web_node])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Answer], object]:
    """Starts a node that answers so."""
    return lambda answer: request.param(tmp_path / "node.ipc", answer)


def good(request: bytes, result: object = "0x7", **more: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": json.loads(request)["id"], "result": result} | more).encode()


def test_one_connection_carries_many_requests_and_a_lost_one_is_replaced(node: Callable[..., object]) -> None:
    asked: list[bytes] = []

    def answer(request: bytes, send: Callable[[bytes], None]) -> None:
        asked.append(request)
        if len(asked) == 3:
            raise EOFError
        send(good(request))

    with node(answer) as transport:  # type: ignore[attr-defined]
        for _ in range(5):
            assert transport.request("eth_chainId", []) == "0x7"
    assert len(asked) == 6
    assert json.loads(asked[0]) == {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}


def test_an_answer_in_pieces_is_put_together(tmp_path: Path) -> None:
    """One of the pieces looks like the end."""

    def answer(request: bytes, send: Callable[[bytes], None]) -> None:
        whole = good(request, [{"a": "}"}, {"b": "x" * 200_000}]) + b"\n"
        cut = whole.index(b"}") + 1
        for piece in (whole[:cut], whole[cut : cut + 5], whole[cut + 5 :]):
            send(piece)
            time.sleep(0.02)

    with ipc_node(tmp_path / "ipc", answer) as transport:
        for _ in range(2):
            assert transport.request("eth_getLogs", []) == [{"a": "}"}, {"b": "x" * 200_000}]


def test_many_threads_get_their_own_answers(node: Callable[..., object]) -> None:
    def answer(request: bytes, send: Callable[[bytes], None]) -> None:
        time.sleep(0.005)
        send(good(request, json.loads(request)["params"][0]))

    failures: list[object] = []
    with node(answer) as transport:  # type: ignore[attr-defined]

        def ask(number: int) -> None:
            for index in range(10):
                if (found := transport.request("echo", [f"{number} {index}"])) != f"{number} {index}":
                    failures.append(found)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert failures == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{} ", InvalidAnswer),
        (b"[] ", InvalidAnswer),
        (b'{"jsonrpc": "2.0", "id": 99, "result": "0x1"}', InvalidAnswer),
        (b'{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "x\x1b[2J"}}', ChainError),
        (b"[" * 100_000 + b"]", ChainError),
        (b"\xff\xfe}", ChainError),
    ],
)
def test_nonsense_is_one_clear_error(node: Callable[..., object], body: bytes, kind: type[Exception]) -> None:
    with node(lambda request, send: send(body)) as transport:  # type: ignore[attr-defined]
        with pytest.raises(kind) as caught:
            transport.request("eth_call", [])
        assert "\x1b" not in str(caught.value) and "secret" not in str(caught.value)


def test_a_refusal_is_one(node: Callable[..., object]) -> None:
    error = {"code": 3, "message": "reverted", "data": "0x1234"}

    def answer(request: bytes, send: Callable[[bytes], None]) -> None:
        send(json.dumps({"jsonrpc": "2.0", "id": json.loads(request)["id"], "error": error}).encode())

    with node(answer) as transport, pytest.raises(RpcRefused) as caught:  # type: ignore[attr-defined]
        transport.request("eth_call", [])
    assert caught.value.data == b"\x12\x34"


def test_a_silent_node_is_given_up_in_time_and_at_once_when_told(node: Callable[..., object]) -> None:
    with node(lambda request, send: None) as transport:  # type: ignore[attr-defined]
        began = time.monotonic()
        with pytest.raises(ChainUnavailable) as caught:
            transport.request("eth_chainId", [])
        assert time.monotonic() - began < 5 and "secret" not in str(caught.value)
        transport._stop = threading.Event()
        threading.Timer(0.2, transport._stop.set).start()
        began = time.monotonic()
        with pytest.raises(Stopped):
            transport.request("eth_chainId", [])
        assert time.monotonic() - began < 0.9


def test_an_endless_answer_is_cut_off(node: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER", 10_000)
    endless = node(lambda request, send: send(b'"' + b"x" * 200_000))
    with endless as transport, pytest.raises(InvalidAnswer, match="more than 10000 bytes"):  # type: ignore[attr-defined]
        transport.request("eth_chainId", [])


def test_an_answer_in_crumbs_is_given_up(tmp_path: Path) -> None:
    def answer(request: bytes, send: Callable[[bytes], None]) -> None:
        for _ in range(300):
            send(b"[}")
            time.sleep(0.001)

    with ipc_node(tmp_path / "ipc", answer) as transport, pytest.raises(ChainUnavailable):
        transport.request("eth_chainId", [])


def test_addresses_are_told_apart_and_named_when_nobody_is_there(tmp_path: Path) -> None:
    for address, why in (
        ("nonsense", "nor the path of a socket"),
        ("ftp://127.0.0.1", "nor the path of a socket"),
        ("ws://", "is not a ws"),
        (str(tmp_path / "none.ipc"), "none.ipc"),
        (str(tmp_path), "is not a node's socket"),
        ("node.ipc", "node.ipc"),
    ):
        with pytest.raises(ChainUnavailable, match=why):
            connect(address)
    with pytest.raises(ChainUnavailable) as caught:
        WebSocketTransport("ws://user:secret@127.0.0.1:1/key", attempts=1).request("eth_chainId", [])
    assert "ws://127.0.0.1:1 " in str(caught.value) and "secret" not in str(caught.value)
    left = tmp_path / "left.ipc"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    with pytest.raises(ChainUnavailable, match=r"left\.ipc"):  # of a node that was killed
        IpcTransport(left, attempts=1).request("eth_chainId", [])


def play(node: ChainNode) -> None:
    """A contract is deployed and read: large requests and answers."""
    game = VerificationGame.deploy(Sender(node, devnet_account(9)))
    assert game.job_count() == 0
    assert len(node.code(game.address)) > 10_000


def test_a_real_node_is_the_same_over_websocket() -> None:
    if find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with start_devnet(kind="anvil") as devnet:
        node = connect(devnet.url.replace("http", "ws"))
        play(node)
        assert node.head() == connect(devnet.url).head()


def test_a_real_node_is_the_same_over_ipc(tmp_path: Path) -> None:
    if (anvil := find_anvil()) is None:
        pytest.skip("anvil is not installed: run npm ci")
    place = tmp_path / "a.ipc"
    process = subprocess.Popen(
        [str(anvil), "--port", "0", "--ipc", str(place)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 20
        while not place.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        play(connect(str(place)))
    finally:
        process.kill()
        process.wait()
