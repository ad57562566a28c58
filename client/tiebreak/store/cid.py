"""Content identifiers: SHA-256 over dag-pb or raw blocks, in the forms that Kubo prints.

Everything that this project publishes has a CIDv1 in base32 (``bafy...``, ``bafk...``). CIDv0 (base58btc of a
multihash, ``Qm...``) is understood for content of others. Other hash functions and the identity hash are refused: a
commitment on a chain must name its content by a collision-resistant hash, and one is enough.

Source: https://github.com/multiformats/cid
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

import cid as pycid

from tiebreak.store.store_errors import InvalidCid

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
        """Reads a CIDv0 or a base32 CIDv1.

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
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise InvalidCid(f"{shown!r} is not a content identifier (expected Qm... or b..., SHA-256): check the value.")

    @classmethod
    def from_bytes(cls, data: bytes) -> Cid:
        """Reads the binary form found in dag-pb links. Raises InvalidCid."""
        if len(data) == 34 and data[:2] == _MULTIHASH_PREFIX:
            return cls(DAG_PB, data[2:], 0)
        if len(data) == 36 and data[0] == 1 and data[1] in (DAG_PB, RAW) and data[2:4] == _MULTIHASH_PREFIX:
            return cls(data[1], data[4:])
        raise InvalidCid(
            f"the link {data[:40].hex()} is not a SHA-256 content identifier: ask its publisher to add it again."
        )

    def to_bytes(self) -> bytes:
        """The binary form: a bare multihash for version 0, with version and codec before it for version 1."""
        multihash = _MULTIHASH_PREFIX + self.digest
        return multihash if self.version == 0 else bytes((1, self.codec)) + multihash

    def matches(self, block: bytes) -> bool:
        return hashlib.sha256(block).digest() == self.digest

    def __str__(self) -> str:
        if self.version == 0:
            return str(pycid.CIDv0(self.to_bytes()))
        return _base32(self.to_bytes())


def _base32(data: bytes) -> str:
    """Multibase base32: lower case, no padding."""
    return "b" + base64.b32encode(data).decode("ascii").lower().rstrip("=")
