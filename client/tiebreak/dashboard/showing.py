"""Values as a page shows them: short, bounded text with the exact value beside it; and words for the contract's names.
Nothing here is HTML."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from roundlog.number_format import BFLOAT16, FLOAT16
from roundlog.spec import POLICY_NAMES

from tiebreak.contract import events
from tiebreak.contract.enums import Finding, Level, Outcome, Phase, Reason, Side
from tiebreak.contract.events import Event
from tiebreak.contract.structs import ANYONE
from tiebreak.quantities import by_unit, exact_ether, in_utc
from tiebreak.rpc.chain_errors import printable
from tiebreak.store.dagpb import Cid
from tiebreak.store.store_errors import InvalidCid

FIELDS = {
    "challenge_window": "window for challenges",
    "clock_allowance": "clock of each side",
    "referee_allowance": "clock of the referee",
    "concurrent_games": "games at a time",
    "commit_window": "window for the claim",
    "trainer_bond": "trainer's bond",
    "challenger_bond": "challenger's bond",
    "trainer": "who may train",
    "audit_fee": "fee for audits",
    "attestation_bond": "bond of an attestation",
    "attestations_needed": "attestations needed",
    "audit_window": "window for sealed audits",
    "opening_window": "window for opening seals",
    "interval": "steps between checkpoints",
    "operator_count": "operators of a step",
    "state_count": "tensors of the state",
    "data_rows": "rows of data",
    "rounding_bits": "bits kept by rounding",
    "rounding_policy": "rounding",
    "log_guard": "guard of the log",
    "log_version": "version of the log",
    "chunk_size": "bytes of a chunk",
}

STATUSES = {
    "OPEN": "Waits for a trainer's claim",
    "SEALED": "A trainer has sealed a claim; auditors may seal their audits",
    "CLAIMED": "A trainer has claimed a result, which may be challenged",
    "APPEALABLE": "A game ended against the claim; auditors that attested to it may appeal",
    "FINAL": "The claim stands, and the trainer is paid",
    "REJECTED": "A game ended against the claim; the reward is the customer's again",
    "EXPIRED": "Nobody claimed it in time; the reward is the customer's again",
    "LAPSED": "Too few auditors attested to the claim; those who did are paid, and everybody has back what it paid in",
}
"""Statuses of a job in a clause, by their names."""

WINDOWS = {
    "commit_deadline": "claim it",
    "challenge_deadline": "challenge it",
    "audit_deadline": "seal an audit",
    "opening_deadline": "open the sealed claim",
    "audit_opening_deadline": "open sealed audits",
    "appeal_deadline": "appeal",
}
"""Actions that are possible until a deadline, by the name of its field."""

EVENTS = {
    "GameStarted": "the clocks start",
    "LevelStarted": "",
    "ClaimRejected": "the claim is rejected",
    "Credited": "",
    "Appealed": "an auditor appeals, and defends the claim",
    "VerdictAppealable": "the auditors that attested may appeal",
    "VerdictUpheld": "the verdict is upheld",
    "VerdictOverturned": "the verdict is overturned",
}
"""Words for events without numbers to tell, by their names; empty for those that only repeat another."""

SETTLED = {"NONE", "FINAL", "REJECTED", "EXPIRED", "LAPSED"}
"""Names of the statuses in which a job holds no reward and no trainer's bond any more."""

TONES = {
    **{"FINAL": "good", "REJECTED": "bad", "EXPIRED": "quiet", "LAPSED": "quiet", "OPEN": "quiet"},
    **{"TRAINER_WON": "good", "CHALLENGER_WON": "bad", "BOTH_LOST": "quiet", "UNDECIDED": "quiet", "VOID": "quiet"},
}
"""The tone in which a job's status or a game's outcome is shown, by its name; one without an entry is under way."""

LEVELS: dict[Level, tuple[str, str]] = {
    Level.CHECKPOINT: ("checkpoint", "Checkpoints of the run"),
    Level.STEP: ("step", "Steps of that interval"),
    Level.OPERATOR: ("operator", "Operators of that step"),
    Level.CHUNK: ("chunk", "Chunks of its output"),
    Level.PARTIAL: ("segment", "Segments of one sum"),
}
"""A leaf of a level in one word, and what all its leaves are."""

DUE: dict[tuple[Phase, Level | None], str] = {
    (Phase.BISECTION, None): "open one node of its tree",
    (Phase.OPENING, Level.CHECKPOINT): "open its root over the steps of this interval",
    (Phase.OPENING, Level.STEP): "open its root over the operators of this step",
    (Phase.OPENING, Level.OPERATOR): "open the disputed operator",
    (Phase.OPENING, Level.PARTIAL): "open its running results of the sum",
    (Phase.POSTING, None): "show the disputed chunk",
    (Phase.PROVING, Level.OPERATOR): "prove what the store keeps",
    (Phase.PROVING, Level.CHUNK): "name one number and prove it",
    (Phase.PROVING, Level.PARTIAL): "prove one segment of the sum",
    (Phase.REFEREE, None): "say which bits are right",
}
"""The move that is due, by phase and level (None: any)."""

