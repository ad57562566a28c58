"""Answers of a node, checked: values of JSON-RPC, blocks, events and receipts; and the same as JSON again.

Formats: https://ethereum.org/en/developers/docs/apis/json-rpc/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

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
    """One block; `timestamp` in seconds since 1970, `base_fee` in wei per gas. `transactions`: their hashes."""

    number: int
    hash: bytes
    timestamp: int
    base_fee: int
    transactions: tuple[bytes, ...] | None = None


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
    """Result of a transaction. `gas_price` in wei per gas; `contract`: the address of the contract that it created."""

    transaction: bytes
    block: int
    block_hash: bytes
    succeeded: bool
    gas_used: int
    gas_price: int
    contract: ChecksumAddress | None
    logs: tuple[Log, ...]

    @property
    def fee(self) -> int:
        """The fee that was paid, in wei."""
        return self.gas_used * self.gas_price


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction as it was sent; `block`, `block_hash`: those of the block that has it, None as long as none has."""

    hash: bytes
    sender: ChecksumAddress
    nonce: int
    input: bytes
    block: int | None
    block_hash: bytes | None


@dataclass(frozen=True, slots=True)
class Fees:
    """Fees of an EIP-1559 transaction, in wei per gas."""

    max_fee: int
    priority_fee: int


def read_block(answer: object) -> Block:
    """Read a block. Raises InvalidAnswer."""
    block = record(answer, "a block")
    listed = sequence(block.get("transactions", []), "a block's transactions", MAX_LOGS)
    return Block(
        quantity(block.get("number"), "a block number", 2**64 - 1),
        data(block.get("hash"), "a block hash", 32),
        quantity(block.get("timestamp"), "a block's time", 2**64 - 1),
        quantity(block.get("baseFeePerGas", "0x0"), "a base fee", 2**128),
        tuple(data(one, "a transaction's hash", 32) for one in listed) if "transactions" in block else None,
    )


def read_log(item: object) -> Log:
    """Read an event. Raises InvalidAnswer."""
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


def read_logs(answer: object) -> list[Log]:
    """Read events, without those of blocks that a reorganisation has dropped. Raises InvalidAnswer."""
    items = sequence(answer, "events", MAX_LOGS)
    return [read_log(item) for item in items if not (isinstance(item, dict) and item.get("removed") is True)]


def read_receipt(answer: object) -> TransactionReceipt:
    """Read a receipt. Raises InvalidAnswer."""
    receipt = record(answer, "a receipt")
    created = receipt.get("contractAddress")
    return TransactionReceipt(
        data(receipt.get("transactionHash"), "a receipt's transaction", 32),
        quantity(receipt.get("blockNumber"), "a receipt's block", 2**64 - 1),
        data(receipt.get("blockHash"), "a receipt's block hash", 32),
        quantity(receipt.get("status"), "a receipt's status", 1) == 1,
        quantity(receipt.get("gasUsed"), "used gas", 2**40),
        quantity(receipt.get("effectiveGasPrice"), "a gas price", 2**128),
        None if created is None else address(created, "a new contract"),
        tuple(read_log(item) for item in sequence(receipt.get("logs"), "a receipt's events", MAX_LOGS)),
    )


def read_transaction(answer: object) -> Transaction:
    """Read a transaction. Raises InvalidAnswer."""
    found = record(answer, "a transaction")
    number, block_hash = found.get("blockNumber"), found.get("blockHash")
    return Transaction(
        data(found.get("hash"), "a transaction's hash", 32),
        address(found.get("from"), "a transaction's sender"),
        quantity(found.get("nonce"), "a nonce", 2**64 - 1),
        data(found.get("input"), "a transaction's data"),
        None if number is None else quantity(number, "a transaction's block", 2**64 - 1),
        None if number is None else data(block_hash, "a transaction's block hash", 32),
    )


_RENAMED = {
    "base_fee": "baseFeePerGas",
    "block": "blockNumber",
    "block_hash": "blockHash",
    "transaction": "transactionHash",
    "transaction_index": "transactionIndex",
    "index": "logIndex",
    "succeeded": "status",
    "gas_used": "gasUsed",
    "gas_price": "effectiveGasPrice",
    "contract": "contractAddress",
    "sender": "from",
}
"""Fields of records whose names in JSON-RPC are others -> those names."""

_OPTIONAL = ("transactions", "transaction_index")
"""Fields that a node may leave out."""


def to_json(value: object) -> object:
    """Return what was read as a node gives it, with the fields that were read and no others."""
    if isinstance(value, (Block, Log, Transaction, TransactionReceipt)):
        shown = {one.name: getattr(value, one.name) for one in fields(value)}
        return {
            _RENAMED.get(name, name): to_json(item)
            for name, item in shown.items()
            if item is not None or name not in _OPTIONAL
        }
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, int):
        return hex(value)
    return "0x" + value.hex() if isinstance(value, bytes) else value


def fits(found: tuple[bytes, ...], topic: Topic) -> bool:
    """Return whether an event's topic, if it is there (`found` is empty or has one), meets a condition."""
    if topic is None:
        return True
    return bool(found) and found[0] in ((topic,) if isinstance(topic, bytes) else topic)


def quantity(value: object, what: str, maximum: int = 2**256 - 1) -> int:
    """Read an unsigned integer of at most 256 bits. Raises InvalidAnswer, as all of these do."""
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        number = int(value, 16)
        if number <= maximum:
            return number
    raise _invalid(value, what, f"a number up to {maximum:#x}")


def data(value: object, what: str, length: int | None = None) -> bytes:
    """Read bytes, of exactly `length` if given."""
    if isinstance(value, str) and _DATA.fullmatch(value) and length in (None, len(value) // 2 - 1):
        return bytes.fromhex(value[2:])
    raise _invalid(value, what, "bytes" if length is None else f"{length} bytes")


def address(value: object, what: str) -> ChecksumAddress:
    return to_checksum_address(data(value, what, 20))


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
