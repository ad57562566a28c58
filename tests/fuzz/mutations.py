"""Small random changes to valid inputs: of bytes, of JSON trees, of 32-byte words, and of the parts of a format."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

Mutator = Callable[[bytes, Random], bytes]

NUMBERS = [0, 1, 2, 3, 7, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**62]
NUMBERS += [2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**255, 2**256 - 1]


def change_bytes(data: bytes, rng: Random) -> bytes:
    """Flips, writes, inserts, removes, doubles or moves a few bytes, or writes an interesting number over them."""
    raw = bytearray(data)
    at = rng.randrange(len(raw) + 1)
    length = rng.choice((1, 1, 2, 4, 8, 32, rng.randrange(1, 65)))
    match rng.randrange(7):
        case 0 if at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        case 1 if at < len(raw):
            raw[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        case 2:
            raw[at:at] = rng.randbytes(length)
        case 3:
            del raw[at : at + length]
        case 4:
            raw[at:at] = raw[at : at + length]
        case 5:
            number = (rng.choice(NUMBERS) + rng.randrange(-1, 2)) % 2**64
            size = rng.choice((1, 2, 4, 8))
            packed = (number % 2 ** (8 * size)).to_bytes(size, rng.choice(("little", "big")))
            raw[at : at + size] = packed
        case _:
            piece = raw[at : at + length]
            del raw[at : at + length]
            to = rng.randrange(len(raw) + 1)
            raw[to:to] = piece
    return bytes(raw)


def change_words(data: bytes, rng: Random) -> bytes:
    """Write another number into one of the 32-byte words that ABI encoding is made of, or moves one."""
    words = [data[i : i + 32] for i in range(0, len(data), 32)] or [b""]
    at = rng.randrange(len(words))
    match rng.randrange(4):
        case 0:
            del words[at]
        case 1:
            words.insert(at, words[rng.randrange(len(words))])
        case 2:
            words[at] = words[rng.randrange(len(words))]
        case _:
            near = 32 * rng.randrange(len(words) + 2)
            words[at] = rng.choice((near, rng.choice(NUMBERS) % 2**256, rng.randrange(300))).to_bytes(32, "big")
    return b"".join(words)


JUNK: list[Any] = [None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 1.5, 1e400, "", "x", "0x", "0x0", "0x00"]
JUNK += [
    "0x" + "ff" * 32,
    "\ud800",
    "\x1b[2J",
    "\U0001f40d",
    [],
    {},
    [0],
    [[]],
    {"slot": 0},
    "f32",
    "bool",
    "neg",
    "store",
]
JUNK += [10**30]


def change_tree(tree: Any, rng: Random) -> Any:
    """One change somewhere in a JSON tree: something dropped, doubled, swapped, moved, counted on or replaced."""
    path: list[tuple[Any, Any]] = []
    target = tree
    while isinstance(target, (list, dict)) and target and (rng.random() < 0.85 or not path):
        key = rng.choice(sorted(target)) if isinstance(target, dict) else rng.randrange(len(target))
        path.append((target, key))
        target = target[key]
    if not path:
        return rng.choice(JUNK)
    parent, key = path[-1]
    match rng.randrange(7):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, list):
            parent.insert(key, target)
        case 2 if isinstance(parent, list):
            other = rng.randrange(len(parent))
            parent[key], parent[other] = parent[other], parent[key]
        case 3 if type(target) is int:
            parent[key] = target + rng.choice((-1, 1, rng.choice(NUMBERS), -rng.choice(NUMBERS)))
        case 4 if isinstance(target, str) and target:
            at = rng.randrange(len(target))
            parent[key] = target[:at] + rng.choice(("", "0", "f", "\x00", "é", target[at] * 2)) + target[at + 1 :]
        case 5 if isinstance(parent, dict):
            parent[rng.choice(("a", "", key + " ", "slot", "dims"))] = target
        case _:
            parent[key] = rng.choice(JUNK)
    return tree


def canonical(tree: Any) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def change_json(data: bytes, rng: Random) -> bytes:
    """`change_tree` on canonical JSON; bytes that are no JSON are changed as bytes."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return change_bytes(data, rng)
    return canonical(change_tree(tree, rng))


def change_tensors(data: bytes, rng: Random) -> bytes:
    """A safetensors file with its header changed as a tree, and the length before it put right."""
    if len(data) < 8:
        return change_bytes(data, rng)
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8:
        return change_bytes(data, rng)
    header = change_json(data[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]
