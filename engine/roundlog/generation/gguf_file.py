"""GGUF files: the numbers that one holds, and a reader of it that passes over long lists."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roundlog.generation.folder_bounds import BoundError
from roundlog.storage import open_regular

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Formats of `struct` of the types of numbers in lists."""
_STRING, _ARRAY = 8, 9
_SHORT = 1 << 10
"""Elements of a list up to which it is read."""


def weights_held(path: Path) -> tuple[int, int]:
    """Return (numbers, tensors) of a file. Raises BoundError for tensors that share bytes, OSError, and what the
    package gguf raises for a damaged file. A hostile one may take it long, or much memory: see `folder_bounds.tried`.
    """
    import gguf

    open_regular(path).close()  # the package would wait at a pipe for a writer
    reader: Any = gguf.GGUFReader
    tensors = reader(path).tensors
    if sum(int(one.n_bytes) for one in tensors) > path.stat().st_size:
        raise BoundError("its tensors have more bytes than it has")
    return sum(int(one.n_elements) for one in tensors), len(tensors)


@contextmanager
def without_vocabulary() -> Iterator[None]:
    """Have `transformers` read the configuration and the tensors of a file, within the block, without its long lists,
    of which it takes the lengths alone: gguf's own reader needs seconds for 100,000 tokens, several times."""
    import gguf

    package: Any = gguf
    real = package.GGUFReader

    class ShortReader(real):  # type: ignore[misc, valid-type]
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[int]]:
            data, at = memoryview(self.data), orig_offs + 12
            inner, count = struct.unpack_from("<IQ", data, orig_offs) if raw_type == _ARRAY else (0, 0)
            if count <= _SHORT:
                found: tuple[int, list[Any], list[int], list[int]] = super()._get_field_parts(orig_offs, raw_type)
                return found
            for _ in range(count if inner == _STRING else 0):
                at += 8 + struct.unpack_from("<Q", data, at)[0]
            at += 0 if inner == _STRING else count * struct.calcsize("<" + _SCALARS[inner])
            return at - orig_offs, [self.data[:1]], [0] * count, [_ARRAY, 0]

    package.GGUFReader = ShortReader
    try:
        yield
    finally:
        package.GGUFReader = real
