"""Entries of a log for one step, in memory, and the errors of logs."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


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

    Raises PayloadError for other dtypes, ranks or lengths. Order, range and NaN are checked once for
    a whole step, when it is encoded or decoded.
    """

    indices: NDArray[np.int64]
    decisions: NDArray[np.uint8]
    values: NDArray[np.uint32]

    def __post_init__(self) -> None:
        for name, array, kind in (
            ("indices", self.indices, np.int64),
            ("decisions", self.decisions, np.uint8),
            ("values", self.values, np.uint32),
        ):
            if array.dtype != kind or array.ndim != 1:
                raise PayloadError(
                    f"{name} have to be {np.dtype(kind)} in one dimension, not {array.dtype} in {array.ndim}"
                )
        if len(self.indices) != len(self.decisions):
            raise PayloadError(f"{len(self.indices)} indices have {len(self.decisions)} decisions")

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
