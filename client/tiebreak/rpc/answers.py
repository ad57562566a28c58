"""Answers of a node, checked: the values of JSON-RPC, and blocks, events and receipts that are made of them.

Formats: https://ethereum.org/en/developers/docs/apis/json-rpc/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address

from tiebreak.rpc.chain_errors import InvalidAnswer

MAX_LOGS = 100_000
"""Most events of one answer."""

Topic = bytes | tuple[bytes, ...] | None
"""Condition on an event's topic: equal to this one, one of these, or anything."""

_QUANTITY = re.compile(r"0x(0|[1-9a-fA-F][0-9a-fA-F]{0,63})")

_DATA = re.compile(r"0x([0-9a-fA-F]{2})*")


@dataclass(frozen=True, slots=True)
class Block:
    """One block; `timestamp` in seconds since 1970, `base_fee` in wei per gas."""

    number: int
    hash: bytes
    timestamp: int
    base_fee: int


@dataclass(frozen=True, slots=True)
class Log:
    """One event as the chain stores it; `index` counts the logs of its block."""

    address: ChecksumAddress
    topics: tuple[bytes, ...]
    data: bytes
    block: int
    block_hash: bytes
    transaction: bytes
    index: int
    transaction_index: int | None = None
    """The transaction's place in its block, where the node gives it."""


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """Result of a transaction. `fee` in wei; `contract`: the address of the contract that it created, if any."""

    transaction: bytes
    block: int
    block_hash: bytes
    succeeded: bool
    gas_used: int
    fee: int
    contract: ChecksumAddress | None
    logs: tuple[Log, ...]


@dataclass(frozen=True, slots=True)
class Fees:
    """Fees of an EIP-1559 transaction, in wei per gas."""

    max_fee: int
    priority_fee: int


def read_block(answer: object) -> Block:
    """A block, checked. Raises InvalidAnswer."""
    block = record(answer, "a block")
    return Block(
        quantity(block.get("number"), "a block number", 2**64 - 1),
        data(block.get("hash"), "a block hash", 32),
        quantity(block.get("timestamp"), "a block's time", 2**64 - 1),
        quantity(block.get("baseFeePerGas", "0x0"), "a base fee", 2**128),
    )


def read_transactions(answer: object) -> list[bytes]:
    """The hashes of a block's transactions, checked. Raises InvalidAnswer."""
    listed = sequence(record(answer, "a block").get("transactions"), "a block's transactions", MAX_LOGS)
    return [data(one, "a transaction's hash", 32) for one in listed]


def wanted_topic(topic: Topic) -> object:
    """A condition as `eth_getLogs` takes it."""
    if topic is None:
        return None
    return "0x" + topic.hex() if isinstance(topic, bytes) else ["0x" + one.hex() for one in topic]


def read_topic(wanted: object) -> Topic:
    """A condition as `wanted_topic` makes it, read back. Raises InvalidAnswer."""
    if wanted is None:
        return None
    if isinstance(wanted, str):
        return data(wanted, "a topic", 32)
    return tuple(data(one, "a topic", 32) for one in sequence(wanted, "topics", MAX_LOGS))


def fits(found: tuple[bytes, ...], topic: Topic) -> bool:
    """Whether an event's topic, if it is there (`found` is empty or has one), meets a condition."""
    if topic is None:
        return True
    return bool(found) and found[0] in ((topic,) if isinstance(topic, bytes) else topic)


def is_removed(item: object) -> bool:
    """True if a log belongs to a block that a reorganisation has dropped."""
    return isinstance(item, dict) and item.get("removed") is True


def read_log(item: object) -> Log:
    """An event, checked. Raises InvalidAnswer."""
    log = record(item, "an event")
    place = log.get("transactionIndex")
    return Log(
        address(log.get("address"), "an event's contract"),
        tuple(data(topic, "an event's topic", 32) for topic in sequence(log.get("topics"), "topics", 4)),
        data(log.get("data"), "an event's data"),
        quantity(log.get("blockNumber"), "an event's block", 2**64 - 1),
        data(log.get("blockHash"), "an event's block hash", 32),
        data(log.get("transactionHash"), "an event's transaction", 32),
        quantity(log.get("logIndex"), "an event's index", 2**64 - 1),
        None if place is None else quantity(place, "a transaction's index", 2**64 - 1),
    )


