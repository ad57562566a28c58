"""Merkle trees, written a second time. Refuses with `Refused` what the contract refuses."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

NONE = bytes(32)
PAD = sha256(b"\x02").digest()


class Refused(Exception):
    pass


def leaf(payload: bytes) -> bytes:
    return sha256(b"\x00" + payload).digest()


def join(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def depth(count: int) -> int:
    height = 0
    while 2**height < count:
        height += 1
    return height


def root_of(payloads: list[bytes]) -> bytes:
    row = [leaf(payload) for payload in payloads]
    row += [PAD] * (2 ** depth(len(row)) - len(row))
    while len(row) > 1:
        row = [join(row[i], row[i + 1]) for i in range(0, len(row), 2)]
    return row[0]


def climb(node: bytes, index: int, count: int, proof: Sequence[bytes]) -> bytes:
    if index >= count or len(proof) != depth(count):
        raise Refused("proof")
    for bit, sibling in enumerate(proof):
        node = join(sibling, node) if index >> bit & 1 else join(node, sibling)
    return node


def parts(height: int) -> list[int]:
    """Levels of each move down from a height: at most four, and none above another by more than one."""
    moves = -(-height // 4)
    return [height // moves + (move < height % moves) for move in range(moves)]


def require_row(node: bytes, height: int, row: Sequence[bytes]) -> None:
    nodes = list(row)
    if len(nodes) != (2 ** parts(height)[0] if height else 0):
        raise Refused("row")
    while len(nodes) > 1:
        nodes = [join(a, b) for a, b in zip(nodes[::2], nodes[1::2], strict=True)]
    if height and nodes != [node]:
        raise Refused("row")


def require(root: bytes, payload: bytes, index: int, count: int, proof: Sequence[bytes]) -> None:
    if climb(leaf(payload), index, count, proof) != root:
        raise Refused("proof")
