"""A node that gives prepared answers, and the answers of a good one."""

from __future__ import annotations

from typing import Any

from tiebreak.rpc.transport import Transport
from tiebreak.transactions.keys import devnet_account

ADDRESS = devnet_account(0).address
HASH = "0x" + "11" * 32


class Canned(Transport):
    """A transport that gives prepared answers; a callable is called with the parameters."""

    name = "the canned node"

    def __init__(self, **answers: Any) -> None:
        super().__init__()
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
