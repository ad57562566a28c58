"""GGUF files of strangers, checked before their readers see them: each count and length in one fits into the file, and
each field is a known one with a value of its type. Readers believe these, and take hours, or all memory, for a few
bytes of a hostile file."""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from roundlog.generation.folder_bounds import MAX_LAYERS, MAX_NUMBER, BoundError
from roundlog.storage import open_regular

MAX_ENTRIES = 1 << 22
"""Most elements of all lists of a file together: tokens of a vocabulary, merges, scores."""
MAX_COUNT = 1 << 16
"""Most tensors of a file, and most fields of its metadata."""
MAX_TEXT = 1 << 24
"""Most bytes of one text, as of a chat template."""
MAX_NAME = 64
MAX_TOKEN = 1 << 12
"""Most bytes of a text in a list: readers make merges of a token by all of its splits."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LITTLE = "<"

_COUNT = re.compile(
    "(_length|_count|_size|_rank|_kernel|_cache|_interval|_layers|_sections|_window|_token_id|_func)"
    "(_kv|_swa|_mla|_out|_per_layer_input)?$"
)
_FRACTION = re.compile("(_epsilon|_base|_base_swa)$")
_LISTS = {
    **dict.fromkeys(("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_templates"), str),
    **dict.fromkeys(("general.tags", "general.languages", "general.datasets"), str),
    **dict.fromkeys(("tokenizer.ggml.token_type", "tokenizer.ggml.precompiled_charsmap"), int),
    "tokenizer.ggml.scores": float,
}
"""Lists outside of an architecture, with the type of what is in them."""
_LAYERED = re.compile(
    r"attention\.(head_count(_kv)?|sliding_window(_pattern)?)|(expert_)?feed_forward_length|rope\.dimension_sections"
    "|swiglu_clamp_(sh)?exp"
)
"""Fields of an architecture that may have a number for each layer."""


class Readers(NamedTuple):
    """The types, architectures and fields that readers of GGUF files know."""

    sizes: Mapping[int, tuple[int, int]]
    """Type of tensors -> (elements, bytes) of a block."""
    architectures: Collection[str]
    fields: Collection[str]
    """Names of fields of an architecture, without its name."""
    read: Collection[str]
    """Beginnings of fields that have a meaning, with the names that `transformers` has for architectures."""


def installed_readers() -> Readers:
    """Return the lists of the installed packages `gguf` and `transformers`. Raises ImportError."""
    from gguf import GGML_QUANT_SIZES, MODEL_ARCH_NAMES
    from gguf.constants import Keys
    from transformers.integrations import GGUF_CONFIG_MAPPING

    groups = [vars(group) for group in vars(Keys).values() if isinstance(group, type)]
    names = [name for group in groups for name in group.values() if isinstance(name, str)]
    names += [f"{{arch}}.{name}" for fields in GGUF_CONFIG_MAPPING.values() for name in fields]
    return Readers(
        sizes={int(kind): size for kind, size in GGML_QUANT_SIZES.items()},
        architectures={*MODEL_ARCH_NAMES.values()},
        fields={name.removeprefix("{arch}.") for name in names if name.startswith("{arch}.")},
        read={*MODEL_ARCH_NAMES.values(), *GGUF_CONFIG_MAPPING, "GGUF"} - {"general", "tokenizer"},
    )


def check_gguf(path: Path, readers: Readers) -> tuple[int, int]:
    """Numbers and tensors of a file whose header was checked against its length and what readers know.

    Raises BoundError, OSError."""
    with open_regular(path) as file:
        if file.read(4) != b"GGUF":
            raise BoundError("it does not begin as GGUF does")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data).check(readers)


@contextmanager
def without_vocabulary() -> Iterator[None]:
    """Lets `transformers` read the configuration and the tensors of a file, within the block, without its long lists,
    whose lengths are all that it takes there: gguf's own reader needs seconds for 100,000 tokens, several times."""
    import gguf

    package: Any = gguf
    real = package.GGUFReader

    class ShortReader(real):  # type: ignore[misc, valid-type]
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[int]]:
            data, at = memoryview(self.data), orig_offs + 12
            inner, count = struct.unpack_from("<IQ", data, orig_offs) if raw_type == _ARRAY else (0, 0)
            if count <= MAX_LAYERS:
                found: tuple[int, list[Any], list[int], list[int]] = super()._get_field_parts(orig_offs, raw_type)
                return found
            for _ in range(count if inner == _STRING else 0):
                at += 8 + struct.unpack_from("<Q", data, at)[0]
            at += 0 if inner == _STRING else count * struct.calcsize(_LITTLE + _SCALARS[inner])
            return at - orig_offs, [self.data[:1]], [0] * count, [_ARRAY, 0]

    package.GGUFReader = ShortReader
    try:
        yield
    finally:
        package.GGUFReader = real


class _Value(NamedTuple):
    kind: type
    is_list: bool
    least: float | str
    most: float | str
    """The largest of a list, or the value itself."""
    entries: int = 1


