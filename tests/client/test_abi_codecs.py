"""The ABI coding against web3's, on random values; and bytes that no contract gives."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_utils.abi import collapse_if_tuple, event_abi_to_log_topic
from eth_utils.address import to_checksum_address
from hexbytes import HexBytes
from tiebreak.contract import enums
from tiebreak.contract.abi import ContractAbi, _typed
from tiebreak.contract.code import ADJUDICATORS_PARTS, LIBRARIES, load_artifact
from tiebreak.rpc.answers import Log
from tiebreak.rpc.chain_errors import InvalidAnswer
from web3 import Web3

ENTRIES: list[dict[str, Any]] = load_artifact("VerificationGame")["abi"]
FUNCTIONS = [entry for entry in ENTRIES if entry["type"] == "function"]
EVENTS = [entry for entry in ENTRIES if entry["type"] == "event"]
OURS = ContractAbi.load("VerificationGame", *LIBRARIES, "Adjudicator", *ADJUDICATORS_PARTS)
THEIRS = Web3().eth.contract(address=to_checksum_address("0x" + "77" * 20), abi=ENTRIES)

Parameter = Mapping[str, Any]


def value_of(parameter: Parameter, dice: random.Random) -> Any:
    """A random value as eth-abi takes it; a third of all numbers are extremes."""
    kind: str = parameter["type"]
    if kind.endswith("]"):
        start = kind.rindex("[")
        count = int(kind[start + 1 : -1] or dice.choice((0, 1, 2, 5)))
        return tuple(value_of({**parameter, "type": kind[:start]}, dice) for _ in range(count))
    family, _, name = parameter.get("internalType", "").partition(" ")
    if family == "enum":
        return dice.choice(list(getattr(enums, name.rsplit(".", 1)[-1]))).value
    if kind == "tuple":
        return tuple(value_of(item, dice) for item in parameter["components"])
    if kind.startswith("uint"):
        most = 2 ** int(kind[4:]) - 1
        return dice.choice((0, most, dice.randint(0, most)))
    if kind == "address":
        return to_checksum_address(dice.randbytes(20))
    if kind == "string":
        return "".join(dice.choices("abcXYZ019-_/", k=dice.choice((0, 1, 46, 128))))
    if kind.startswith("bytes"):
        return dice.randbytes(int(kind[5:]) if kind[5:] else dice.choice((0, 1, 31, 32, 33, 1024)))
    return dice.random() < 0.5


def typed(parameters: list[Parameter], values: tuple[Any, ...]) -> list[Any]:
    """Values as this project's records."""
    found = []
    for parameter, value in zip(parameters, values, strict=True):
        found.append(_typed(parameter, _with_bytes(parameter, value)))
    return found


def _with_bytes(parameter: Parameter, value: Any) -> Any:
    """Values with texts as bytes, as they are decoded."""
    kind: str = parameter["type"]
    if kind.endswith("]"):
        item = {**parameter, "type": kind[: kind.rindex("[")]}
        return tuple(_with_bytes(item, one) for one in value)
    if kind == "tuple":
        return tuple(_with_bytes(item, one) for item, one in zip(parameter["components"], value, strict=True))
    return value.encode() if kind == "string" else value


def encoded(parameters: list[Parameter], values: tuple[Any, ...]) -> bytes:
    return encode([collapse_if_tuple(dict(item)) for item in parameters], values)


def log_of(entry: Parameter, values: tuple[Any, ...]) -> Log:
    """The log of an event."""
    pairs = list(zip(entry["inputs"], values, strict=True))
    topics = [encoded([item], (value,)) for item, value in pairs if item["indexed"]]
    others = [(item, value) for item, value in pairs if not item["indexed"]]
    data = encoded([item for item, _ in others], tuple(value for _, value in others))
    hashes = bytes(32), bytes(32)
    return Log(THEIRS.address, (event_abi_to_log_topic(dict(entry)), *topics), data, 5, hashes[0], hashes[1], 3)


def by_web3(entry: Parameter, log: Log) -> dict[str, Any]:
    """The arguments of an event by web3."""
    receipt = {
        "address": log.address,
        "topics": [HexBytes(topic) for topic in log.topics],
        "data": HexBytes(log.data),
        "blockNumber": log.block,
        "blockHash": HexBytes(log.block_hash),
        "transactionHash": HexBytes(log.transaction),
        "transactionIndex": 0,
        "logIndex": log.index,
    }
    args = getattr(THEIRS.events, entry["name"])().process_log(receipt)["args"]
    return {name: _flat(value) for name, value in args.items()}


def _flat(value: Any) -> Any:
    """A value with structs as tuples, in place of web3's dictionaries."""
    if isinstance(value, Mapping):
        return tuple(_flat(item) for item in value.values())
    return tuple(_flat(item) for item in value) if isinstance(value, list | tuple) else value


def aliased(elements: int, size: int) -> bytes:
    """A result of `batch` all of whose elements lead to the same bytes."""
    element = (1).to_bytes(32, "big") + (64).to_bytes(32, "big") + size.to_bytes(32, "big") + bytes(size)
    offsets = (32 * elements).to_bytes(32, "big") * elements
    return (32).to_bytes(32, "big") + elements.to_bytes(32, "big") + offsets + element


@pytest.mark.parametrize("entry", FUNCTIONS, ids=lambda entry: str(entry["name"]))
def test_calls_are_encoded_as_by_web3_and_results_are_read_back(entry) -> None:  # type: ignore[no-untyped-def]
    dice = random.Random(entry["name"])
    for _ in range(10):
        values = tuple(value_of(item, dice) for item in entry["inputs"])
        ours = OURS.encode_call(entry["name"], *typed(entry["inputs"], values))
        assert "0x" + ours.hex() == THEIRS.encode_abi(entry["name"], list(values))
        values = tuple(value_of(item, dice) for item in entry["outputs"])
        found = OURS.decode_result(entry["name"], encoded(entry["outputs"], values))
        assert [found] == (typed(entry["outputs"], values) or [None])


@pytest.mark.parametrize("entry", EVENTS, ids=lambda entry: str(entry["name"]))
def test_events_are_read_as_by_web3(entry) -> None:  # type: ignore[no-untyped-def]
    dice = random.Random(entry["name"])
    for _ in range(10):
        values = tuple(value_of(item, dice) for item in entry["inputs"])
        log = log_of(entry, values)
        event = OURS.decode_event(log)
        assert event is not None
        args = by_web3(entry, log)
        assert tuple(args[item["name"]] for item in entry["inputs"]) == values
        assert [getattr(event, name) for name in event.__dataclass_fields__][3:] == typed(entry["inputs"], values)


@pytest.mark.parametrize(("elements", "size"), [(1_000, 100_000), (20_000, 32)])
def test_an_answer_whose_parts_are_one_and_the_same_is_refused_at_once(elements: int, size: int) -> None:
    """Regression: 260 KB of offsets to the same bytes made 400 MB of values."""
    data = aliased(elements, size)
    tracemalloc.start()
    begun = time.monotonic()
    try:
        with pytest.raises(InvalidAnswer, match="data that does not fit batch: use another node"):
            OURS.decode_result("batch", data)
        assert tracemalloc.get_traced_memory()[1] < 30 * len(data)
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begun < 20
