"""The embedded chain's own answer to eth_getLogs says what eth-tester's says."""

from __future__ import annotations

from typing import Any

import pytest
from eth_utils.crypto import keccak
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.rpc.chain_errors import RpcRefused
from tiebreak.rpc.node import ChainNode
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from web3.types import RPCEndpoint


def creation_code(runtime: str) -> bytes:
    """Puts `runtime` (hex) on the chain as it is."""
    code = bytes.fromhex(runtime)
    return bytes.fromhex(f"60{len(code):02x}80600b6000396000f3") + code


TALKER = "60003560005260003560206000a160203560003560206000a200"
"""Two events with the first word of the call as data: one about that word, one about it and about the second."""


class Talk:
    """Some blocks with events of two contracts, and some without."""

    def __init__(self) -> None:
        self.chain = EmbeddedChain()
        self.sender = Sender(ChainNode(self.chain), devnet_account(0))
        receipts = [self.sender.send(None, creation_code(TALKER)) for _ in range(2)]
        self.contracts = [receipt.contract for receipt in receipts]
        self.say(0, 1, 2)
        self.chain.request("evm_mine", [])
        self.say(1, 1, 3)
        self.say(0, 7, 2)

    def say(self, which: int, *words: int) -> None:
        address = self.contracts[which]
        assert address is not None
        self.sender.send(address, b"".join(word.to_bytes(32, "big") for word in words))

    def ask(self, **wanted: Any) -> list[dict[str, Any]]:
        found = self.chain.request("eth_getLogs", [wanted])
        assert isinstance(found, list)
        return found

    def ask_eth_tester(self, **wanted: Any) -> list[dict[str, Any]]:
        answer = self.chain._perform(RPCEndpoint("eth_getLogs"), [wanted])["result"]
        return [{key: value for key, value in dict(log).items() if key != "type"} for log in answer]


@pytest.fixture(scope="module")
def talk() -> Talk:
    return Talk()


def word(number: int) -> str:
    return f"0x{number:064x}"


def plain(log: dict[str, Any]) -> tuple[Any, ...]:
    """In one notation, whichever of the two it comes from."""

    def text(value: Any) -> Any:
        return "0x" + bytes(value).hex() if isinstance(value, bytes) else value

    numbers = [int(log[key], 16) if isinstance(log[key], str) else log[key] for key in NUMBERS]
    names = [text(log[key]).lower() for key in ("address", "data", "blockHash", "transactionHash")]
    return (*numbers, *names, *(text(topic) for topic in log["topics"]))


NUMBERS = ("blockNumber", "transactionIndex", "logIndex")


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"fromBlock": "0x0", "toBlock": "0x4"},
        {"fromBlock": "0x5", "toBlock": "latest"},
        {"fromBlock": "0x9", "toBlock": "0x1"},
        {"fromBlock": "0x0", "topics": [word(1)]},
        {"fromBlock": "0x0", "topics": [None, word(2)]},
        {"fromBlock": "0x0", "topics": [[word(7), word(1)], [word(2), word(9)]]},
        {"fromBlock": "0x0", "topics": [word(1), word(3), None]},
        {"fromBlock": "0x0", "topics": [word(8)]},
    ],
)
@pytest.mark.parametrize("contract", [None, 0, 1])
def test_every_question_has_the_answer_of_eth_tester(talk: Talk, wanted: dict[str, Any], contract: int | None) -> None:
    if contract is not None:
        wanted = wanted | {"address": talk.contracts[contract]}
    theirs = talk.ask_eth_tester(**wanted)
    assert [plain(log) for log in talk.ask(**wanted)] == [plain(log) for log in theirs]


def test_there_is_something_to_ask_for(talk: Talk) -> None:
    everything = talk.ask(fromBlock="0x0")
    assert len(everything) == 6 and {log["address"] for log in everything} == set(talk.contracts)
    assert [int(log["logIndex"], 16) for log in everything] == [0, 1] * 3
    assert {len(log["topics"]) for log in everything} == {1, 2}
    assert talk.ask(address=[talk.contracts[0]], fromBlock="0x0") == talk.ask(
        address=talk.contracts[0], fromBlock="0x0"
    )


def test_events_are_there_as_soon_as_their_block_is() -> None:
    talk = Talk()
    before = len(talk.ask(fromBlock="0x0"))
    talk.say(0, 5, 5)
    newest = talk.ask()
    assert len(talk.ask(fromBlock="0x0")) == before + 2 and len(newest) == 2
    assert newest[0]["data"] == word(5) and newest[0]["blockHash"] != "0x" + keccak(b"").hex()


@pytest.mark.parametrize("params", [[], [None], [[]], [{"fromBlock": "-0x1"}], [{"fromBlock": 7}], [{"address": 7}]])
def test_a_malformed_question_is_refused(talk: Talk, params: list[object]) -> None:
    with pytest.raises(RpcRefused):
        talk.chain.request("eth_getLogs", params)
