"""Content identifiers, and the codec of the two small protobuf messages of IPFS files: dag-pb nodes and the UnixFS
record inside them.

Everything that this project publishes has a CIDv1 in base32 (``bafy...``, ``bafk...``). CIDv0 (base58btc of a
multihash, ``Qm...``) is understood for content of others. Other hash functions and the identity hash are refused: a
commitment on a chain must name its content by a collision-resistant hash, and one is enough.

The codec is by hand because no package on PyPI does it: ipld-dag-pb knows no UnixFS, libipld no dag-pb, and
py-ipfs-lite brings a whole peer. Google's protobuf reads many encodings of one message; this codec accepts the one that
Kubo writes: decoding ends by encoding again and comparing.

Sources: https://github.com/multiformats/cid, https://ipld.io/specs/codecs/dag-pb/spec/ and
https://github.com/ipfs/specs/blob/main/UNIXFS.md"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cid as pycid

from tiebreak.rpc.chain_errors import printable
from tiebreak.store.store_errors import InvalidCid, MalformedContent, UnsafeName

DAG_PB = 0x70
RAW = 0x55

_MULTIHASH_PREFIX = b"\x12\x20"  # sha2-256, 32 bytes
_V0 = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}")
_V1 = re.compile(r"b[a-z2-7]{58}")


@dataclass(frozen=True, slots=True)
class Cid:
    """The codec of a block (`DAG_PB` or `RAW`) and the SHA-256 of its bytes (32 bytes).

    `version`: 0 or 1, which only changes how the identifier is written; 0 is of dag-pb only.
    """

    codec: int
    digest: bytes
    version: int = 1

    @classmethod
    def of(cls, block: bytes, codec: int = DAG_PB) -> Cid:
        return cls(codec, hashlib.sha256(block).digest())

    @classmethod
    def parse(cls, text: str) -> Cid:
        """Read a CIDv0 or a base32 CIDv1.

        Raises InvalidCid for everything else, including other encodings of the same identifier.
        """
        try:
            if _V0.fullmatch(text):
                return cls.from_bytes(pycid.from_string(text).multihash)
            if _V1.fullmatch(text):
                data = base64.b32decode(text[1:].upper() + "======")
                # The last character has bits to spare, which only one spelling leaves at zero.
                if _base32(data) == text:
                    return cls.from_bytes(data)
        except ValueError:
            pass
        shown = printable(repr(text), 82)
        raise InvalidCid(f"{shown} is not a content identifier (expected Qm... or b..., SHA-256): check the value.")

    @classmethod
    def from_bytes(cls, data: bytes) -> Cid:
        """Read the binary form found in dag-pb links. Raises InvalidCid."""
        if len(data) == 34 and data[:2] == _MULTIHASH_PREFIX:
            return cls(DAG_PB, data[2:], 0)
        if len(data) == 36 and data[0] == 1 and data[1] in (DAG_PB, RAW) and data[2:4] == _MULTIHASH_PREFIX:
            return cls(data[1], data[4:])
        raise InvalidCid(
            f"the link {data[:40].hex()} is not a SHA-256 content identifier: ask its publisher to add it again."
        )

    def to_bytes(self) -> bytes:
        """Return the binary form: a bare multihash for version 0, with version and codec before it for version 1."""
        multihash = _MULTIHASH_PREFIX + self.digest
        return multihash if self.version == 0 else bytes((1, self.codec)) + multihash

    def matches(self, block: bytes) -> bool:
        return hashlib.sha256(block).digest() == self.digest

    def __str__(self) -> str:
        if self.version == 0:
            return str(pycid.CIDv0(self.to_bytes()))
        return _base32(self.to_bytes())


def _base32(data: bytes) -> str:
    """Return the multibase base32: lower case, no padding."""
    return "b" + base64.b32encode(data).decode("ascii").lower().rstrip("=")


MAX_BLOCK = 2 * 1024 * 1024
"""Largest block that is read or accepted, in bytes: the limit of Kubo's own exchange protocol (Bitswap)."""

MAX_ENTRIES = 20_000
"""Most entries of a directory. One block says all of them."""

RAW_LEAF = 0
DIRECTORY = 1
FILE = 2
SYMLINK = 4
SHARDED_DIRECTORY = 5


MAX_NAME = 255
"""Longest name in UTF-8 bytes: the limit of common file systems."""


