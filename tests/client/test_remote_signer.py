"""Signers in other processes: a real one signs, and a hostile one gets nothing past that was not asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import rlp
from eth_account import Account
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.devnet.launcher import find_anvil, start_devnet
from tiebreak.devnet.rpc_server import serve_chain
from tiebreak.rpc.chain_errors import (
    AccountError,
    ChainUnavailable,
    RpcRefused,
    SignerRefused,
    SignerUnavailable,
    Stopped,
    WrongSignature,
)
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import Transport
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.remote_signer import RemoteSigner, connect_signer
from tiebreak.transactions.sender import Sender

OWNER, STRANGER = devnet_account(1), devnet_account(2)
ASKED: dict[str, Any] = {
    "type": 2,
    "chainId": 31337,
    "nonce": 3,
    "value": 10**17,
    "data": b"\x12\x34",
    "gas": 100_000,
    "maxFeePerGas": 20 * 10**9,
    "maxPriorityFeePerGas": 10**9,
    "to": STRANGER.address,
}


class SomeSigner(Transport):
    """A signer with `OWNER`'s key that signs what it is asked to, unless it is told to do otherwise. `clef`: whether it
    speaks clef's external API."""

    name = "http://signer:8550"

    def __init__(self, *, clef: bool = False) -> None:
        super().__init__()
        self.clef = clef
        self.key = OWNER
        self.accounts = [OWNER.address]
        self.change: Callable[[dict[str, Any]], dict[str, Any]] = lambda transaction: transaction
        self.bend: Callable[[bytes], object] = lambda raw: "0x" + raw.hex()
        self.failure: Exception | None = None
        self.asked = 0

    def request(self, method: str, params: list[Any]) -> object:
        if method == ("account_list" if self.clef else "eth_accounts"):
            return self.accounts
        if method != ("account_signTransaction" if self.clef else "eth_signTransaction"):
            raise RpcRefused(method, -32601, "the method does not exist")
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        asked = dict(params[0])
        assert asked.pop("from") == OWNER.address
        numbers = {"chainId", "nonce", "gas", "value", "maxFeePerGas", "maxPriorityFeePerGas", "type"}
        wanted = {name: int(value, 16) if name in numbers else value for name, value in asked.items()}
        raw = bytes(self.key.sign_transaction(self.change(wanted)).raw_transaction)
        shown = self.bend(raw)
        return {"raw": shown, "tx": {}} if self.clef else shown


def remote(signer: SomeSigner, clock: Callable[[], float] = lambda: 0.0) -> RemoteSigner:
    method = "account_signTransaction" if signer.clef else "eth_signTransaction"
    return RemoteSigner(signer, OWNER.address, method, clock)


@pytest.mark.parametrize("clef", [False, True], ids=["eth_signTransaction", "clef"])
@pytest.mark.parametrize("changes", [{}, {"value": 0, "nonce": 0, "data": b""}, {"to": None}], ids=str)
def test_what_a_signer_signs_is_what_the_key_itself_signs(clef: bool, changes: dict[str, Any]) -> None:
    asked = {name: value for name, value in (ASKED | changes).items() if value is not None}
    signed = remote(SomeSigner(clef=clef)).sign_transaction(asked)
    own = OWNER.sign_transaction(asked)
    assert (signed.hash, signed.raw_transaction) == (bytes(own.hash), bytes(own.raw_transaction))


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("nonce", 4, "nonce"),
        ("value", 10**18, "value"),
        ("data", "0x1235", "data"),
        ("gas", 100_001, "gas limit"),
        ("maxFeePerGas", 21 * 10**9, "fee"),
        ("maxPriorityFeePerGas", 10**9 + 1, "priority fee"),
        ("chainId", 1, "chain id"),
        ("to", devnet_account(3).address, "receiver"),
        ("accessList", [{"address": OWNER.address, "storageKeys": []}], "access list"),
    ],
)
def test_a_field_that_was_changed_is_refused_by_name(field: str, value: Any, shown: str) -> None:
    signer = SomeSigner()
    signer.change = lambda transaction: transaction | {field: value}
    with pytest.raises(WrongSignature, match=rf"http://signer:8550 did not .* \(it has changed the {shown}\), and n"):
        remote(signer).sign_transaction(ASKED)


