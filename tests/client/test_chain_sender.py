"""Sending transactions while processes are killed, answers are lost and others are faster."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from eth_account import Account
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.rpc.chain_errors import ContractError, TransactionPending
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import Transport
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.disputes import TERMS, Cast, Run

FRIEND = devnet_account(9).address


class Unreliable(Transport):
    """The embedded chain with a saboteur on the line."""

    name = "the unreliable node"

    def __init__(self) -> None:
        super().__init__()
        self.chain = EmbeddedChain()
        self.on: dict[str, Callable[[list[object]], object]] = {}
        self.sent: list[bytes] = []

    def request(self, method: str, params: list[object]) -> object:
        if method == "eth_sendRawTransaction":
            self.sent.append(bytes.fromhex(str(params[0])[2:]))
        act = self.on.get(method)
        return self.chain.request(method, params) if act is None else act(params)

    def once(self, method: str, act: Callable[[list[object]], object]) -> None:
        def first(params: list[object]) -> object:
            del self.on[method]
            return act(params)

        self.on[method] = first


class Time:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


@pytest.fixture
def line() -> Unreliable:
    return Unreliable()


def sender_on(line: Unreliable, time: Time | None = None, *, index: int = 0, confirmations: int = 0) -> Sender:
    time = time or Time()
    node = ChainNode(line, confirmations=confirmations)
    return Sender(node, devnet_account(index), patience=60.0, clock=lambda: time.now, sleep=time.sleep)


def balance(line: Unreliable) -> int:
    return ChainNode(line.chain).balance(FRIEND)


def test_a_nonce_that_the_node_has_counted_and_lost_is_filled(line: Unreliable) -> None:
    time = Time()

    def nonce(params: list[object]) -> object:
        latest = line.chain.request("eth_getTransactionCount", [params[0], "latest"])
        return hex(int(str(latest), 16) + 1) if params[1] == "pending" else latest

    before = balance(line)
    line.on["eth_getTransactionCount"] = nonce
    assert sender_on(line, time).send(FRIEND, b"", value=7).succeeded
    assert time.now < 40
    assert balance(line) == before + 7
    assert ChainNode(line.chain).nonce(devnet_account(0).address) == 2


def test_a_receipt_is_believed_only_when_enough_blocks_lie_on_it(line: Unreliable) -> None:
    time, node = Time(), ChainNode(line.chain)
    mined = 0

    def mine() -> None:
        nonlocal mined
        mined += 1
        node.advance_time(12)

    time.on_sleep = mine
    receipt = sender_on(line, time, confirmations=3).send(FRIEND, b"", value=7)
    assert mined == 3
    assert node.head().number == receipt.block + 3


def test_a_foreign_transaction_hash_is_not_believed(line: Unreliable) -> None:
    line.on["eth_sendRawTransaction"] = lambda params: "0x" + "11" * 32
    with pytest.raises(TransactionPending, match="no block has taken"):
        sender_on(line).send(FRIEND, b"", value=7)


def test_a_call_that_fails_only_in_its_block_still_gets_the_contracts_reason(line: Unreliable) -> None:
    cast = Cast.on(ChainNode(line))
    job = cast.post()
    cast.commit(job, Run.of())
    ChainNode(line).advance_time(TERMS.challenge_window + 1)
    other = VerificationGame(
        ChainNode(line.chain), cast.trainer.address, Sender(ChainNode(line.chain), devnet_account(8))
    )

    def be_faster(params: list[object]) -> object:
        other.send(other.finalize(job))
        return line.chain.request("eth_sendRawTransaction", params)

    before = ChainNode(line).nonce(devnet_account(1).address)
    line.once("eth_sendRawTransaction", be_faster)
    with pytest.raises(ContractError) as caught:
        cast.trainer.send(cast.trainer.finalize(job))
    assert (caught.value.name, caught.value.values["actual"]) == ("WrongJobStatus", JobStatus.FINAL)
    assert ChainNode(line).nonce(devnet_account(1).address) == before + 1  # it was mined, and failed there


def test_an_account_without_money_says_so(line: Unreliable) -> None:
    poor = Account.create()
    with pytest.raises(Exception, match=f"{poor.address} cannot pay"):
        Sender(ChainNode(line), poor).send(FRIEND, b"", value=1)
