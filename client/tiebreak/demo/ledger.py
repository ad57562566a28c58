"""What everybody has spent, read from the chain itself and not from what the parties say."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.chain import answers
from tiebreak.chain.node import Node
from tiebreak.chain.transport import Transport


@dataclass(frozen=True, slots=True)
class Spent:
    """One transaction, whether it succeeded or not: who sent it, its gas, its fee in wei."""

    sender: ChecksumAddress
    gas: int
    fee: int


def transactions(node: Node, transport: Transport, first_block: int) -> list[Spent]:
    """All transactions from a block up to the newest one. Raises ChainError."""
    found = []
    for number in range(first_block, node.head().number + 1):
        block = answers.record(transport.request("eth_getBlockByNumber", [hex(number), True]), "a block")
        for item in answers.sequence(block.get("transactions"), "a block's transactions", 1000):
            transaction = answers.record(item, "a transaction")
            receipt = node.receipt(answers.data(transaction.get("hash"), "a transaction's hash", 32))
            assert receipt is not None, "a transaction in a block has a receipt"
            sender = answers.address(transaction.get("from"), "a transaction's sender")
            found.append(Spent(sender, receipt.gas_used, receipt.fee))
    return found
