"""Writes the vectors that Python and Solidity are both checked against (tests/vectors/merkle.json).

    python scripts/make_vectors.py          writes the files
    python scripts/make_vectors.py --check  exits with 1 if a file on disk is not what would be written

Payloads are spelled out by rules, not drawn at random, so that the files never change without a reason.
"""

import json
import sys
from pathlib import Path

import numpy as np
from generated import write_or_check
from roundlog.commitments import CHUNK_SIZE, MerkleTree, tensor_root

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"


def hexed(data: bytes) -> str:
    return "0x" + data.hex()


def counting_bytes(length: int, start: int) -> bytes:
    return bytes((start + 7 * i) % 256 for i in range(length))


def tree(payloads: list[bytes]) -> dict[str, object]:
    merkle = MerkleTree(payloads)
    return {
        "payloads": [hexed(payload) for payload in payloads],
        "root": hexed(merkle.root),
        "depth": merkle.depth,
        "proofs": [[hexed(sibling) for sibling in merkle.proof(i)] for i in range(merkle.count)],
    }


def merkle_vectors() -> dict[str, object]:
    trees = [[counting_bytes(32, 16 * n + i) for i in range(n)] for n in (1, 2, 3, 4, 5, 7, 8, 9, 13)]
    # Payloads of unequal lengths, among them the empty one and one that looks like a node's hash input.
    trees += [[b""], [b"", b"\x00", b"\x01" * 65], [counting_bytes(i, i) for i in range(6)]]
    lengths = (0, 1, 4, 32, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 3 * CHUNK_SIZE + 20)
    tensors = [counting_bytes(length, 3) for length in lengths]
    return {
        "trees": [tree(payloads) for payloads in trees],
        "tensors": [
            {"bytes": hexed(data), "root": hexed(tensor_root(np.frombuffer(data, np.uint8)))} for data in tensors
        ],
    }


def files() -> dict[Path, str]:
    """Every vector file and the text that it should have."""
    return {VECTORS / "merkle.json": json.dumps(merkle_vectors(), indent=1) + "\n"}


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, files()))
