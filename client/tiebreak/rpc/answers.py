"""Answers of a node, checked: values of JSON-RPC, blocks, events and receipts; and the same as JSON again.

Formats: https://ethereum.org/en/developers/docs/apis/json-rpc/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address

from tiebreak.rpc.chain_errors import InvalidAnswer, printable

MAX_LOGS = 100_000
"""Most events of one answer."""

Topic = bytes | tuple[bytes, ...] | None
"""Condition on an event's topic: equal to this one, one of these, or anything."""

_QUANTITY = re.compile(r"0x(0|[1-9a-fA-F][0-9a-fA-F]{0,63})")

_DATA = re.compile(r"0x([0-9a-fA-F]{2})*")

T = TypeVar("T")

Read = Callable[[object, str], Any]
"""Reader of one JSON value. The text names the value in the message of an InvalidAnswer."""


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
    shown = printable(repr(value), 60)
    return InvalidAnswer(f"the node answered {shown} for {what} where {expected} was due: use another node.")


def _optional(read: Read, otherwise: object = None) -> Read:
    return lambda value, what: otherwise if value is None else read(value, what)


def _list(read: Read, most: int = MAX_LOGS) -> Read:
    return lambda value, what: tuple(read(item, what) for item in sequence(value, what, most))


def _json(name: str, read: Read) -> dict[str, Any]:
    """Return the metadata of a field that has this name in JSON-RPC."""
    return {"name": name, "read": read}


_COUNT, _WEI = partial(quantity, maximum=2**64 - 1), partial(quantity, maximum=2**128)
_HASH = partial(data, length=32)


@dataclass(frozen=True, slots=True)
class Block:
    """One block; `timestamp` in seconds since 1970, `base_fee` in wei per gas (0 before there was one)."""

    number: int = field(metadata=_json("number", _COUNT))
    hash: bytes = field(metadata=_json("hash", _HASH))
    timestamp: int = field(metadata=_json("timestamp", _COUNT))
    base_fee: int = field(metadata=_json("baseFeePerGas", _optional(_WEI, 0)))
    transactions: tuple[bytes, ...] | None = field(metadata=_json("transactions", _optional(_list(_HASH))))
    """Hashes of the block's transactions, where the node gives them."""


@dataclass(frozen=True, slots=True)
class Log:
    """One event as the chain stores it; `index` counts the logs of its block."""

    address: ChecksumAddress = field(metadata=_json("address", address))
    topics: tuple[bytes, ...] = field(metadata=_json("topics", _list(_HASH, 4)))
    data: bytes = field(metadata=_json("data", data))
    block: int = field(metadata=_json("blockNumber", _COUNT))
    block_hash: bytes = field(metadata=_json("blockHash", _HASH))
    transaction: bytes = field(metadata=_json("transactionHash", _HASH))
    index: int = field(metadata=_json("logIndex", _COUNT))
    transaction_index: int | None = field(metadata=_json("transactionIndex", _optional(_COUNT)))
    """The transaction's place in its block, where the node gives it."""


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """Result of a transaction. `gas_price` in wei per gas; `contract`: the address of the contract that it created."""

    transaction: bytes = field(metadata=_json("transactionHash", _HASH))
    block: int = field(metadata=_json("blockNumber", _COUNT))
    block_hash: bytes = field(metadata=_json("blockHash", _HASH))
    succeeded: bool = field(metadata=_json("status", lambda value, what: quantity(value, what, 1) == 1))
    gas_used: int = field(metadata=_json("gasUsed", partial(quantity, maximum=2**40)))
    gas_price: int = field(metadata=_json("effectiveGasPrice", _WEI))
    contract: ChecksumAddress | None = field(metadata=_json("contractAddress", _optional(address)))
    logs: tuple[Log, ...] = field(metadata=_json("logs", _list(lambda item, what: read(Log, item, what))))

    @property
    def fee(self) -> int:
        """The fee that was paid, in wei."""
        return self.gas_used * self.gas_price


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction as it was sent; `block`, `block_hash`: those of the block that has it, None as long as none has."""

    hash: bytes = field(metadata=_json("hash", _HASH))
    sender: ChecksumAddress = field(metadata=_json("from", address))
    nonce: int = field(metadata=_json("nonce", _COUNT))
    input: bytes = field(metadata=_json("input", data))
    block: int | None = field(metadata=_json("blockNumber", _optional(_COUNT)))
    block_hash: bytes | None = field(metadata=_json("blockHash", _optional(_HASH)))


@dataclass(frozen=True, slots=True)
class Fees:
    """Fees of an EIP-1559 transaction, in wei per gas."""

    max_fee: int
    priority_fee: int


def read(kind: type[T], answer: object, what: str) -> T:
    """Read a record of one of these kinds. Raises InvalidAnswer."""
    found = record(answer, what)
    shown = ((one.metadata["read"], one.metadata["name"]) for one in fields(kind))  # type: ignore[arg-type]
    return kind(*(read_field(found.get(name), f"the {name} of {what}") for read_field, name in shown))


def read_logs(answer: object) -> list[Log]:
    """Read events, without those of blocks that a reorganisation has dropped. Raises InvalidAnswer."""
    items = sequence(answer, "events", MAX_LOGS)
    kept = (item for item in items if not (isinstance(item, dict) and item.get("removed") is True))
    return [read(Log, item, "an event") for item in kept]


def to_json(value: object) -> object:
    """Return the JSON of a record that this module has read, with no other fields, or of an answer as web3's middleware
    and providers leave it: with numbers, bytes, immutable mappings."""
    if is_dataclass(value):
        shown = {one.metadata["name"]: getattr(value, one.name) for one in fields(value)}
        return to_json({name: int(item) if isinstance(item, bool) else item for name, item in shown.items()})
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)
    return "0x" + value.hex() if isinstance(value, bytes) else value


def fits(found: tuple[bytes, ...], topic: Topic) -> bool:
    """Return whether an event's topic, if it is there (`found` is empty or has one), meets a condition."""
    if topic is None:
        return True
    return bool(found) and found[0] in ((topic,) if isinstance(topic, bytes) else topic)
