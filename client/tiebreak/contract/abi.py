"""Calls, results, errors and events of a compiled contract, encoded and decoded as typed records.

eth-abi reads and writes the bytes, as it does below web3's contract objects. Those take more time, give no typed
records, end in errors of many kinds for bytes that no contract gives, and refuse a whole answer for one text in it that
is no UTF-8.

Strings on the chain are a stranger's bytes: they are read as ASCII, everything unprintable replaced, so that one bad
job cannot keep a client from reading all the others.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from eth_abi.codec import ABICodec
from eth_abi.decoding import ContextFramesBytesIO
from eth_abi.exceptions import DecodingError, EncodingError
from eth_abi.registry import registry
from eth_utils.abi import collapse_if_tuple, event_abi_to_log_topic, function_abi_to_4byte_selector
from eth_utils.address import to_checksum_address

from tiebreak.contract import enums, events, structs
from tiebreak.contract.code import load_artifact
from tiebreak.contract.records import Parameter, kind_of, snake_case
from tiebreak.contract.structs import PostedSpec
from tiebreak.rpc.answers import Log
from tiebreak.rpc.chain_errors import ContractError, InvalidAnswer

_SOLIDITYS_OWN: list[dict[str, Any]] = [
    {"type": "error", "name": "Error", "inputs": [{"name": "message", "type": "string"}]},
    {"type": "error", "name": "Panic", "inputs": [{"name": "code", "type": "uint256"}]},
]

_TIMES = 4
"""Times that a word is read at most: eth-abi reads the words of a struct without arrays twice for every struct around
them, and the contract has them two deep (tests/fuzz/client_targets.py reads all of it)."""


class _BoundedStream(ContextFramesBytesIO):
    """A stream that ends where more is read than it holds: offsets may lead to the same bytes again and again, so that
    an answer of 260 KB is 400 MB of values."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)  # type: ignore[no-untyped-call]
        self._words, self._bytes = _TIMES * len(data), len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        read = super().read(size)
        if len(read) <= 32:
            self._words -= len(read)
        else:
            self._bytes -= len(read)
        if self._words < 0 or self._bytes < 0:
            raise DecodingError("parts of the data are named again and again")
        return read


class _BoundedCodec(ABICodec):
    stream_class = _BoundedStream


_CODEC = _BoundedCodec(registry)


class ContractAbi:
    """The interface of one compiled contract, with the errors of others that it calls."""

    def __init__(self, artifact: Mapping[str, Any], *callees: Mapping[str, Any]) -> None:
        self.entries: list[dict[str, Any]] = artifact["abi"]
        """The artifact's own ABI."""
        entries = [*self.entries, *_SOLIDITYS_OWN]
        errors = [*entries, *(entry for other in callees for entry in other["abi"])]
        self._functions = {entry["name"]: entry for entry in entries if entry["type"] == "function"}
        self._events = {event_abi_to_log_topic(entry): entry for entry in entries if entry["type"] == "event"}
        self._errors = {function_abi_to_4byte_selector(entry): entry for entry in errors if entry["type"] == "error"}

    @classmethod
    @functools.cache
    def load(cls, name: str, *callees: str) -> ContractAbi:
        """Read artifacts that are part of this package."""
        return cls(load_artifact(name), *map(load_artifact, callees))

    def ordered(self, function: str, arguments: Mapping[str, object]) -> tuple[object, ...]:
        """Return the arguments behind the first one, by their names in snake_case, in the function's order. Raises
        TypeError for others than it has."""
        names = [snake_case(item["name"]) for item in self._functions[function]["inputs"][1:]]
        if arguments.keys() != set(names):
            raise TypeError(f"{function} takes {', '.join(names)}")
        return tuple(arguments[name] for name in names)

    def encode_call(self, function: str, *arguments: object) -> bytes:
        """Return selector and arguments. Raises ValueError when an argument does not fit its type."""
        entry = self._functions[function]
        inputs = entry["inputs"]
        try:
            plain = [_plain(item, value) for item, value in zip(inputs, arguments, strict=True)]
            return function_abi_to_4byte_selector(entry) + _CODEC.encode([_type(item) for item in inputs], plain)
        except (EncodingError, TypeError, AttributeError) as error:
            raise ValueError(
                f"an argument of {function} does not fit its type ({error}): give one that does."
            ) from error

    def decode_result(self, function: str, data: bytes) -> Any:
        """Return the value that a call returned, enums and structs as in `enums` and `structs`; None if it returns
        nothing.

        Raises InvalidAnswer."""
        results = _decode(self._functions[function]["outputs"], data, function)
        return results[0] if results else None

    def decode_error(self, data: bytes) -> ContractError:
        """Return the error that a reverted call returned; `Unknown` if no contract of ours has it."""
        known = self._errors.get(data[:4])
        try:
            if known is not None:
                values = _decode(known["inputs"], data[4:], known["name"])
                return ContractError(known["name"], _by_name(known["inputs"], values))
        except InvalidAnswer:
            pass
        return ContractError("Unknown", {"data": data})

    def decode_event(self, log: Log) -> events.Event | None:
        """Return the event in a log; None for one of another interface. Raises InvalidAnswer for a log that does not
        fit."""
        entry = self._events.get(log.topics[0]) if log.topics else None
        if entry is None:
            return None
        inputs, name = entry["inputs"], entry["name"]
        indexed = [item for item in inputs if item["indexed"]]
        others = [item for item in inputs if not item["indexed"]]
        if len(log.topics) != len(indexed) + 1:
            raise InvalidAnswer(f"the node gave an event {name} with too few or too many topics: use another node.")
        values = _by_name(indexed, _decode(indexed, b"".join(log.topics[1:]), name))
        values |= _by_name(others, _decode(others, log.data, name))
        event: events.Event = _record(
            getattr(events, name), (log.block, log.index, log.transaction, *(values[item["name"]] for item in inputs))
        )
        return event

    def events_about(self, parameter: str) -> dict[int, tuple[bytes, ...]]:
        """Return events whose `parameter` is indexed: their first topics, by the place of the parameter's topic."""
        places: dict[int, list[bytes]] = {}
        for topic, entry in self._events.items():
            indexed = [item["name"] for item in entry["inputs"] if item["indexed"]]
            if parameter in indexed:
                places.setdefault(indexed.index(parameter) + 1, []).append(topic)
        return {place: tuple(topics) for place, topics in sorted(places.items())}


