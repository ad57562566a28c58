"""From the contract's compiled interface to typed values and back.

Strings on the chain are a stranger's bytes: they are read as ASCII, everything unprintable replaced, so that one bad
job cannot keep a client from reading all the others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError, EncodingError
from eth_hash.auto import keccak
from eth_utils.address import to_checksum_address
from roundlog.spec import TrainingSpec

from tiebreak.chain import records
from tiebreak.chain.code import load_artifact
from tiebreak.chain.errors import ContractError, DeploymentError, InvalidAnswer
from tiebreak.chain.events import EVENTS, Event
from tiebreak.chain.node import Log
from tiebreak.chain.spec import PostedSpec

ENUMS: dict[str, type[IntEnum]] = {
    kind.__name__: kind
    for kind in (
        *(records.JobStatus, records.Phase, records.Outcome, records.Reason, records.Side, records.Level),
        *(records.Finding, records.Fault),
    )
}
STRUCTS: dict[str, type[Any]] = {
    "Terms": records.Terms,
    "JobView": records.JobView,
    "ClaimView": records.ClaimView,
    "GameView": records.GameView,
    "LevelView": records.LevelView,
    "OperatorView": records.OperatorView,
    "ElementView": records.ElementView,
    "Bisection": records.Bisection,
    "Clock": records.Clock,
    "Answer": records.Answer,
    "Children": records.Children,
    "LeafOpening": records.LeafOpening,
    "NextRoot": records.NextRoot,
    "OperatorOpening": records.OperatorOpening,
    "OperandRoot": records.OperandRoot,
    "Opening": records.Opening,
    "ElementProof": records.ElementProof,
    "Partial": records.Partial,
    "PartialsOpening": records.PartialsOpening,
    "SegmentProof": records.SegmentProof,
}
_SOLIDITYS_OWN = {
    bytes.fromhex("08c379a0"): ("Error", [{"name": "message", "type": "string"}]),
    bytes.fromhex("4e487b71"): ("Panic", [{"name": "code", "type": "uint256"}]),
}

Parameter = Mapping[str, Any]
"""One entry of `inputs`, `outputs` or `components` in an ABI."""


class ContractAbi:
    """The interface of one compiled contract, with the errors of others that it calls."""

    def __init__(self, artifact: Mapping[str, Any], *callees: Mapping[str, Any]) -> None:
        """Raises DeploymentError when an artifact is not one of this project's."""
        try:
            entries = [entry for entry in artifact["abi"] if entry["type"] in ("function", "event", "error")]
            entries += [entry for other in callees for entry in other["abi"] if entry["type"] == "error"]
            self._functions = {entry["name"]: entry for entry in entries if entry["type"] == "function"}
            self._errors = {_selector(entry): entry for entry in entries if entry["type"] == "error"}
            self._events = {keccak(_signature(entry)): entry for entry in entries if entry["type"] == "event"}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DeploymentError("the contract's artifact is malformed: build the contracts again.") from error

    @classmethod
    @functools.cache
    def load(cls, name: str, *callees: str) -> ContractAbi:
        """Reads artifacts that are part of this package."""
        return cls(load_artifact(name), *map(load_artifact, callees))

    def encode_call(self, function: str, *arguments: object) -> bytes:
        """Selector and arguments. Raises ValueError when an argument does not fit its type."""
        entry = self._functions[function]
        inputs = entry["inputs"]
        try:
            plain = [_plain(item, value) for item, value in zip(inputs, arguments, strict=True)]
            return _selector(entry) + encode([_type(item) for item in inputs], plain)
        except (EncodingError, TypeError, AttributeError) as error:
            raise ValueError(f"an argument of {function} does not fit its type: {error}") from error

    def decode_result(self, function: str, data: bytes) -> Any:
        """What a call returned: one value, enums and structs as in `records`; None if it returns nothing. Raises
        InvalidAnswer."""
        results = _decode(self._functions[function]["outputs"], data, function)
        return results[0] if results else None

    def decode_error(self, data: bytes) -> ContractError:
        """The typed form of what a reverted call returned."""
        known = self._errors.get(data[:4])
        name, inputs = (known["name"], known["inputs"]) if known else _SOLIDITYS_OWN.get(data[:4], ("", []))
        try:
            if name:
                values = _decode(inputs, data[4:], name)
                return ContractError(name, {item["name"]: value for item, value in zip(inputs, values, strict=True)})
        except InvalidAnswer:
            pass
        return ContractError("Unknown", {"data": data})

    def decode_event(self, log: Log) -> Event | None:
        """None for an event of another interface. Raises InvalidAnswer when the log does not fit its event."""
        entry = self._events.get(log.topics[0]) if log.topics else None
        if entry is None:
            return None
        name = entry["name"]
        indexed = [item for item in entry["inputs"] if item["indexed"]]
        others = [item for item in entry["inputs"] if not item["indexed"]]
        if len(log.topics) != len(indexed) + 1:
            raise InvalidAnswer(f"the node gave an event {name} with too few or too many topics: use another node.")
        values = dict(zip(map(_field, indexed), _decode(indexed, b"".join(log.topics[1:]), name), strict=True))
        values |= zip(map(_field, others), _decode(others, log.data, name), strict=True)
        if "index" in values:
            values["leaf_index"] = values.pop("index")
        return EVENTS[name](block=log.block, index=log.index, transaction=log.transaction, **values)

    def events_about(self, parameter: str) -> dict[int, tuple[bytes, ...]]:
        """Which events have `parameter` as an indexed one: their first topics, by the place of the parameter's
        topic.
        """
        places: dict[int, list[bytes]] = {}
        for topic, entry in self._events.items():
            indexed = [item["name"] for item in entry["inputs"] if item["indexed"]]
            if parameter in indexed:
                places.setdefault(indexed.index(parameter) + 1, []).append(topic)
        return {place: tuple(topics) for place, topics in sorted(places.items())}

    def event_names(self) -> set[str]:
        return {entry["name"] for entry in self._events.values()}


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _decode(parameters: Sequence[Parameter], data: bytes, what: str) -> list[Any]:
    try:
        plain = decode([_type(item) for item in parameters], data)
        return [_typed(item, value) for item, value in zip(parameters, plain, strict=True)]
    except (DecodingError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidAnswer(f"the node gave data that does not fit {what}: use another node.") from error


def _type(parameter: Parameter) -> str:
    """The type as eth-abi wants it; a string as bytes, because it need not be UTF-8."""
    kind: str = parameter["type"]
    if kind.startswith("tuple"):
        return "(" + ",".join(_type(item) for item in parameter["components"]) + ")" + kind.removeprefix("tuple")
    return kind.replace("string", "bytes")


def _typed(parameter: Parameter, value: Any) -> Any:
    """A decoded value as its enum, record, checksummed address or text. Raises ValueError for an enum out of range."""
    kind: str = parameter["type"]
    if kind.endswith("]"):
        item = {
            **parameter,
            "type": kind[: kind.rindex("[")],
            "internalType": re.sub(r"\[\d*\]$", "", parameter.get("internalType", "")),
        }
        return tuple(_typed(item, element) for element in value)
    family, _, name = parameter.get("internalType", "").partition(" ")
    name = name.rsplit(".", 1)[-1]
    if family == "enum":
        return ENUMS[name](value)
    if kind == "tuple":
        fields = {
            _field(item): _typed(item, element) for item, element in zip(parameter["components"], value, strict=True)
        }
        if name == "TrainingSpec":
            referee, adjudicator = fields.pop("referee"), fields.pop("adjudicator")
            return PostedSpec(TrainingSpec(**fields), referee, adjudicator)
        return STRUCTS[name](**fields)
    if kind == "address":
        return to_checksum_address(value)
    if kind == "string":
        text = value.decode("ascii", "replace")
        return "".join(character if character.isprintable() else "\ufffd" for character in text)
    return value


def _plain(parameter: Parameter, value: Any) -> object:
    """The opposite direction: records as tuples in the ABI's order, text as bytes."""
    kind: str = parameter["type"]
    if kind.endswith("]"):
        item = {**parameter, "type": kind[: kind.rindex("[")]}
        return tuple(_plain(item, element) for element in value)
    if kind == "tuple":
        if isinstance(value, PostedSpec):
            return value.as_tuple()
        return tuple(_plain(item, getattr(value, _field(item))) for item in parameter["components"])
    if kind == "string":
        return str(value).encode("utf-8")
    if kind == "bytes32" and (not isinstance(value, bytes) or len(value) != 32):
        raise TypeError(f"{parameter['name']} has to be 32 bytes")  # eth-abi would pad a short value in silence
    return value


def _field(parameter: Parameter) -> str:
    return snake_case(parameter["name"])


def _signature(entry: Parameter) -> bytes:
    return f"{entry['name']}({','.join(map(_canonical, entry['inputs']))})".encode("ascii")


def _canonical(parameter: Parameter) -> str:
    kind: str = parameter["type"]
    if kind.startswith("tuple"):
        return "(" + ",".join(map(_canonical, parameter["components"])) + ")" + kind.removeprefix("tuple")
    return kind


def _selector(entry: Parameter) -> bytes:
    return bytes(keccak(_signature(entry))[:4])
