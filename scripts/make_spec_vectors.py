"""Write tests/vectors/spec.json: training specs and their hashes, read by the Python and the Solidity tests.

The encoding is written out by hand here (eighteen 32-byte words, integers big-endian and left-padded), so that it
shares nothing with the client's ABI encoder nor with solc. File: a list of {"spec": {field: value}, "hash": "0x.."},
fields named and ordered as in contracts/src/TrainingSpec.sol, roots and addresses as 0x-prefixed hex.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from eth_hash.auto import keccak

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "spec.json"


def _root(text: str) -> str:
    return "0x" + hashlib.sha256(text.encode()).hexdigest()


def _spec(**changes: int | str) -> dict[str, int | str]:
    spec: dict[str, int | str] = {
        "steps": 60,
        "interval": 5,
        "programRoot": _root("program"),
        "operatorCount": 300,
        "initialStateRoot": _root("initial state"),
        "stateCount": 25,
        "dataRoot": _root("data"),
        "dataRows": 1797,
        "batchSize": 64,
        "scheduleRoot": _root("schedule"),
        "seed": 7,
        "chunkSize": 1024,
        "roundingPolicy": 0,
        "roundingBits": 32,
        "logGuard": 4,
        "logVersion": 1,
        "referee": "0x" + "5b" * 20,
        "adjudicator": "0x" + "c3" * 20,
    }
    return spec | changes


def _word(value: int | str) -> bytes:
    number = value if isinstance(value, int) else int(value, 16)
    return number.to_bytes(32, "big")


def main() -> None:
    specs = [
        _spec(),
        _spec(steps=1, interval=1, operatorCount=1, stateCount=1, dataRows=1, batchSize=1, seed=0),
        _spec(steps=80_000, interval=100, seed=2**64 - 1, roundingPolicy=1, roundingBits=23, chunkSize=2**16),
        _spec(steps=2**40, interval=2**20, dataRows=2**40, logGuard=255, logVersion=255, referee="0x" + "ff" * 20),
        _spec(operatorCount=2**40, stateCount=2**40, adjudicator="0x" + "fe" * 20),
    ]
    vectors = [
        {"spec": spec, "hash": "0x" + keccak(b"".join(_word(value) for value in spec.values())).hex()} for spec in specs
    ]
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