ENDS = {
    Reason.PROOF: "by what the contract computed",
    Reason.VERDICT: "by the referee's verdict",
    Reason.TIMEOUT: "because a clock ran out",
    Reason.PADDING: "because the trees first differ in the padding, where only one value is right",
    Reason.CLAIM_REJECTED: "because the claim was rejected in another game",
}

OUTCOMES = {
    Outcome.TRAINER_WON: "The trainer won",
    Outcome.CHALLENGER_WON: "The challenger won",
    Outcome.BOTH_LOST: "Both sides lost",
    Outcome.UNDECIDED: "Nobody won: the referee fell silent, and the bonds return",
    Outcome.VOID: "Void",
}

FINDINGS = {
    Finding.STOPS: "an honest run stops here, so that a claim of any number is wrong",
    Finding.UNDECIDED: "it cannot tell (the rounding is beyond its precision), so the referee does",
}

SIDES = {Side.TRAINER: "trainer", Side.CHALLENGER: "challenger"}

_CHALLENGERS = (events.ElementDisputed, events.ElementProven, events.SegmentProven, events.StoreProven)

POLICIES = [f"{name}: {what} decides" for name, what in zip(POLICY_NAMES, ("the exact value", "the log"), strict=True)]


def field_words(name: str) -> str:
    """Return the name of a record's field for people."""
    return FIELDS.get(name, name.replace("_", " "))


def name_words(value: Enum) -> str:
    """Return the name of an enum's value for people: `CHALLENGER_WON` is "challenger won"."""
    return value.name.lower().replace("_", " ")


def tone(status: Enum) -> str:
    """Return the colour of a status or an outcome: good, bad, quiet or busy. The word beside it always says the
    same."""
    return TONES.get(status.name, "busy")


def mover(group: Iterable[Event]) -> str:
    """Return the party that made a move, by the events that only one can cause; empty if anybody could have."""
    for event in group:
        match event:
            case events.Bisected(mover=side) | events.RootOpened(side=side) | events.LeafOpened(side=side):
                return SIDES[side]
            case events.Challenged():
                return SIDES[Side.CHALLENGER]
            case events.ChunkPosted():
                return SIDES[Side.TRAINER]
            case events.Adjudicated():
                return "referee"
            case _ if isinstance(event, _CHALLENGERS):
                return SIDES[Side.CHALLENGER]
    return ""


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
    """Return a stranger's text on one line, without control characters, cut to `most` characters."""
    text = printable(text[: 4 * most])
    return text if len(text) <= most else text[: most - 1] + "…"


def hexed(data: bytes, most: int = 4096) -> str:
    return "0x" + data[:most].hex() + ("…" if len(data) > most else "")


def short(text: str) -> str:
    """Return both ends of a hash or an address, as people compare them: `0x1234abcd…89ef`."""
    return text if len(text) <= 20 else f"{text[:10]}…{text[-4:]}"


def ether(wei: int) -> str:
    """Return wei in five significant digits, as ether, or as gwei where that is little."""
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
    """Return a time by its two largest units: `2d 3h`, `4m 5s`."""
    return " ".join(f"{count:,}{unit}" for count, unit in by_unit(abs(seconds))[:2]) or "0s"


def content(name: str, cid: str) -> Fact:
    """Return a content address as somebody wrote it on the chain. It is never made a link."""
    shown = bounded(cid)
    try:
        Cid.parse(cid)
    except InvalidCid:
        return Fact(name, shown, "hash", warning="not a content address")
    return Fact(name, shown, "hash")


def fact(name: str, value: Any, *, words: str = "") -> Fact:
    """Return a field of a record by its value and its name's unit."""
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
    """Return the fields of a record in their order, except those that hold records and those named."""
    return [
        fact(one.name, value)
        for one in fields(record)
        if one.name not in without
        and not is_dataclass(value := getattr(record, one.name))
        and not isinstance(value, tuple)
    ]


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a tensor: its bits in hex, as many digits as the element has, and its value as people read it."""

    bits: str
    value: str


def number(bits: int, width: int) -> Number:
    """Return the element of `width` bytes with these bits: 4 are an FP32 number, 8 an integer, 1 a boolean, and 2 a
    number of BF16 or of FP16, which the chain does not tell apart (`roundlog.program.DType`)."""
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
    """Return the shortest decimal that is this FP32 number."""
    import numpy as np

    value = np.float32(struct.unpack("<f", struct.pack("<I", bits))[0])
    if not np.isfinite(value):
        return {True: "NaN"}.get(bool(np.isnan(value)), "infinity" if value > 0 else "-infinity")
    return str(value)


@dataclass(frozen=True, slots=True)
class Names:
    """The operators of one program, by kind and source line ("matmul", "gpt.py:54"), and its slots, by name. A
    stranger's text, shown bounded."""

    operators: Sequence[tuple[str, str]]
    slots: Sequence[str]

    def operator(self, index: int) -> str:
        """Return `matmul of gpt.py line 54`; empty for an operator that the program does not have."""
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
