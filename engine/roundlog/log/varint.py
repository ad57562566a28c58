"""LEB128 varints, whole arrays at a time.

A number is its base-128 digits, least significant first, one a byte; all bytes but the last have the top
bit set. Only the shortest form is valid, and at most 9 bytes (63 bits).
"""

import numpy as np
from numpy.typing import NDArray

from roundlog.log.errors import PayloadError

MAX_BYTES = 9


def encode(numbers: NDArray[np.int64]) -> bytes:
    """The varints of `numbers` (int64[n], not negative), one after the other."""
    lengths = np.ones(len(numbers), np.int64)
    for digits in range(1, MAX_BYTES):
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


def decode(data: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
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
    if longest > MAX_BYTES:
        raise PayloadError(f"varint {int(np.argmax(lengths > MAX_BYTES))} has more than {MAX_BYTES} bytes")
    padded = (data[ends] == 0) & (lengths > 1)
    if padded.any():
        raise PayloadError(f"varint {int(np.argmax(padded))} is not in its shortest form")
    numbers = data[starts].astype(np.int64) & 0x7F
    for digit in range(1, longest):
        has = np.flatnonzero(lengths > digit)
        numbers[has] |= (data[starts[has] + digit].astype(np.int64) & 0x7F) << (7 * digit)
    return numbers
