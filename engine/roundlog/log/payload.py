"""Entries of a log for one step, in memory and as bytes before compression (docs/log-format.md, "Payload"), and the
errors of logs.

Every set of entries has exactly one payload, and every payload that is accepted encodes again to the same
bytes. The columns of all operators stand together, so that a step of thousands of operators is a handful of
NumPy calls.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from roundlog.log.layout import PayloadFormat, PayloadKind


class LogError(ValueError):
    """A log that cannot be written, or a file that is not the log it has to be.

    path: the file. offset: the byte of the file where it shows, None if no single byte is to blame.
    reason: the message without path and offset.
    """

    def __init__(self, path: Path, offset: int | None, reason: str) -> None:
        place = f"{path}" if offset is None else f"{path}: byte {offset}"
        super().__init__(f"{place}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[LogError], tuple[Path, int | None, str]]:
        # An error that another process has raised is otherwise made again from its message alone.
        return type(self), (self.path, self.offset, self.reason)


class PayloadError(ValueError):
    """Entries that have no payload, or a payload that has no entries; the message says which rule is broken.

    The writer and the reader turn it into a LogError, which knows the file.
    """


class Decision(enum.IntEnum):
    """Decision on an ambiguous element: how it was rounded."""

    DOWN = 0
    """rnd(y' - d), with the reader's own y' and d."""
    UP = 1
    """rnd(y' + d)."""
    VALUE = 2
    """More than two candidates: the FP32 value itself is logged."""


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The decisions about one operator's output, n entries, m of them VALUE.

    indices: int64[n], flat (C order) element indices, strictly increasing.
    decisions: uint8[n], each a `Decision`.
    values: uint32[m], FP32 bits for the VALUE entries, in order; none is NaN.
    """

    indices: NDArray[np.int64]
    decisions: NDArray[np.uint8]
    values: NDArray[np.uint32]

    @classmethod
    def empty(cls) -> Entries:
        """No entries."""
        return cls(np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.uint32))

    def until(self, lasts: Iterable[int]) -> Iterator[Entries]:
        """The entries up to and with the first of these indices, those after it up to the second, and so on; lasts is
        increasing."""
        start = values = 0
        for last in lasts:
            stop = int(np.searchsorted(self.indices, last, side="right"))
            decisions = self.decisions[start:stop]
            count = int((decisions == Decision.VALUE).sum())
            yield Entries(self.indices[start:stop], decisions, self.values[values : values + count])
            start, values = stop, values + count

    def __len__(self) -> int:
        return len(self.indices)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entries):
            return NotImplemented
        return (
            np.array_equal(self.indices, other.indices)
            and np.array_equal(self.decisions, other.decisions)
            and np.array_equal(self.values, other.values)
        )

    __hash__ = None  # type: ignore[assignment]


StepLog = Mapping[int, Entries]
"""The log of one step: the entries of every operator that has any, by operator index."""


MAX_PAYLOAD = 1 << 26
"""Bytes of one step's payload, whatever the program: some 10^8 entries."""
MAX_ELEMENTS = 1 << 40
"""Elements of one operator's output."""

_COUNTS = struct.Struct("<II")
_MAX_VARINT_BYTES = 9
_MAGNITUDE, _INFINITY = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)