def _upper_form(raw: bytes) -> bytes:
    """The same signature with s above half of the curve's order: valid by its equation, with another hash."""
    *fields, parity, r, s = rlp.decode(raw[1:])
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    other = order - int.from_bytes(s, "big")
    bent = [*fields, b"" if parity else b"\x01", r, other.to_bytes(32, "big").lstrip(b"\0")]
    return raw[:1] + bytes(rlp.encode(bent))


def _nested(depth: int) -> bytes:
    """Lists in lists."""
    lists = b""
    for _ in range(depth):
        length = len(lists).to_bytes(4, "big").lstrip(b"\0")
        head = bytes([0xC0 + len(lists)]) if len(lists) < 56 else bytes([0xF7 + len(length)]) + length
        lists = head + lists
    return b"\x02" + lists


def _with(place: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:1] + rlp.encode([*(fields := rlp.decode(raw[1:]))[:place], value, *fields[place + 1 :]])


BENT: dict[str, Callable[[bytes], object]] = {
    "nothing": lambda raw: None,
    "no hex": lambda raw: "0xzz",
    "half of it": lambda raw: "0x" + raw[: len(raw) // 2].hex(),
    "another type": lambda raw: "0x01" + raw[1:].hex(),
    "a padded nonce": lambda raw: "0x" + _with(1, b"\0" + rlp.decode(raw[1:])[1])(raw).hex(),
    "no signature": lambda raw: "0x" + (raw[:1] + rlp.encode(rlp.decode(raw[1:])[:-3])).hex(),
    "a signature of zeros": lambda raw: "0x" + _with(11, b"")(_with(10, b"")(raw)).hex(),
    "the other parity": lambda raw: "0x" + _with(9, b"\x01" if rlp.decode(raw[1:])[9] == b"" else b"")(raw).hex(),
    "a padded signature": lambda raw: "0x" + _with(10, b"\0" + rlp.decode(raw[1:])[10])(raw).hex(),
    "the upper of two signatures": lambda raw: "0x" + _upper_form(raw).hex(),
    "lists in lists": lambda raw: "0x" + _nested(20_000).hex(),
    "a list for a signature": lambda raw: "0x" + (raw[:1] + rlp.encode([*rlp.decode(raw[1:])[:-1], []])).hex(),
    "a list for a number": lambda raw: "0x" + (raw[:1] + rlp.encode([[], *rlp.decode(raw[1:])[1:]])).hex(),
}


@pytest.mark.parametrize("bent", BENT)
def test_bytes_that_are_something_else_are_refused(bent: str) -> None:
    signer = SomeSigner(clef=bent == "no hex")
    signer.bend = BENT[bent]
    with pytest.raises(WrongSignature, match=r"nothing was sent: find out why before you use it again\.$"):
        remote(signer).sign_transaction(ASKED)


def test_an_answer_that_is_longer_than_the_transaction_is_refused_before_it_is_decoded() -> None:
    """Decoding megabytes of empty fields took minutes, in which a role made no move; lists in lists ended it."""
    signer = SomeSigner()
    for lie in (b"\x02" + rlp.encode([b""] * 100_000), b"\x02\xfb" + bytes(10**5)):
        signer.bend = lambda raw, lie=lie: "0x" + lie.hex()  # type: ignore[misc]
        began = time.process_time()
        with pytest.raises(
            WrongSignature, match=r"\(what it gave is much longer than the transaction\), and nothing was"
        ):
            remote(signer).sign_transaction(ASKED)
        assert time.process_time() - began < 1.0
    signer.bend = lambda raw: "0x" + _nested(20_000).hex()
    with pytest.raises(WrongSignature, match="what it gave is no transaction"):
        remote(signer).sign_transaction(ASKED | {"data": bytes(100_000)})


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (RpcRefused("m", -32000, "request denied"), SignerRefused, r"does not sign \(request denied\): see its rules"),
        (ChainUnavailable("away"), SignerUnavailable, "did not sign within 30 seconds: start it, or have it sign by"),
    ],
)
def test_a_signer_that_will_not_or_cannot_is_asked_again_after_a_while(
    failure: Exception, kind: type[Exception], said: str
) -> None:
    clock = [0.0]
    signer = SomeSigner()
    signer.failure = failure
    key = remote(signer, lambda: clock[0])
    for _ in range(10):
        with pytest.raises(kind, match=said):
            key.sign_transaction(ASKED)
    assert signer.asked == 1, "a person is not asked at every look"
    for seconds, asked in ((5, 2), (9, 2), (1, 3), (60, 4), (60, 5)):
        clock[0] += seconds
        with pytest.raises(kind):
            key.sign_transaction(ASKED)
        assert signer.asked == asked
    signer.failure = None
    clock[0] += 60
    assert Account.recover_transaction(key.sign_transaction(ASKED).raw_transaction) == OWNER.address


