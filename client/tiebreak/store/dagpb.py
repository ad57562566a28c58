"""The two small protobuf messages of IPFS files: dag-pb nodes and the UnixFS record inside them.

Written by hand because PyPI has no maintained codec for them, and because a general protobuf library would
accept many encodings of one message. Here exactly one is accepted: the one that Kubo writes (dag-pb links
before data; UnixFS fields in order of their numbers). Decoding therefore ends by encoding again and
comparing.

Sources: https://ipld.io/specs/codecs/dag-pb/spec/ and https://github.com/ipfs/specs/blob/main/UNIXFS.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiebreak.store.cid import Cid
from tiebreak.store.errors import MalformedContent, UnsafeName

MAX_BLOCK = 2 * 1024 * 1024
"""Largest block that is read or accepted, in bytes: the limit of Kubo's own exchange protocol (Bitswap)."""

RAW_LEAF = 0
DIRECTORY = 1
FILE = 2
METADATA = 3
SYMLINK = 4
SHARDED_DIRECTORY = 5


@dataclass(frozen=True, slots=True)
class Link:
    """One edge of the graph. `total_size`: bytes of the linked block and of all below it, a hint that is
    never trusted.
    """

    cid: Cid
    name: str
    total_size: int


@dataclass(frozen=True, slots=True)
class Node:
    """A UnixFS block: its kind, the content bytes that it holds itself, the size of the file below it and its
    links.

    For a file with links, `block_sizes[i]` is the number of content bytes below `links[i]`.
    """

    kind: int
    data: bytes | None
    file_size: int | None
    block_sizes: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()


def encode(node: Node) -> bytes:
    """Encodes exactly as Kubo does."""
    record = bytearray(_field(1, node.kind))
    if node.data is not None:
        record += _field(2, node.data)
    if node.file_size is not None:
        record += _field(3, node.file_size)
    for size in node.block_sizes:
        record += _field(4, size)
    block = bytearray()
    for link in node.links:
        block += _field(
            2,
            _field(1, link.cid.to_bytes()) + _field(2, link.name.encode("utf-8")) + _field(3, link.total_size),
        )
    block += _field(1, bytes(record))
    return bytes(block)


def decode(block: bytes, name: str) -> Node:
    """Reads a block whose hash has been checked already; `name` stands in the error messages.

    Raises MalformedContent when the block is not the canonical encoding of a UnixFS node, UnsafeName when a
    link's name is not UTF-8, InvalidCid when a link does not name its target by SHA-256.
    """
    try:
        node = _decode(block)
    except (ValueError, TypeError) as error:
        raise MalformedContent(f"block {name} is not a UnixFS node ({error}): refuse the content.") from error
    if encode(node) != block:
        raise MalformedContent(f"block {name} is not canonically encoded: publish the content again with `ipfs add`.")
    return node


def _decode(block: bytes) -> Node:
    links: list[Link] = []
    record: bytes | None = None
    for number, value in _fields(block):
        if number == 2 and isinstance(value, bytes) and record is None:
            links.append(_decode_link(value))
        elif number == 1 and isinstance(value, bytes) and record is None:
            record = value
        else:
            raise ValueError(f"unexpected field {number}")
    if record is None:
        raise ValueError("no UnixFS record")
    kind: int | None = None
    data: bytes | None = None
    file_size: int | None = None
    sizes: list[int] = []
    for number, value in _fields(record):
        if number == 1 and isinstance(value, int) and kind is None:
            kind = value
        elif number == 2 and isinstance(value, bytes) and data is None:
            data = value
        elif number == 3 and isinstance(value, int) and file_size is None:
            file_size = value
        elif number == 4 and isinstance(value, int):
            sizes.append(value)
        elif number in (5, 6) and isinstance(value, int):
            continue  # hash type and fan-out of a sharded directory; the reader refuses those by kind
        else:
            raise ValueError(f"unexpected UnixFS field {number}")
    if kind is None:
        raise ValueError("no UnixFS type")
    return Node(kind, data, file_size, tuple(sizes), tuple(links))


def _decode_link(message: bytes) -> Link:
    target: bytes | None = None
    name: bytes | None = None
    size: int | None = None
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes) and target is None:
            target = value
        elif number == 2 and isinstance(value, bytes) and name is None:
            name = value
        elif number == 3 and isinstance(value, int) and size is None:
            size = value
        else:
            raise ValueError(f"unexpected link field {number}")
    if target is None or name is None or size is None:
        raise ValueError("incomplete link")
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnsafeName(
            f"a directory entry has the name {name[:80]!r}, which is not UTF-8: refuse the content."
        ) from error
    return Link(Cid.from_bytes(target), text, size)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: varints as int, length-delimited ones as bytes. Raises ValueError."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        value, at = _varint(message, at)
        if wire_type == 0:
            yield number, value
        elif wire_type == 2:
            if value > len(message) - at:
                raise ValueError("a field runs past the end")
            yield number, message[at : at + value]
            at += value
        else:
            raise ValueError(f"wire type {wire_type}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            raise ValueError("a number is cut off")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, at
    raise ValueError("a number is longer than 64 bits")


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _encode_varint(number << 3) + _encode_varint(value)
    return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
