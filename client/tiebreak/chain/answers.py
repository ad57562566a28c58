"""Strict readers for what comes back over JSON-RPC: a node is believed about the chain, not about types and lengths.

Encodings: https://ethereum.org/en/developers/docs/apis/json-rpc/#conventions. All raise InvalidAnswer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address

from tiebreak.chain.errors import InvalidAnswer

_QUANTITY = re.compile(r"0x(0|[1-9a-fA-F][0-9a-fA-F]{0,63})")
_DATA = re.compile(r"0x([0-9a-fA-F]{2})*")


def quantity(value: object, what: str, maximum: int = 2**256 - 1) -> int:
    """An unsigned integer of at most 256 bits."""
    if isinstance(value, str) and _QUANTITY.fullmatch(value):
        number = int(value, 16)
        if number <= maximum:
            return number
    raise _invalid(value, what, f"a number up to {maximum:#x}")


def data(value: object, what: str, length: int | None = None) -> bytes:
    """Bytes, of exactly `length` if given."""
    if isinstance(value, str) and _DATA.fullmatch(value) and length in (None, len(value) // 2 - 1):
        return bytes.fromhex(value[2:])
    raise _invalid(value, what, "bytes" if length is None else f"{length} bytes")


def address(value: object, what: str) -> ChecksumAddress:
    return to_checksum_address(data(value, what, 20))


def optional_address(value: object, what: str) -> ChecksumAddress | None:
    return None if value is None else address(value, what)


def record(value: object, what: str) -> Mapping[str, object]:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise _invalid(value, what, "an object")


def sequence(value: object, what: str, maximum: int) -> list[object]:
    if isinstance(value, list) and len(value) <= maximum:
        return value
    raise _invalid(value, what, f"a list of at most {maximum}")


def _invalid(value: object, what: str, expected: str) -> InvalidAnswer:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return InvalidAnswer(f"the node answered {shown} for {what} where {expected} was due: use another node.")
