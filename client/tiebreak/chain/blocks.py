"""Blocks, events, receipts and fees as a node tells of them, and the readers that check each.

Formats: https://ethereum.org/en/developers/docs/apis/json-rpc/
"""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress

from tiebreak.chain import answers
from tiebreak.chain.errors import InvalidAnswer

MAX_LOGS = 100_000
"""Most events of one answer."""

Topic = bytes | tuple[bytes, ...] | None
"""Condition on an event's topic: equal to this one, one of these, or anything."""


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


@dataclass(frozen=True, slots=True)
class Receipt:
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
    block = answers.record(answer, "a block")
    return Block(
        answers.quantity(block.get("number"), "a block number", 2**64 - 1),
        answers.data(block.get("hash"), "a block hash", 32),
        answers.quantity(block.get("timestamp"), "a block's time", 2**64 - 1),
        answers.quantity(block.get("baseFeePerGas", "0x0"), "a base fee", 2**128),
    )


def wanted_topic(topic: Topic) -> object:
    """A condition as `eth_getLogs` takes it."""
    if topic is None:
        return None
    return "0x" + topic.hex() if isinstance(topic, bytes) else ["0x" + one.hex() for one in topic]


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
    log = answers.record(item, "an event")
    return Log(
        answers.address(log.get("address"), "an event's contract"),
        tuple(
            answers.data(topic, "an event's topic", 32) for topic in answers.sequence(log.get("topics"), "topics", 4)
        ),
        answers.data(log.get("data"), "an event's data"),
        answers.quantity(log.get("blockNumber"), "an event's block", 2**64 - 1),
        answers.data(log.get("blockHash"), "an event's block hash", 32),
        answers.data(log.get("transactionHash"), "an event's transaction", 32),
        answers.quantity(log.get("logIndex"), "an event's index", 2**64 - 1),
    )


def read_receipt(answer: object, transaction: bytes) -> Receipt:
    """The receipt of the transaction with this hash, checked. Raises InvalidAnswer."""
    receipt = answers.record(answer, "a receipt")
    gas = answers.quantity(receipt.get("gasUsed"), "used gas", 2**40)
    found = Receipt(
        answers.data(receipt.get("transactionHash"), "a receipt's transaction", 32),
        answers.quantity(receipt.get("blockNumber"), "a receipt's block", 2**64 - 1),
        answers.data(receipt.get("blockHash"), "a receipt's block hash", 32),
        answers.quantity(receipt.get("status"), "a receipt's status", 1) == 1,
        gas,
        gas * answers.quantity(receipt.get("effectiveGasPrice"), "a gas price", 2**128),
        answers.optional_address(receipt.get("contractAddress"), "a new contract"),
        tuple(read_log(item) for item in answers.sequence(receipt.get("logs"), "a receipt's events", MAX_LOGS)),
    )
    if found.transaction != transaction:
        raise InvalidAnswer("the node gave the receipt of another transaction: use another node.")
    return found
