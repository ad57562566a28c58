"""GGUF files of strangers, checked before their readers see them: each count and length in one fits into the file.
Readers believe these, and take hours, or all memory, for a few bytes of a hostile file."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

from roundlog.storage import open_regular

MAX_ENTRIES = 1 << 22
"""Most elements of all lists of a file together: tokens of a vocabulary, merges, scores."""
MAX_COUNT = 1 << 16
"""Most tensors of a file, and most fields of its metadata."""
MAX_TEXT = 1 << 24
"""Most bytes of one text: a chat template, a token."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LITTLE = "<"

_SIDES = (
    *("embedding_length", "feed_forward_length", "expert_feed_forward_length", "vocab_size", "rope.dimension_count"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("expert_count", "expert_used_count"),
)
"""Fields of an architecture that are sides of its tensors, or divide one."""


def check_gguf(path: Path, sizes: Mapping[int, tuple[int, int]]) -> None:
    """Checks a file's header against its length. sizes: type of tensors -> (elements, bytes) of a block.

    Raises ValueError, whose words go on a sentence that names the file; OSError."""
    with open_regular(path) as file:
        if file.read(4) != b"GGUF":
            raise ValueError("does not begin as GGUF does")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Header(data).check(sizes)


class _Header:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at, self._entries = data, 4, 0

    def check(self, sizes: Mapping[int, tuple[int, int]]) -> None:
        if (version := self._number("I")) not in (2, 3):
            raise ValueError(f"is of version {version} of GGUF, and 2 and 3 are read, in little-endian")
        tensors = self._count("tensors", MAX_COUNT)
        fields = dict[str, object]()
        for _ in range(self._count("fields", MAX_COUNT)):
            name = self._text()
            fields[name] = self._value(self._number("I"))
        shapes, ends = list[tuple[int, ...]](), [0]
        for _ in range(tensors):
            name = self._text()
            rank = self._number("I")
            if rank > 4:
                raise ValueError(f"has a tensor {name[:60]!r} of {rank} dimensions")
            shape = tuple(self._number("Q") for _ in range(rank))
            kind, offset = self._number("I"), self._number("Q")
            if kind not in sizes:
                raise ValueError(f"has a tensor {name[:60]!r} of an unknown type {kind}")
            elements, size = sizes[kind]
            shapes.append(shape)
            ends.append(offset + -(-math.prod(shape) // elements) * size)
        alignment = fields.get("general.alignment", 32)
        if not (isinstance(alignment, int) and 0 < alignment <= 1 << 16):
            raise ValueError("has an alignment that is no number of bytes")
        start = -(-self._at // alignment) * alignment
        if start + max(ends) > len(self._data):
            raise ValueError("ends before its tensors do")
        self._check_architecture(fields, shapes)

    @staticmethod
    def _check_architecture(fields: Mapping[str, object], shapes: list[tuple[int, ...]]) -> None:
        """A model is built of these numbers before its tensors are read."""
        name = fields.get("general.architecture")
        largest = max((side for shape in shapes for side in shape), default=0)
        limits = {f"{name}.{side}": largest for side in _SIDES} | {f"{name}.block_count": len(shapes)}
        for key, limit in limits.items():
            found = fields.get(key, 0)
            if not (isinstance(found, int) and 0 <= found <= limit):
                raise ValueError(f"has a {key[:60]} that its tensors have no room for")

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._text()
        if kind in _SCALARS:
            return struct.unpack(_LITTLE + _SCALARS[kind], self._take(struct.calcsize(_LITTLE + _SCALARS[kind])))[0]
        if kind != _ARRAY:
            raise ValueError(f"has a field of an unknown type {kind}")
        inner, count = self._number("I"), self._count("entries of a list", MAX_ENTRIES)
        self._entries += count
        if self._entries > MAX_ENTRIES:
            raise ValueError(f"has more than {MAX_ENTRIES} entries in its lists")
        if inner in _SCALARS:
            found = self._take(count * struct.calcsize(_LITTLE + _SCALARS[inner]))
            # The largest number of a list that has one for every block has to fit.
            return max(struct.unpack(f"{_LITTLE}{count}{_SCALARS[inner]}", found), default=0)
        if inner != _STRING:
            raise ValueError(f"has a list of an unknown type {inner}")
        for _ in range(count):
            self._text()
        return None

    def _text(self) -> str:
        return self._take(self._count("bytes of a text", MAX_TEXT)).decode("utf-8", "replace")

    def _count(self, what: str, most: int) -> int:
        count = self._number("Q")
        if count > most:
            raise ValueError(f"says that it has {count} {what}, more than {most}")
        return count

    def _number(self, kind: str) -> int:
        return int(struct.unpack(_LITTLE + kind, self._take(struct.calcsize(_LITTLE + kind)))[0])

    def _take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise ValueError("ends in the middle of its header")
        self._at += size
        return found
