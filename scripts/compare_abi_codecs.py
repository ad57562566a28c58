"""Holds the ABI coding of `tiebreak.contract.abi` against web3's, on random calls, results and events of the contract.

    .venv/bin/python scripts/compare_abi_codecs.py --seconds 20

Both are eth-abi below. What differs is told: times (as ratios within one interleaved run), what each makes of bytes
that no contract gives, and what an answer whose offsets lead to the same bytes again and again takes.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from eth_abi.abi import encode
from eth_abi.codec import ABICodec
from eth_abi.decoding import ContextFramesBytesIO
from eth_abi.registry import registry
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


def hostile(data: bytes, dice: random.Random) -> bytes:
    """Bytes that no contract gives: too short, too long, with words that are huge, negative or lead elsewhere."""
    kind = dice.randrange(4)
    if kind == 0:
        return data[: dice.randrange(len(data) + 1)]
    if kind == 1:
        return data + dice.randbytes(dice.choice((1, 32, 100)))
    words = bytearray(data)
    for _ in range(dice.choice((1, 1, 3))):
        if len(words) >= 32:
            place = 32 * dice.randrange(len(words) // 32)
            number = dice.choice((0, 1, 32, 2**31, 2**63, 2**64, 2**255, 2**256 - 1, dice.randrange(len(words))))
            words[place : place + 32] = number.to_bytes(32, "big")
    return bytes(words)


def aliased(elements: int, size: int) -> bytes:
    """A result of `batch` all of whose elements lead to the same bytes."""
    element = (1).to_bytes(32, "big") + (64).to_bytes(32, "big") + size.to_bytes(32, "big") + bytes(size)
    offsets = (32 * elements).to_bytes(32, "big") * elements
    return (32).to_bytes(32, "big") + elements.to_bytes(32, "big") + offsets + element


def outcome(decode: Callable[..., object], *arguments: object) -> str:
    """The end of a decoding: an error's name, or that it gives a value."""
    try:
        decode(*arguments)
    except Exception as error:  # that is what is asked
        return type(error).__name__
    return "a value"


class CountingStream(ContextFramesBytesIO):
    """A stream that keeps how many times its words are read, the most of all."""

    most = 0.0

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._words, self._size = 0, max(1, len(data))

    def read(self, size: int | None = -1, /) -> bytes:
        read = super().read(size)
        self._words += len(read) if len(read) <= 32 else 0
        CountingStream.most = max(CountingStream.most, self._words / self._size)
        return read


class CountingCodec(ABICodec):
    """eth-abi's codec with that stream."""

    stream_class = CountingStream


def times_read(dice: random.Random, tries: int) -> float:
    """Times that the words of what the contract gives are read by eth-abi, at most."""
    codec = CountingCodec(registry)
    for entry in (entry for _ in range(tries) for entry in (*FUNCTIONS, *EVENTS)):
        parameters = entry.get("outputs", entry["inputs"])
        values = tuple(value_of(item, dice) for item in parameters)
        codec.decode([collapse_if_tuple(dict(item)) for item in parameters], encoded(parameters, values))
    return CountingStream.most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="time for the comparison")
    options = parser.parse_args()
    dice, ends = random.Random(1), time.monotonic() + options.seconds
    spent: Counter[str] = Counter()
    ended: Counter[tuple[str, str]] = Counter()
    count = 0

    def timed(what: str, work: Callable[..., Any], *arguments: Any) -> Any:
        begun = time.perf_counter()
        found = work(*arguments)
        spent[what] += time.perf_counter() - begun
        return found

    while time.monotonic() < ends:
        count += 1
        entry = dice.choice(FUNCTIONS)
        values = tuple(value_of(item, dice) for item in entry["inputs"])
        arguments = typed(entry["inputs"], values)
        ours = timed("encode ours", OURS.encode_call, entry["name"], *arguments)
        theirs = timed("encode web3", THEIRS.encode_abi, entry["name"], list(values))
        assert ours == bytes.fromhex(theirs[2:]), entry["name"]
        event = dice.choice(EVENTS)
        log = log_of(event, tuple(value_of(item, dice) for item in event["inputs"]))
        found = timed("event ours", OURS.decode_event, log)
        args = timed("event web3", by_web3, event, log)
        assert found is not None
        shown = [getattr(found, name) for name in found.__dataclass_fields__][3:]
        assert shown == typed(event["inputs"], tuple(args[item["name"]] for item in event["inputs"])), event["name"]
        bent = replace(log, data=hostile(log.data, dice))
        pair = outcome(OURS.decode_event, bent), outcome(by_web3, event, bent)
        ended[pair] += 1
        assert pair[0] in ("a value", InvalidAnswer.__name__), pair
    print(f"{count} calls and events are the same by both")
    print(f"web3 encodes a call in {spent['encode web3'] / spent['encode ours']:.1f} times our time")
    print(f"web3 decodes an event in {spent['event web3'] / spent['event ours']:.1f} times our time")
    for (ours, theirs), number in sorted(ended.items()):
        print(f"hostile events: {ours} by us, {theirs} by web3: {number}")
    print(f"words of what the contract gives are read {times_read(dice, 20):.2f} times at most")
    data = aliased(2_000, 200_000)
    print(f"{len(data)} bytes with 2,000 offsets to the same 200,000:")
    print(f"  by us {outcome(OURS.decode_result, 'batch', data)}; most memory so far {_memory()} MiB")
    print(f"  by web3 {outcome(Web3().codec.decode, ['(bool,bytes)[]'], data)}; most memory so far {_memory()} MiB")
    for what in ("tiebreak.contract.abi", "web3"):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {what}"], check=True)
        print(f"import {what}: {time.perf_counter() - begun:.2f} s with Python's start")


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
