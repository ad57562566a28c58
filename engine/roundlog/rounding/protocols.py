"""Protocols of rounding policies, for executors, trainers and auditors; findings about logs; and windows, parts of an
operator's output that are rounded one by one."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from roundlog.log import Decision, Entries, LogReader, LogWriter, PayloadKind
from roundlog.number_format import Format
from roundlog.operators import Attributes, Inexact, Tensors

MAX_FINDINGS = 1000
"""A log with so many wrong entries is worth nothing: it is not followed any further, and an auditor's memory does not
fill with findings that a hostile log can make by the million."""


class Rounding(Protocol):
    """Rounding policy of an executor: it turns the approximations of inexact operators into values."""

    def round(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes, format: Format
    ) -> torch.Tensor:
        """The correctly rounded value of every element of operator `index` of the running step: numbers of the format,
        which is that of the operator's output, of its dtype. The inputs may be of different formats."""

    def start_again(self) -> None:
        """Forget what was noted of the running step: it is executed again."""


class WindowRounding(ABC):
    """A rounding policy (implements Rounding) that rounds an operator's output in parts, too."""

    @abstractmethod
    def start_again(self) -> None: ...

    @abstractmethod
    def round(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        format: Format,
        window: Window | None = None,
    ) -> torch.Tensor:
        """As `Rounding.round`. window: which part of the operator's output this is, and the inputs are those that it
        reads; None: all of it. No element may be in two parts."""


class RecordingRounding(Rounding, Protocol):
    """The trainer's rounding: it keeps what the log has to say of the running step."""

    kind: PayloadKind
    """Kind of the log that it writes."""

    def take(self) -> dict[int, Any]:
        """Return the log of the step that has just run, by operator index, and start the next one."""
        ...

    def write(self, writer: LogWriter, step: int) -> None:
        """Hand the log of the step that has just run to a file. Raises LogError."""
        writer.append(step, self.take())


class FollowingRounding(Rounding, Protocol):
    """The auditor's rounding, by somebody else's log or by none."""

    findings: list[LogFinding]
    """Wrong entries of the logs so far, in order."""

    @property
    def room(self) -> int:
        """Number of findings that there may still be."""
        return max(MAX_FINDINGS - len(self.findings), 0)

    @property
    def given_up(self) -> bool:
        """Whether so much of the log was wrong that it is not followed any more."""
        return not self.room

    def follow(self, step: int, log: Mapping[int, Any] | None) -> None:
        """Follow the log of the step that runs next, by operator index; None: there is none."""

    def read(self, reader: LogReader, step: int) -> None:
        """Follow what a log file says of the step that runs next. Raises LogError."""
        self.follow(step, reader.step(step))


class LogFindingKind(enum.StrEnum):
    """Kinds of faults of a log."""

    FORGED = "forged"
    """A decision that no honest trainer can have made: it contradicts the correct rounding, or is for an element
    that is nowhere near a rounding boundary."""
    MISSING = "missing"
    """An ambiguous element without an entry. Resolved here; no harm done."""


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One wrong entry: at which step and operator of the program, which flat element of its output."""

    step: int
    operator: int
    element: int
    kind: LogFindingKind
    message: str


Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """Positions start <= p < stop of one axis of a tensor of this shape. Flat indices are in C order: *whole* in the
    tensor, *local* in the part."""

    shape: tuple[int, ...]
    axis: int
    start: int
    stop: int
    around: Window | None = None
    """The part of an output that the tensor is, if it is not all of it: whole indices are those in the output."""

    @property
    def _inner(self) -> int:
        return prod(self.shape[self.axis + 1 :])

    def entries(self, log: Entries) -> Entries:
        """The entries of the whole output that are for the part, under their local indices."""
        log = log if self.around is None else self.around.entries(log)
        line, within = np.divmod(log.indices, self._inner)
        outer, position = np.divmod(line, self.shape[self.axis])
        inside = (position >= self.start) & (position < self.stop)
        local = (outer * (self.stop - self.start) + position - self.start) * self._inner + within
        of_values = inside[log.decisions == int(Decision.VALUE)]
        return Entries(local[inside], log.decisions[inside], log.values[of_values])

    def entries_of_whole(self, local: Entries) -> Entries:
        """The entries of the part under their whole indices, ascending."""
        return in_order([Entries(self.whole(local.indices), local.decisions, local.values)])

    def whole(self, local: Index) -> Index:
        """Whole indices of local ones."""
        line, within = np.divmod(local, self._inner)
        outer, position = np.divmod(line, self.stop - self.start)
        found: Index = (outer * self.shape[self.axis] + position + self.start) * self._inner + within
        return found if self.around is None else self.around.whole(found)

    def whole_one(self, local: int) -> int:
        """Whole index of one local index."""
        return int(self.whole(np.array([local], dtype=np.int64))[0])


def in_order(parts: Sequence[Entries]) -> Entries:
    """Entries of parts of one output that have no element in common, as those of the whole: ascending."""
    indices = np.concatenate([one.indices for one in parts])
    decisions = np.concatenate([one.decisions for one in parts])
    values = np.concatenate([one.values for one in parts])
    if (indices[1:] > indices[:-1]).all():
        return Entries(indices, decisions, values)
    order = np.argsort(indices, kind="stable")
    by_value = decisions == int(Decision.VALUE)
    # The place of every value among the values, for those that have one.
    place = np.cumsum(by_value) - 1
    return Entries(indices[order], decisions[order], values[place[order][by_value[order]]])
