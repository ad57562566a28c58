"""Merkle trees, written a second time. Refuses with `Refused` what the contract refuses."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from tiebreak.chain.records import Children

NONE = bytes(32)
NO_CHILDREN = Children(left=NONE, right=NONE)
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


def climb(node: bytes, index: int, count: int, proof: Sequence[bytes]) -> tuple[bytes, Children]:
    if index >= count or len(proof) != depth(count):
        raise Refused("proof")
    children = NO_CHILDREN
    for bit, sibling in enumerate(proof):
        children = Children(left=sibling, right=node) if index >> bit & 1 else Children(left=node, right=sibling)
        node = join(children.left, children.right)
    return node, children


def require(root: bytes, payload: bytes, index: int, count: int, proof: Sequence[bytes]) -> None:
    if climb(leaf(payload), index, count, proof)[0] != root:
        raise Refused("proof")