def test_nothing_is_sent_and_no_nonce_is_lost_while_a_signer_refuses(tmp_path: Any) -> None:
    node, signer, clock = ChainNode(EmbeddedChain()), SomeSigner(), [0.0]
    sender = Sender(node, remote(signer, lambda: clock[0]), directory=tmp_path)
    assert sender.send(STRANGER.address, b"", value=1).succeeded
    for failure in (RpcRefused("m", -32000, "denied"), ChainUnavailable("away")):
        signer.failure = failure
        with pytest.raises((SignerRefused, SignerUnavailable)):
            sender.submit(STRANGER.address, b"", value=2, purpose="two")
        clock[0] += 60
    signer.failure = None
    signer.change = lambda transaction: transaction | {"value": 10**18}
    with pytest.raises(WrongSignature):
        sender.submit(STRANGER.address, b"", value=2, purpose="two")
    signer.change = lambda transaction: transaction
    before = node.balance(STRANGER.address)
    assert sender.send(STRANGER.address, b"", value=2, purpose="two").succeeded
    assert node.balance(STRANGER.address) == before + 2
    assert node.nonce(OWNER.address) == 2


def test_a_signer_is_found_by_its_accounts() -> None:
    for clef in (False, True):
        signer = SomeSigner(clef=clef)
        server = serve_chain(signer)
        try:
            assert connect_signer(server.url).address == OWNER.address
            assert connect_signer(server.url, OWNER.address).sign_transaction(ASKED).hash
            with pytest.raises(AccountError, match=f"has no account {STRANGER.address}: unlock it there"):
                connect_signer(server.url, STRANGER.address)
            signer.accounts = [OWNER.address, STRANGER.address]
            with pytest.raises(AccountError, match="has 2 accounts: name one with --signer-account"):
                connect_signer(server.url)
            assert connect_signer(server.url, STRANGER.address).address == STRANGER.address
        finally:
            server.stop()
    with pytest.raises(SignerUnavailable, match=r"no signer answers .*http://127.0.0.1:1"):
        connect_signer("http://127.0.0.1:1")
    server = serve_chain(EmbeddedChain())
    try:
        with pytest.raises(SignerRefused, match=r"lists no accounts .*: check that it is clef, web3signer or"):
            connect_signer(server.url)
    finally:
        server.stop()


def test_the_stop_signal_ends_the_wait_for_a_person() -> None:
    stop, asked, answers = threading.Event(), threading.Event(), threading.Event()

    class Person(SomeSigner):
        def request(self, method: str, params: list[Any]) -> object:
            if method == "eth_signTransaction":
                asked.set()
                answers.wait(20)
            return super().request(method, params)

    server = serve_chain(Person())
    try:
        key = connect_signer(server.url, stop=stop)
        threading.Timer(0.0, lambda: stop.set() if asked.wait(20) else None).start()
        with pytest.raises(Stopped, match="stopped while"):
            key.sign_transaction(ASKED)
    finally:
        answers.set()
        server.stop()


def test_anvil_signs_a_payment_and_a_contract() -> None:
    """Anvil is a signer of another project."""
    if find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with start_devnet(kind="anvil") as devnet:
        key = connect_signer(devnet.url, OWNER.address)
        node = ChainNode(key._transport)
        sender = Sender(node, key)
        before = node.balance(STRANGER.address)
        assert sender.send(STRANGER.address, b"", value=5).succeeded
        assert node.balance(STRANGER.address) == before + 5
        created = sender.send(None, bytes.fromhex("600160005360016000f3"))
        assert created.contract is not None and node.code(created.contract) == b"\x01"