def _decode(parameters: Sequence[Parameter], data: bytes, what: str) -> list[Any]:
    try:
        plain = _CODEC.decode([_type(item) for item in parameters], data)
        return [_typed(item, value) for item, value in zip(parameters, plain, strict=True)]
    except (DecodingError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidAnswer(f"the node gave data that does not fit {what}: use another node.") from error


def _type(parameter: Parameter) -> str:
    """Return the type as eth-abi wants it; a string as bytes, because it need not be UTF-8."""
    return collapse_if_tuple(dict(parameter)).replace("string", "bytes")


_MOST_TEXT = 128
"""Bytes of a text that are read. The contract takes no longer ones; a node may make one up that fills a terminal."""


def _typed(parameter: Parameter, value: Any) -> Any:
    """Return a decoded value as its enum, record, checksummed address or text. Raises ValueError for an enum out of
    range."""
    kind: str = parameter["type"]
    if kind.endswith("]"):
        item = _item(parameter)
        return tuple(_typed(item, element) for element in value)
    family, name = kind_of(parameter)
    if family == "enum":
        return getattr(enums, name, int)(value)
    if kind == "tuple":
        values = [_typed(item, element) for item, element in zip(parameter["components"], value, strict=True)]
        return PostedSpec.of(values) if name == "TrainingSpec" else _record(getattr(structs, name), values)
    if kind == "address":
        return to_checksum_address(value)
    if kind == "string":
        text = value[:_MOST_TEXT].decode("ascii", "replace")
        return "".join(character if character.isprintable() else "\ufffd" for character in text)
    return value


def _plain(parameter: Parameter, value: Any) -> object:
    """Return a value as eth-abi encodes it: records as tuples in the ABI's order, text as bytes."""
    kind: str = parameter["type"]
    if kind.endswith("]"):
        item = _item(parameter)
        return tuple(_plain(item, element) for element in value)
    if kind == "tuple":
        if isinstance(value, PostedSpec):
            return value.as_tuple()
        values = [getattr(value, field.name) for field in fields(value)]
        return tuple(_plain(item, element) for item, element in zip(parameter["components"], values, strict=True))
    if kind == "string":
        return str(value).encode("utf-8")
    if kind == "bytes32" and (not isinstance(value, bytes) or len(value) != 32):
        raise TypeError(f"{parameter['name']} has to be 32 bytes")  # eth-abi would pad a short value in silence
    return value


def _item(array: Parameter) -> Parameter:
    """Return the parameter that an array's elements are."""
    return {**array, "type": array["type"][: array["type"].rindex("[")]}


def _by_name(parameters: Sequence[Parameter], values: Sequence[Any]) -> dict[str, Any]:
    return {item["name"]: value for item, value in zip(parameters, values, strict=True)}


def _record(kind: type[Any], values: Sequence[Any]) -> Any:
    """Return a record from its values in the ABI's order, which is that of its fields."""
    return kind(**{field.name: value for field, value in zip(fields(kind), values, strict=True)})