class _Header:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at, self._entries = data, 4, 0

    def check(self, readers: Readers) -> tuple[int, int]:
        if (version := self._number("I")) not in (2, 3):
            raise BoundError(f"it is of version {version} of GGUF, and 2 and 3 are read, in little-endian")
        tensors = self._count("tensors", MAX_COUNT)
        fields = dict[str, _Value]()
        for _ in range(self._count("fields", MAX_COUNT)):
            name = self._text()
            if name in fields:
                raise BoundError(f"it has the field {name[:60]!r} twice")
            fields[name] = self._value(self._number("I"))
        architecture = fields.get("general.architecture", _Value(bool, False, "", "")).most
        if architecture not in readers.architectures or fields["general.architecture"].is_list:
            raise BoundError("its field 'general.architecture' is no text that names a known one")
        for name, value in fields.items():
            if not _is_plain(name, value, str(architecture), readers):
                raise BoundError(f"it has a field {name[:60]!r} that is not known, or is not of its type and in bounds")
        alignment = fields.get("general.alignment", _Value(int, False, 32, 32)).most
        numbers, sizes, end = 0, 0, 0
        for _ in range(tensors):
            name = self._text()
            rank = self._number("I")
            if rank > 4:
                raise BoundError(f"it has a tensor {name[:60]!r} of {rank} dimensions")
            count = math.prod(self._number("Q") for _ in range(rank))
            kind, offset = self._number("I"), self._number("Q")
            if kind not in readers.sizes:
                raise BoundError(f"it has a tensor {name[:60]!r} of an unknown type {kind}")
            elements, size = readers.sizes[kind]
            size *= -(-count // elements)
            numbers, sizes, end = numbers + count, sizes + size, max(end, offset + size)
        if not (isinstance(alignment, int) and 0 < alignment <= 1 << 16):
            raise BoundError("it has an alignment that is no number of bytes")
        start = -(-self._at // alignment) * alignment
        if start + max(end, sizes) > len(self._data):
            raise BoundError("it ends before its tensors do")
        return numbers, tensors

    def _value(self, kind: int) -> _Value:
        if kind == _STRING:
            text = self._text()
            return _Value(str, False, text, text)
        if kind in _SCALARS:
            return self._numbers(kind, 1, is_list=False)
        if kind != _ARRAY:
            raise BoundError(f"it has a field of an unknown type {kind}")
        inner, count = self._number("I"), self._count("entries of a list", MAX_ENTRIES)
        self._entries += count
        if self._entries > MAX_ENTRIES:
            raise BoundError(f"it has more than {MAX_ENTRIES} entries in its lists")
        if inner in _SCALARS:
            return self._numbers(inner, count, is_list=True)
        if inner != _STRING:
            raise BoundError(f"it has a list of an unknown type {inner}")
        for _ in range(count):
            self._text(MAX_TOKEN)
        return _Value(str, True, "", "", count)

    def _numbers(self, kind: int, count: int, *, is_list: bool) -> _Value:
        form = f"{_LITTLE}{count}{_SCALARS[kind]}"
        found = struct.unpack(form, self._take(struct.calcsize(form)))
        plain = {"f": float, "d": float, "?": bool}.get(_SCALARS[kind], int)
        return _Value(plain, is_list, min(found, default=0), max(found, default=0), count)

    def _text(self, most: int = MAX_TEXT) -> str:
        return self._take(self._count("bytes of a text", most)).decode("utf-8", "replace")

    def _count(self, what: str, most: int) -> int:
        count = self._number("Q")
        if count > most:
            raise BoundError(f"it says that it has {count} {what}, more than {most}")
        return count

    def _number(self, kind: str) -> int:
        return int(struct.unpack(_LITTLE + kind, self._take(struct.calcsize(_LITTLE + kind)))[0])

    def _take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise BoundError("it ends in the middle of its header")
        self._at += size
        return found


def _is_plain(name: str, value: _Value, architecture: str, readers: Readers) -> bool:
    """Whether a field is one that readers know, of its type and bounded, or one that none of them reads."""
    prefix, _, rest = name.partition(".")
    if prefix != architecture:
        if value.is_list:
            return value.kind is _LISTS.get(name)
        return prefix not in readers.read and architecture not in prefix and name not in _LISTS
    if rest not in readers.fields or (value.is_list and not (_LAYERED.fullmatch(rest) and value.entries <= MAX_LAYERS)):
        return False
    kinds = (float,) if _FRACTION.search(rest) else (int,) if _COUNT.search(rest) else (str, bool, float, int)
    if value.kind not in kinds or isinstance(value.least, str) or isinstance(value.most, str):
        return value.kind in kinds and not value.is_list and len(str(value.most)) <= MAX_NAME
    if value.kind is float:
        return -math.inf < value.least <= value.most < math.inf
    return 0 <= value.least <= value.most <= (MAX_LAYERS if rest in ("block_count", "expert_count") else MAX_NUMBER)
