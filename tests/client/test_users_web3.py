"""A user's own `Web3`: any provider and middleware below the contract, and this project's providers below web3."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.devnet.rpc_server import serve_chain
from tiebreak.rpc.chain_errors import ChainUnavailable, ContractError, InvalidAnswer, RpcRefused
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.quorum import QuorumTransport
from tiebreak.rpc.transport import HttpTransport, Transport
from tiebreak.rpc.web3_providers import TransportProvider
from tiebreak.strategy import next_root_of
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from web3 import HTTPProvider, IPCProvider, Web3
from web3.exceptions import ContractCustomError, ProviderConnectionError, Web3RPCError
from web3.middleware import Web3Middleware
from web3.providers import BaseProvider

from tests.client.disputes import TERMS, Cast, Run
from tests.client.hostile_node import HostileNode
from tests.client.http_stand_in import serving


class Counting(Web3Middleware):
    """A middleware that counts the requests that pass through it."""

    asked: ClassVar[Counter[str]] = Counter()

    def request_processor(self, method: Any, params: Any) -> Any:
        self.asked[method] += 1
        return method, params


@pytest.fixture(scope="module")
def chain() -> EmbeddedChain:
    return EmbeddedChain()


@pytest.fixture(scope="module")
def cast(chain: EmbeddedChain) -> Cast:
    return Cast.on(ChainNode(chain))


@pytest.fixture(scope="module")
def url(chain: EmbeddedChain) -> Iterator[str]:
    server = serve_chain(chain)
    yield server.url
    server.stop()


@pytest.mark.slow_but("HTTPProvider")
@pytest.mark.parametrize("kind", [HTTPProvider, lambda url: TransportProvider(HttpTransport(url))])
def test_the_contract_is_read_and_written_through_a_users_web3(kind: Any, url: str, cast: Cast) -> None:
    job = cast.post()
    w3 = Web3(kind(url))  # with web3's own middleware, which makes immutable records of answers
    w3.middleware_onion.add(Counting)
    Counting.asked.clear()
    game = VerificationGame(w3, cast.customer.address)
    assert game.job(job) == cast.customer.job(job)
    assert Counting.asked["eth_call"] == 1
    trainer = VerificationGame(w3, game.address, Sender(game.node, devnet_account(1), patience=20.0))
    before = len(game.events(job=job))
    trainer.send(
        trainer.paying(
            "commit",
            job,
            spec_hash=cast.spec().hash,
            claimed=next_root_of(Run.of().checkpoints),
            final_state_root=Run.of().states[-1],
            log_cid="log",
            model_cid="model",
            bond=TERMS.trainer_bond,
        )
    )
    assert game.job(job).status is JobStatus.CLAIMED
    assert Counting.asked["eth_sendRawTransaction"] == 1
    assert [type(event).__name__ for event in game.events(job=job)[before:]] == ["Committed", "RowShown"]
    with pytest.raises(ContractError, match=r"WrongJobStatus\(job=999, actual=NONE, expected=OPEN\)"):
        game.job(999)
    with pytest.raises(ContractError, match="TooEarly"):
        trainer.send(ContractCall.of("finalize", job))


@pytest.mark.parametrize("several", [False, True])
def test_these_providers_serve_web3(several: bool, chain: EmbeddedChain, url: str, cast: Cast) -> None:
    job = cast.post()
    both: list[Transport] = [HttpTransport(url), HostileNode(chain, "other")]
    w3 = Web3(TransportProvider(QuorumTransport(both) if several else both[0]))
    assert w3.is_connected() and w3.eth.chain_id == cast.customer.node.chain_id
    head = cast.customer.node.head()
    assert (w3.eth.block_number, w3.eth.get_block("latest")["hash"]) == (head.number, head.hash)
    assert w3.eth.get_block(head.number)["timestamp"] == head.timestamp
    assert w3.eth.get_balance(devnet_account(0).address) == cast.customer.node.balance(devnet_account(0).address)
    contract = VerificationGame(w3, cast.customer.address).contract
    assert contract.functions.jobCount().call() == job
    (logs,) = [contract.events.JobPosted().get_logs(from_block=head.number, to_block=head.number)]
    assert logs[-1]["args"]["job"] == job
    (posted,) = w3.eth.get_block(head.number)["transactions"]
    assert w3.eth.get_transaction_receipt(posted)["status"] == 1
    with pytest.raises(ContractCustomError):
        contract.functions.getJob(999).call()
    if several:
        with pytest.raises(Web3RPCError, match="several nodes are not compared in this form: ask one of them"):
            w3.eth.get_block("latest", full_transactions=True)
    with pytest.raises(Web3RPCError, match="no such method"):
        w3.manager.request_blocking("eth_made_up", [])  # type: ignore[arg-type]
    signed = devnet_account(7).sign_transaction(
        {
            **{"to": devnet_account(6).address, "value": 1, "gas": 21_000, "type": 2, "chainId": w3.eth.chain_id},
            **{"nonce": w3.eth.get_transaction_count(devnet_account(7).address), "data": b""},
            **{"maxFeePerGas": 10**11, "maxPriorityFeePerGas": 1},
        }
    )
    assert w3.eth.send_raw_transaction(signed.raw_transaction) == signed.hash


class Raising(BaseProvider):
    """A provider that ends in an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def make_request(self, method: Any, params: Any) -> Any:
        raise self.error


def test_a_node_that_does_not_answer_a_provider_in_time_is_unavailable(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "node.ipc"))
        silent.listen()
        with pytest.raises(ChainUnavailable, match=r"no usable answer from the chain at .*node.ipc to .* \(Timeout\)"):
            ChainNode(Web3(IPCProvider(tmp_path / "node.ipc", timeout=1))).head()
    with pytest.raises(ChainUnavailable, match="no usable answer from the chain at Raising"):
        ChainNode(Raising(ProviderConnectionError("nobody is there"))).head()
    with pytest.raises(ChainUnavailable, match="no usable answer from the chain at HTTPProvider"):
        ChainNode(Web3(HTTPProvider("http://[x", exception_retry_configuration=None))).head()


def test_a_provider_that_is_not_ours_ends_in_the_same_errors() -> None:
    nobody = ChainNode(Web3(HTTPProvider("http://user:secret@127.0.0.1:1/key", exception_retry_configuration=None)))
    with pytest.raises(ChainUnavailable, match=r"no usable answer from the chain at http://127.0.0.1:1 to") as caught:
        nobody.head()
    assert "secret" not in str(caught.value) and "key" not in str(caught.value)
    begun, deep = b'{"jsonrpc": "2.0", "id": 0', b"[" * 11_000 + b"]" * 11_000
    for body in (b"<html>", b"[]", begun + b"}", begun + b', "result": [[]]}', begun + b', "result": ' + deep + b"}"):
        with serving(lambda request, body=body: request.send(200, body)) as url, pytest.raises(InvalidAnswer):
            ChainNode(Web3(HTTPProvider(url))).head()
    refusal = b'{"jsonrpc": "2.0", "id": 0, "error": {"code": 3, "message": "no", "data": "0x1234"}}'
    with serving(lambda request: request.send(200, refusal)) as url, pytest.raises(RpcRefused) as refused:
        ChainNode(Web3(HTTPProvider(url))).head()
    assert (refused.value.code, refused.value.reason, refused.value.data) == (3, "no", b"\x12\x34")
