"""Events of the embedded chain, for eth_getLogs.

eth-tester walks back from the newest block for every receipt that it looks at, so that a question about a few hundred
blocks takes it seconds. Here every block is read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eth_utils.address import to_checksum_address


class LogIndex:
    """The events of a chain, in JSON-RPC's notation."""

    def __init__(self, chain: Any) -> None:
        """chain: py-evm's."""
        self._chain = chain
        self._blocks: list[list[dict[str, Any]]] = []

    def select(self, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Events that fit the filter object of eth_getLogs. Raises ValueError, TypeError for a malformed one."""
        newest = self._read()
        first, last = (_number(wanted.get(name, "latest"), newest) for name in ("fromBlock", "toBlock"))
        addresses = {to_checksum_address(one) for one in _list(wanted.get("address"))}
        topics = [{one.lower() for one in _list(topic)} for topic in wanted.get("topics") or []]
        return [
            log
            for logs in self._blocks[first : last + 1]
            for log in logs
            if (not addresses or log["address"] in addresses) and _fits(log["topics"], topics)
        ]

    def forget(self) -> None:
        """Forgets all blocks; call it when some were taken back."""
        self._blocks = []

    def _read(self) -> int:
        """Takes in the blocks that have come; returns the newest one's number."""
        newest = int(self._chain.get_canonical_head().block_number)
        for number in range(len(self._blocks), newest + 1):
            block = self._chain.get_canonical_block_by_number(number)
            receipts = block.get_receipts(self._chain.chaindb) if block.transactions else ()
            self._blocks.append(_logs(block, receipts))
        return newest


def _logs(block: Any, receipts: Sequence[Any]) -> list[dict[str, Any]]:
    found = [
        (place, transaction, log)
        for place, (transaction, receipt) in enumerate(zip(block.transactions, receipts, strict=True))
        for log in receipt.logs
    ]
    return [
        {
            "address": to_checksum_address(log.address),
            "topics": [f"0x{topic:064x}" for topic in log.topics],
            "data": "0x" + log.data.hex(),
            "blockNumber": hex(block.number),
            "blockHash": "0x" + block.hash.hex(),
            "transactionHash": "0x" + transaction.hash.hex(),
            "transactionIndex": hex(place),
            "logIndex": hex(index),
            "removed": False,
        }
        for index, (place, transaction, log) in enumerate(found)
    ]


def _number(tag: Any, newest: int) -> int:
    if tag in ("latest", "pending", "safe", "finalized"):
        return newest
    number = 0 if tag == "earliest" else int(tag, 16)
    if number < 0:
        raise ValueError(f"there is no block {number}")
    return number


def _list(value: Any) -> list[str]:
    """A parameter that may be one string, several or none, as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _fits(found: Sequence[str], wanted: Sequence[set[str]]) -> bool:
    """True if an event's topics fit, one by one; an empty set fits any."""
    if len(found) < len(wanted):
        return False
    return all(not any_of or topic in any_of for topic, any_of in zip(found, wanted, strict=False))