def read_receipt(answer: object, transaction: bytes) -> TransactionReceipt:
    """The receipt of the transaction with this hash, checked. Raises InvalidAnswer."""
    receipt = record(answer, "a receipt")
    gas = quantity(receipt.get("gasUsed"), "used gas", 2**40)
    found = TransactionReceipt(
        data(receipt.get("transactionHash"), "a receipt's transaction", 32),
        quantity(receipt.get("blockNumber"), "a receipt's block", 2**64 - 1),
        data(receipt.get("blockHash"), "a receipt's block hash", 32),
        quantity(receipt.get("status"), "a receipt's status", 1) == 1,
        gas,
        gas * quantity(receipt.get("effectiveGasPrice"), "a gas price", 2**128),
        optional_address(receipt.get("contractAddress"), "a new contract"),
        tuple(read_log(item) for item in sequence(receipt.get("logs"), "a receipt's events", MAX_LOGS)),
    )
    if found.transaction != transaction:
        raise InvalidAnswer("the node gave the receipt of another transaction: use another node.")
    return found


def block_json(block: Block, transactions: Sequence[bytes] | None = None) -> dict[str, object]:
    """A block as a node gives it, with the fields that were checked."""
    answer: dict[str, object] = {
        "number": hex(block.number),
        "hash": "0x" + block.hash.hex(),
        "timestamp": hex(block.timestamp),
        "baseFeePerGas": hex(block.base_fee),
    }
    return answer if transactions is None else answer | {"transactions": ["0x" + one.hex() for one in transactions]}


def log_json(log: Log) -> dict[str, object]:
    """An event as a node gives it, with the fields that were checked."""
    answer: dict[str, object] = {
        "address": log.address,
        "topics": ["0x" + topic.hex() for topic in log.topics],
        "data": "0x" + log.data.hex(),
        "blockNumber": hex(log.block),
        "blockHash": "0x" + log.block_hash.hex(),
        "transactionHash": "0x" + log.transaction.hex(),
        "logIndex": hex(log.index),
    }
    return answer if log.transaction_index is None else answer | {"transactionIndex": hex(log.transaction_index)}


def receipt_json(receipt: TransactionReceipt) -> dict[str, object]:
    """A receipt as a node gives it, with the fields that were checked."""
    return {
        "transactionHash": "0x" + receipt.transaction.hex(),
        "blockNumber": hex(receipt.block),
        "blockHash": "0x" + receipt.block_hash.hex(),
        "status": hex(receipt.succeeded),
        "gasUsed": hex(receipt.gas_used),
        "effectiveGasPrice": hex(receipt.fee // receipt.gas_used if receipt.gas_used else 0),
        "contractAddress": receipt.contract,
        "logs": [log_json(log) for log in receipt.logs],
    }


def quantity(value: object, what: str, maximum: int = 2**256 - 1) -> int:
    """An unsigned integer of at most 256 bits."""
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        number = int(value, 16)
        if number <= maximum:
            return number
    raise _invalid(value, what, f"a number up to {maximum:#x}")


def data(value: object, what: str, length: int | None = None) -> bytes:
    """Bytes, of exactly `length` if given."""
    if isinstance(value, str) and _DATA.fullmatch(value) and length in (None, len(value) // 2 - 1):
        return bytes.fromhex(value[2:])
    raise _invalid(value, what, "bytes" if length is None else f"{length} bytes")


def address(value: object, what: str) -> ChecksumAddress:
    return to_checksum_address(data(value, what, 20))


def optional_address(value: object, what: str) -> ChecksumAddress | None:
    return None if value is None else address(value, what)


def record(value: object, what: str) -> Mapping[str, object]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise _invalid(value, what, "an object")


def sequence(value: object, what: str, maximum: int) -> list[object]:
    if isinstance(value, list) and len(value) <= maximum:
        return value
    raise _invalid(value, what, f"a list of at most {maximum}")


def _invalid(value: object, what: str, expected: str) -> InvalidAnswer:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return InvalidAnswer(f"the node answered {shown} for {what} where {expected} was due: use another node.")