@dataclass(frozen=True, slots=True)
class Link:
    """One edge of the graph. `total_size`: bytes of the linked block and of all below it, a hint that is
    never trusted.
    """

    cid: Cid
    name: str
    total_size: int


@dataclass(frozen=True, slots=True)
class UnixFsNode:
    """A UnixFS block: its kind, the content bytes that it holds itself, the size of the file below it and its
    links.

    For a file with links, `block_sizes[i]` is the number of content bytes below `links[i]`.
    """

    kind: int
    data: bytes | None
    file_size: int | None
    block_sizes: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()


def encode(node: UnixFsNode) -> bytes:
    """Encode a node exactly as Kubo does: links before data."""
    record = _field(1, node.kind)
    if node.data is not None:
        record += _field(2, node.data)
    if node.file_size is not None:
        record += _field(3, node.file_size)
    record += b"".join(_field(4, size) for size in node.block_sizes)
    links = (
        _field(1, link.cid.to_bytes()) + _field(2, link.name.encode("utf-8")) + _field(3, link.total_size)
        for link in node.links
    )
    return b"".join(_field(2, link) for link in links) + _field(1, record)


def decode(block: bytes, name: str) -> UnixFsNode:
    """Read a block whose hash has been checked already; `name` stands in the error messages.

    Raises MalformedContent when the block is not the canonical encoding of a UnixFS node, UnsafeName when a
    link's name is not UTF-8, InvalidCid when a link does not name its target by SHA-256.
    """
    try:
        message = _fields(block)
        record = _fields(_one(message, 1, bytes))
        sizes = tuple(record.get(4, ()))
        if not all(isinstance(size, int) for size in sizes):
            raise ValueError("a size is no number")
        node = UnixFsNode(
            kind=_one(record, 1, int),
            data=_one(record, 2, bytes) if 2 in record else None,
            file_size=_one(record, 3, int) if 3 in record else None,
            block_sizes=sizes,
            links=tuple(_decode_link(_fields(link)) for link in message.get(2, ())),
        )
    except (ValueError, TypeError) as error:
        raise MalformedContent(
            f"block {name} is not a UnixFS node ({error}): ask its publisher to add it again."
        ) from error
    # A repeated or unknown field was not read above, and is missing here.
    if encode(node) != block:
        raise MalformedContent(f"block {name} is not canonically encoded: publish the content again with `ipfs add`.")
    return node


def _decode_link(fields: Mapping[int, list[Any]]) -> Link:
    name = _one(fields, 2, bytes)
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnsafeName(
            f"a directory entry has the name {name[:80]!r}, which is not UTF-8: ask its publisher to add it again."
        ) from error
    return Link(Cid.from_bytes(_one(fields, 1, bytes)), text, _one(fields, 3, int))


def _one(fields: Mapping[int, list[Any]], number: int, kind: type) -> Any:
    if number not in fields or not isinstance(fields[number][0], kind):
        raise ValueError(f"no field {number}")
    return fields[number][0]


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Return the values of a protobuf message by field number: varints as int, length-delimited ones as bytes.

    Raises ValueError."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == 2:
            if value > len(message) - at:
                raise ValueError("a field runs past the end")
            found.setdefault(tag >> 3, []).append(message[at : at + value])
            at += value
        elif tag & 7 == 0:
            found.setdefault(tag >> 3, []).append(value)
        else:
            raise ValueError(f"wire type {tag & 7}")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at byte `at`, and where the next one begins. Raises ValueError."""
    value = 0
    for position in range(at, min(at + 10, len(message))):
        value |= (message[position] & 0x7F) << 7 * (position - at)
        if message[position] < 0x80 and value < 1 << 64:
            return value, position + 1
    raise ValueError("a number is cut off or longer than 64 bits")


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


def check_name(name: str) -> None:
    """Raise UnsafeName unless `name` is one plain path component on every common file system."""
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UnsafeName(f"the name {name!r} is not UTF-8: rename the file.") from error
    if (
        not name
        or name in (".", "..")
        or size > MAX_NAME
        or any(character in '/\\:"<>|?*' or ord(character) < 32 or ord(character) == 127 for character in name)
    ):
        shown = printable(repr(name), 82)
        raise UnsafeName(
            f"the directory entry {shown} is not a plain file name: rename it, or ask its publisher to if it was "
            "fetched."
        )
