"""Values as a page shows them: short, bounded text with the exact value beside it. Nothing here is HTML."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from roundlog.number_format import BFLOAT16, FLOAT16

from tiebreak.contract.struct_bases import ANYONE
from tiebreak.dashboard.words import POLICIES, field_words, name_words
from tiebreak.quantities import by_unit, exact_ether, in_utc
from tiebreak.rpc.chain_errors import printable
from tiebreak.store.dagpb import Cid
from tiebreak.store.store_errors import InvalidCid

LONGEST = 160
"""Characters of a stranger's text that are shown."""

_WEI = ("reward", "bond", "fee", "spent", "amount")
_SECONDS = ("window", "allowance")
_INSTANTS = ("_at", "deadline")


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value. `kind`: text, number, hash, address, money, span or instant, which decides how it is set;
    `full`: the exact value where `text` is a shorter one."""

    name: str
    text: str
    kind: str = "text"
    full: str = ""
    warning: str = ""


def bounded(text: str, most: int = LONGEST) -> str:
    """A stranger's text on one line, without control characters, of at most `most` characters."""
    text = printable(text[: 4 * most])
    return text if len(text) <= most else text[: most - 1] + "…"


def hexed(data: bytes, most: int = 4096) -> str:
    return "0x" + data[:most].hex() + ("…" if len(data) > most else "")


def short(text: str) -> str:
    """A hash or an address by its two ends, as people compare them: `0x1234abcd…89ef`."""
    return text if len(text) <= 20 else f"{text[:10]}…{text[-4:]}"


def ether(wei: int) -> str:
    """Wei in five significant digits, as ether, or as gwei where that is little; `full` values of a page are exact."""
    amount, unit, size = abs(wei), "ETH", 18
    if amount < 10**4:
        return f"{wei:,} wei" if wei else "0 ETH"
    if amount < 10**13:
        unit, size = "gwei", 9
    value = Decimal(wei).scaleb(-size)
    digits = max(0, 4 - value.adjusted())
    text = f"{value:,.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"


def span(seconds: int) -> str:
    """A time by its two largest units: `2d 3h`, `4m 5s`."""
    return " ".join(f"{count:,}{unit}" for count, unit in by_unit(abs(seconds))[:2]) or "0s"


def content(name: str, cid: str) -> Fact:
    """A content address as somebody wrote it on the chain. It is never made a link."""
    shown = bounded(cid)
    try:
        Cid.parse(cid)
    except InvalidCid:
        return Fact(name, shown, "hash", warning="not a content address")
    return Fact(name, shown, "hash")


def fact(name: str, value: Any, *, words: str = "") -> Fact:
    """A field of a record by its value and its name's unit."""
    label = words or field_words(name)
    if isinstance(value, bytes):
        return Fact(label, hexed(value), "hash")
    if isinstance(value, Enum):
        return Fact(label, name_words(value))
    if isinstance(value, str):
        if value == ANYONE:
            return Fact(label, "anyone")
        return Fact(label, bounded(value), "address" if value.startswith("0x") and len(value) == 42 else "text")
    if isinstance(value, bool) or not isinstance(value, int):
        return Fact(label, bounded(str(value)))
    if name == "rounding_policy":
        return Fact(label, POLICIES[value] if value in range(len(POLICIES)) else str(value))
    if any(word in name for word in _SECONDS):
        return Fact(label, span(value), "span", f"{value:,} seconds")
    if name.endswith(_INSTANTS):
        return Fact(label, in_utc(value) if value else "never", "instant")
    if any(word in name for word in _WEI):
        return Fact(label, ether(value), "money", exact_ether(value))
    return Fact(label, f"{value:,}", "number")


def facts(record: Any, *without: str) -> list[Fact]:
    """The fields of a record in their order, except those that hold records and those named."""
    return [
        fact(one.name, value)
        for one in fields(record)
        if one.name not in without
        and not is_dataclass(value := getattr(record, one.name))
        and not isinstance(value, tuple)
    ]


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a tensor by its bits."""

    bits: str
    """Bits in hex, as many digits as the element has."""
    value: str
    """The number as people read it."""


def number(bits: int, width: int) -> Number:
    """The element of `width` bytes with these bits: 4 are an FP32 number, 8 an integer, 1 a boolean, and 2 a number of
    BF16 or of FP16, which the chain does not tell apart (`roundlog.program.DType`)."""
    bits &= (1 << (8 * width if 0 < width <= 8 else 64)) - 1
    if width == 4:
        return Number(f"0x{bits:08x}", repr_of_f32(bits))
    if width == 2:
        as_bf16, as_f16 = (repr_of_f32(form.in_float32(bits)) for form in (BFLOAT16, FLOAT16))
        return Number(f"0x{bits:04x}", f"{as_bf16} in BF16, {as_f16} in FP16")
    if width == 1:
        return Number(f"0x{bits:02x}", {0: "false", 1: "true"}.get(bits, "neither true nor false"))
    signed = bits - (1 << 64) if bits >= 1 << 63 else bits
    return Number(f"0x{bits:016x}", f"{signed:,}")


def repr_of_f32(bits: int) -> str:
    """The shortest decimal that is this FP32 number."""
    import numpy as np

    value = np.float32(struct.unpack("<f", struct.pack("<I", bits))[0])
    if not np.isfinite(value):
        return {True: "NaN"}.get(bool(np.isnan(value)), "infinity" if value > 0 else "-infinity")
    return str(value)


@dataclass(frozen=True, slots=True)
class Names:
    """The operators and slots of one program, as people know them. A stranger's text, bounded."""

    operators: Sequence[tuple[str, str]]
    """Kind and source line of each: ("matmul", "gpt.py:54")."""
    slots: Sequence[str]

    def operator(self, index: int) -> str:
        """`matmul of gpt.py line 54`; empty for an operator that the program does not have."""
        if not 0 <= index < len(self.operators):
            return ""
        kind, source = self.operators[index]
        file, separator, line = source.rpartition(":")
        if separator and line.isdigit():
            return f"{bounded(kind, 40)} of {bounded(file, 60)} line {bounded(line, 9)}"
        return f"{bounded(kind, 40)} of {bounded(source, 70)}" if source else bounded(kind, 40)

    def slot(self, index: int) -> str:
        return bounded(self.slots[index], 80) if 0 <= index < len(self.slots) else ""


UNKNOWN = Names((), ())
"""The names where no file of the job is at hand."""