def payload_bound(operator_sizes: Sequence[int]) -> int:
    """The most bytes that a payload can have for a program whose operators have outputs of these sizes."""
    elements = sum(operator_sizes)
    longest_gap = -(-max(max(operator_sizes, default=0), 1).bit_length() // 7)
    bound = _COUNTS.size + 8 * len(operator_sizes) + 2 * -(-elements // 8) + (4 + longest_gap) * elements
    return min(bound, MAX_PAYLOAD)


def encode(step_log: StepLog) -> bytes:
    """The payload of one step. Operators without entries are left out. Raises PayloadError if it would be too long."""
    operators = [operator for operator in sorted(step_log) if len(step_log[operator])]
    columns = [step_log[operator] for operator in operators]
    counts = np.array([len(entries) for entries in columns], np.int64)
    indices = np.concatenate([np.empty(0, np.int64), *(entries.indices for entries in columns)])
    decisions = np.concatenate([np.empty(0, np.uint8), *(entries.decisions for entries in columns)])
    values = np.concatenate([np.empty(0, np.uint32), *(entries.values for entries in columns)])

    gaps = np.diff(indices, prepend=-1) - 1
    starts = np.cumsum(counts) - counts
    gaps[starts] = indices[starts]
    parts = [
        _COUNTS.pack(len(operators), len(values)),
        np.array(operators, "<u4").tobytes(),
        counts.astype("<u4").tobytes(),
        np.packbits(decisions == Decision.UP, bitorder="little").tobytes(),
        np.packbits(decisions == Decision.VALUE, bitorder="little").tobytes() if len(values) else b"",
        values.astype("<u4").tobytes(),
        encode_varints(gaps),
    ]
    payload = b"".join(parts)
    if len(payload) > MAX_PAYLOAD:
        raise PayloadError(f"a payload of {len(payload)} bytes is above the limit of {MAX_PAYLOAD}")
    return payload


def decode(payload: bytes, operator_sizes: NDArray[np.int64] | None) -> dict[int, Entries]:
    """The entries of one payload, from hostile bytes.

    operator_sizes: int64[operators], elements of each operator's output; None accepts any.
    Raises PayloadError for whatever `encode` would not have written, or has no place in these outputs.
    """
    data = _Cursor(payload)
    operator_count, value_count = _COUNTS.unpack(data.take(_COUNTS.size, "counts"))
    operators = data.numbers(operator_count, "operators").astype(np.int64)
    counts = data.numbers(operator_count, "entry counts").astype(np.int64)
    if operator_count and (np.diff(operators) <= 0).any():
        raise PayloadError("operators are not strictly increasing")
    if operator_sizes is None:
        sizes = np.full(operator_count, MAX_ELEMENTS, np.int64)
    elif operator_count and operators[-1] >= len(operator_sizes):
        raise PayloadError(f"operator {operators[-1]} is outside a program of {len(operator_sizes)} operators")
    else:
        sizes = operator_sizes[operators]
    if (wrong := (counts < 1) | (counts > sizes)).any():
        at = int(np.argmax(wrong))
        raise PayloadError(f"operator {operators[at]} has {counts[at]} entries for {sizes[at]} elements")
    total = int(counts.sum())
    up = data.bits(total, "decisions")
    is_value = data.bits(total, "value flags") if value_count else np.zeros(total, np.bool_)
    if np.count_nonzero(is_value) != value_count:
        raise PayloadError(f"{np.count_nonzero(is_value)} entries are flagged as values, not {value_count}")
    if (up & is_value).any():
        raise PayloadError(f"entry {int(np.argmax(up & is_value))} is both up and a value")
    values = data.numbers(value_count, "values")
    if (values & _MAGNITUDE > _INFINITY).any():
        raise PayloadError(f"value {int(np.argmax(values & _MAGNITUDE > _INFINITY))} is NaN")
    indices = _indices(decode_varints(data.rest(), total), operators, counts, sizes)

    decisions = up.astype(np.uint8)
    decisions[is_value] = Decision.VALUE
    ends = np.cumsum(counts)
    value_ends = np.concatenate([[0], np.cumsum(is_value)])[ends].tolist()
    log, start, value_start = {}, 0, 0
    for operator, end, value_end in zip(operators.tolist(), ends.tolist(), value_ends, strict=True):
        log[operator] = Entries(indices[start:end], decisions[start:end], values[value_start:value_end])
        start, value_start = end, value_end
    return log


def _indices(
    gaps: NDArray[np.int64], operators: NDArray[np.int64], counts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    limits = np.repeat(sizes, counts)
    ends = np.cumsum(gaps + 1)
    starts = np.cumsum(counts) - counts
    indices: NDArray[np.int64] = ends - 1 - np.repeat(ends[starts] - gaps[starts] - 1, counts)
    # Sums may wrap around 2^64, but an operator's first index outside cannot hide: the one before it is below 2^40 and
    # a gap below 2^63, so it is too large or has become negative.
    outside = (indices >= limits) | (indices < 0)
    if not outside.any():
        return indices
    operator = operators[int(np.searchsorted(np.cumsum(counts), int(np.argmax(outside)), "right"))]
    raise PayloadError(f"an entry of operator {operator} has an index outside the output")


class _Cursor:
    """Takes fields off the front of a payload."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = 0

    def take(self, length: int, what: str) -> bytes:
        end = self._position + length
        if end > len(self._payload):
            raise PayloadError(f"{what} need {end} bytes of a payload of {len(self._payload)}")
        part = self._payload[self._position : end]
        self._position = end
        return part

    def numbers(self, count: int, what: str) -> NDArray[np.uint32]:
        return np.frombuffer(self.take(4 * count, what), "<u4").astype(np.uint32)

    def bits(self, count: int, what: str) -> NDArray[np.bool_]:
        data = np.frombuffer(self.take(-(-count // 8), what), np.uint8)
        if count % 8 and data[-1] >> (count % 8):
            raise PayloadError(f"{what} are padded with bits that are not zero")
        return np.unpackbits(data, count=count, bitorder="little").astype(np.bool_)

    def rest(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._payload, np.uint8)[self._position :]


# LEB128 varints, whole arrays at a time. A number is its base-128 digits, least significant first, one a byte; all
# bytes but the last have the top bit set. Only the shortest form is valid, and at most 9 bytes (63 bits).


def encode_varints(numbers: NDArray[np.int64]) -> bytes:
    """The varints of `numbers` (int64[n], not negative), one after the other."""
    lengths = np.ones(len(numbers), np.int64)
    for digits in range(1, _MAX_VARINT_BYTES):
        longer = numbers >> (7 * digits) != 0
        if not longer.any():
            break
        lengths += longer
    ends = np.cumsum(lengths)
    starts = ends - lengths
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    for digit in range(int(lengths.max(initial=0))):
        # Most gaps take one byte or two, so the later digits touch few numbers.
        has = slice(None) if digit == 0 else lengths > digit
        more = lengths[has] > digit + 1
        out[starts[has] + digit] = (numbers[has] >> (7 * digit) & 0x7F) | (more * 0x80)
    return out.tobytes()


def decode_varints(data: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """The `count` varints that `data` (uint8[n]) consists of: int64[count].

    Raises PayloadError if it is not exactly so many, or one is not in its shortest form or longer than 9
    bytes.
    """
    ends = np.flatnonzero(data < 0x80)
    if len(ends) != count or (len(data) and data[-1] >= 0x80):
        raise PayloadError(f"the {len(data)} bytes of gaps do not hold exactly {count} varints")
    lengths = np.diff(ends, prepend=-1)
    starts = ends - lengths + 1
    longest = int(lengths.max(initial=0))
    if longest > _MAX_VARINT_BYTES:
        raise PayloadError(
            f"varint {int(np.argmax(lengths > _MAX_VARINT_BYTES))} has more than {_MAX_VARINT_BYTES} bytes"
        )
    padded = (data[ends] == 0) & (lengths > 1)
    if padded.any():
        raise PayloadError(f"varint {int(np.argmax(padded))} is not in its shortest form")
    numbers = data[starts].astype(np.int64) & 0x7F
    for digit in range(1, longest):
        has = np.flatnonzero(lengths > digit)
        numbers[has] |= (data[starts[has] + digit].astype(np.int64) & 0x7F) << (7 * digit)
    return numbers


ENTRIES: PayloadFormat[Entries] = PayloadFormat(
    kind=PayloadKind.ENTRIES,
    most=MAX_PAYLOAD,
    bound=payload_bound,
    encode=encode,
    decode=decode,
)
"""The format of the decisions that matter."""
