"""The log of the `threshold` policy: one trit for every output of every inexact operator, five to a byte
(docs/log-format.md, "Payload of kind 1").

OVT, section 5.2: 0 the value was rounded down, 2 it was rounded up, 1 it was not near a rounding boundary.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from roundlog.log import PayloadError, PayloadFormat, PayloadKind

DOWN, PLAIN, UP = 0, 1, 2
PER_BYTE = 5
_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)
_LARGEST = 3**PER_BYTE - 1

MAX_PAYLOAD = 1 << 29
"""Bytes of one step's payload, whatever the program: some 2.6 * 10^9 outputs."""

_COUNT = struct.Struct("<I")
_OPERATOR = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True, eq=False)
class Trits:
    """The trits of one operator's output.

    count: elements of the output. packed: uint8[ceil(count / 5)], the first of five trits has the weight 1, the last
    81; trits beyond the output are 0. Raises PayloadError for anything else.
    """

    count: int
    packed: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.packed.dtype != np.uint8 or self.packed.shape != (packed_size(self.count),):
            raise PayloadError(
                f"{self.count} trits need {packed_size(self.count)} bytes, not {self.packed.dtype}{self.packed.shape}"
            )
        if (wrong := self.packed > _LARGEST).any():
            raise PayloadError(f"byte {int(np.argmax(wrong))} is {int(self.packed[wrong][0])}, not five trits")
        if self.count % PER_BYTE and self.packed[-1] >= 3 ** (self.count % PER_BYTE):
            raise PayloadError("the last byte is padded with trits that are not zero")

    @classmethod
    def pack(cls, codes: NDArray[np.uint8]) -> Trits:
        """codes: uint8[n], each 0, 1 or 2. Raises PayloadError for any other."""
        if codes.size and int(codes.max()) > UP:
            raise PayloadError(f"{int(codes.max())} is not a trit")
        whole = len(codes) // PER_BYTE * PER_BYTE
        packed = np.zeros(packed_size(len(codes)), dtype=np.uint8)
        packed[: whole // PER_BYTE] = codes[:whole].reshape(-1, PER_BYTE) @ _POWERS
        if whole < len(codes):
            packed[-1] = codes[whole:] @ _POWERS[: len(codes) - whole]
        return cls(len(codes), packed)

    def codes(self) -> NDArray[np.uint8]:
        """uint8[count]: the trits, one a byte."""
        flat: NDArray[np.uint8] = _DIGITS[self.packed].reshape(-1)
        return flat[: self.count]

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trits) and self.count == other.count and np.array_equal(self.packed, other.packed)

    __hash__ = None  # type: ignore[assignment]


_DIGITS = (np.arange(_LARGEST + 1)[:, None] // _POWERS.astype(np.int64) % 3).astype(np.uint8)

TritLog = Mapping[int, Trits]
"""The log of one step: the trits of every inexact operator, by operator index."""


def packed_size(count: int) -> int:
    """Bytes of that many trits."""
    return -(-count // PER_BYTE)


def payload_size(operator_sizes: Sequence[int]) -> int:
    """The bytes of every payload of a program; operator_sizes as in `decode`."""
    sizes = [size for size in operator_sizes if size]
    return _COUNT.size + sum(_OPERATOR.size + packed_size(size) for size in sizes)


def encode(step_log: TritLog) -> bytes:
    """The payload of one step. Operators without outputs are left out. Raises PayloadError if it would be too long."""
    operators = [operator for operator in sorted(step_log) if len(step_log[operator])]
    if operators and not 0 <= operators[0] <= operators[-1] < 1 << 32:
        raise PayloadError(f"operator {operators[-1]} is outside 0..2^32 - 1")
    parts = [_COUNT.pack(len(operators))]
    parts += [_OPERATOR.pack(operator, len(step_log[operator])) for operator in operators]
    length = sum(map(len, parts)) + sum(len(step_log[operator].packed) for operator in operators)
    if length > MAX_PAYLOAD:
        raise PayloadError(f"a payload of {length} bytes is above the limit of {MAX_PAYLOAD}")
    return b"".join([*parts, *(step_log[operator].packed.tobytes() for operator in operators)])


def decode(payload: bytes, operator_sizes: NDArray[np.int64] | None) -> dict[int, Trits]:
    """The trits of one payload, from hostile bytes.

    operator_sizes: int64[operators], elements of each inexact operator's output, 0 for all other operators; None
    accepts any (for summaries). Raises PayloadError for whatever `encode` would not have written for that program:
    every inexact operator has to be there, with all of its outputs.
    """
    if len(payload) < _COUNT.size:
        raise PayloadError(f"the operator count needs {_COUNT.size} bytes of a payload of {len(payload)}")
    (number,) = _COUNT.unpack_from(payload)
    start = _COUNT.size + _OPERATOR.size * number
    if start > len(payload):
        raise PayloadError(f"{number} operators need {start} bytes of a payload of {len(payload)}")
    operators = list(_OPERATOR.iter_unpack(payload[_COUNT.size : start]))
    if any(a >= b for (a, _), (b, _) in pairwise(operators)):
        raise PayloadError("operators are not strictly increasing")
    if operator_sizes is not None:
        needed = [(int(i), int(operator_sizes[i])) for i in np.flatnonzero(operator_sizes)]
        if operators != needed:
            raise PayloadError("it is not for the inexact operators of this program and the sizes of their outputs")
    log = {}
    for operator, count in operators:
        stop = start + packed_size(count)
        if count == 0:
            raise PayloadError(f"operator {operator} has no trits")
        if stop > len(payload):
            raise PayloadError(f"the trits of operator {operator} need {stop} bytes of a payload of {len(payload)}")
        try:
            log[operator] = Trits(count, np.frombuffer(payload, np.uint8, stop - start, start))
        except PayloadError as error:
            raise PayloadError(f"operator {operator}: {error}") from error
        start = stop
    if start != len(payload):
        raise PayloadError(f"{len(payload) - start} bytes follow the last trits")
    return log


def _tally(trits: Trits) -> NDArray[np.int64]:
    down, _, up = np.bincount(trits.codes(), minlength=3)
    return np.array([down, up, 0])


TRITS: PayloadFormat[Trits] = PayloadFormat(
    kind=PayloadKind.OUTPUTS,
    most=MAX_PAYLOAD,
    bound=lambda operator_sizes: min(payload_size(operator_sizes), MAX_PAYLOAD),
    encode=encode,
    decode=decode,
    tally=_tally,
)
"""The format of a trit for every output."""
