"""Receipts as JSON that an account can sign: what all kinds of them have, and the fields of a stranger's.

Readers of fields raise ValueError, with words that go on a sentence that names the file.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Self, cast

SIGNED = frozenset(["signer", "signature"])
"""Fields of a signature: both are there, or none."""

MAX_TEXT = 200
"""Most characters of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedJson(ABC):
    """A receipt in canonical JSON (RFC 8785), which an account can sign."""

    signer: bytes | None = None
    """The account that has signed, 20 bytes; None without a signature."""
    signature: bytes | None = None
    """65 bytes, over `signed_text`."""

    @abstractmethod
    def plain(self, *, signed: bool = True) -> dict[str, Any]:
        """The receipt as JSON has it. signed: with its signature."""

    @property
    def digest(self) -> bytes:
        """SHA-256 of `signed_text`: the name of the receipt, however its file is laid out."""
        return sha256(self.signed_text().encode()).digest()

    def signed_text(self) -> str:
        """The text that is signed (EIP-191): canonical JSON of all but the signature."""
        import rfc8785

        return rfc8785.dumps(self.plain(signed=False)).decode()

    def to_json(self) -> str:
        """The receipt in canonical JSON, as a file has it."""
        import rfc8785

        return rfc8785.dumps(self.plain()).decode()

    def signed(self, signer: bytes, signature: bytes) -> Self:
        """The receipt with a signature of an account over `by(signer).signed_text()`."""
        return replace(self, signer=signer, signature=signature)

    def by(self, signer: bytes) -> Self:
        """The receipt with the name of the account that will sign it."""
        return replace(self, signer=signer, signature=None)

    def signing(self, *, signed: bool) -> dict[str, str]:
        """The fields `signer` and `signature` of the receipt, those that it has. signed: with its signature."""
        found = {} if self.signer is None else {"signer": hex_of(self.signer)}
        return found if self.signature is None or not signed else found | {"signature": hex_of(self.signature)}


def hex_of(data: bytes) -> str:
    """Bytes as receipts have them: 0x and lower-case hex digits."""
    return "0x" + data.hex()


def signature_of(plain: dict[str, Any]) -> dict[str, bytes]:
    """The fields of a signature, if there is one."""
    if len(SIGNED & plain.keys()) == 1:
        raise ValueError("has a signer without a signature, or a signature without a signer")
    sizes = (("signer", 20), ("signature", 65))
    return {name: bytes_of(name, plain[name], size) for name, size in sizes if name in plain}


def keys_of(what: str, plain: object, always: frozenset[str], perhaps: frozenset[str] = frozenset()) -> dict[str, Any]:
    """An object with these keys, and perhaps others."""
    if not isinstance(plain, dict):
        raise ValueError(f"has a {what} that is no object")
    if missing := sorted(always - plain.keys()):
        raise ValueError(f"lacks {missing[0]}")
    if unknown := sorted(plain.keys() - always - perhaps):
        raise ValueError(f"has an unknown key {unknown[0][:60]!r}")
    return cast(dict[str, Any], plain)


def text_of(name: str, value: object) -> str:
    """A text of printable ASCII. name: of its field, as below."""
    if not (isinstance(value, str) and re.fullmatch(f"[ -~]{{0,{MAX_TEXT}}}", value)):
        raise ValueError(f"has a {name} that is no text of at most {MAX_TEXT} ASCII characters")
    return value


def printable(value: object) -> str:
    """A text of our own as receipts may have it."""
    return re.sub("[^ -~]", "?", str(value))[:MAX_TEXT]


def bytes_of(name: str, value: object, size: int) -> bytes:
    if not (isinstance(value, str) and re.fullmatch(f"0x[0-9a-f]{{{2 * size}}}", value)):
        raise ValueError(f"has a {name} that is not 0x and {2 * size} lower-case hex digits")
    return bytes.fromhex(value[2:])


def hash_of(name: str, value: object) -> bytes:
    return bytes_of(name, value, 32)


def number_of(name: str, value: object) -> float:
    # A whole number may be too large for a float.
    if type(value) not in (int, float) or not -sys.float_info.max <= cast(float, value) <= sys.float_info.max:
        raise ValueError(f"has a {name} that is no number")
    return float(cast(float, value))


def count_of(name: str, value: object, least: int, most: int = 1 << 20) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"has a {name} that is not a whole number from {least} to {most}")
    return value
