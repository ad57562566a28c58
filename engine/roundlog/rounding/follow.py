"""The auditor's side: read the decisions from a trainer's log, and trust none of them further than it must.

The log is a hint. Who verifies all of it takes no value from it: every ambiguous element is resolved exactly, as
without a log, and what the log says is compared with that. Who verifies a share takes the rest on trust: what the log
says about elements that are not ambiguous here is checked against the value that is certain here; what it says about
ambiguous ones must be one of the candidates, and a secret random share is resolved exactly. Whatever is found wrong is
reported, and the right value used.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic import adjacent, as_dtype, in_format
from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels.rounding_loops import weigh as weigh_by_kernel
from roundlog.log import Decision, Entries
from roundlog.log.payload import PayloadError
from roundlog.number_format import FLOAT32, Format
from roundlog.operators import Inexact
from roundlog.operators.bounds import Ambiguous
from roundlog.operators.registry import Attributes, Tensors, operands
from roundlog.rounding.protocols import (
    FollowingRounding,
    LogFinding,
    LogFindingKind,
    Window,
    WindowRounding,
)
from roundlog.rounding.resolve import AUDITOR_REACH, F32, I64, bounded, certify, ends, pieces, put, resolve, settle


class ElementVerdict(enum.IntEnum):
    """Verdict on an element; those from SAMPLED on have to be resolved."""

    CERTAIN = 0
    """Here there is one candidate, and the log says nothing else."""
    FOLLOWED = 1
    """The log names one of the candidates, and is believed."""
    CONTRADICTED = 2
    """Here there is one candidate, and the log says something else: it is wrong."""
    SAMPLED = 3
    """The log names one of the candidates, and is verified."""
    IMPOSSIBLE = 4
    """Wrong: the log names none of the candidates."""
    MISSING = 5
    """The log says nothing."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """Marked elements, n of them, with what the log's check found."""

    values: npt.NDArray[np.float32]
    """float32[n]: the candidate where there is one; what the log says, where it says something; else the lower one."""
    verdicts: npt.NDArray[np.uint8]
    """uint8[n]: an ElementVerdict each."""


def weigh(
    marked: Ambiguous, entries: Entries, sampled: npt.NDArray[np.bool_], reach: float, format: Format = FLOAT32
) -> Weighed:
    """sampled: bool[n], the marked elements whose decisions are verified. reach: up and down are for elements with one
    boundary within reach * d, and name its two sides. In one loop where there is a kernel for it.

    Raises PayloadError for entries with other values than decisions to log one."""
    by_value = entries.decisions == int(Decision.VALUE)
    if int(np.count_nonzero(by_value)) != len(entries.values):
        raise PayloadError(f"{len(entries.values)} values are logged for {np.count_nonzero(by_value)} decisions")
    if format != FLOAT32:
        return weigh_by_reference(marked, entries, sampled, reach, format)
    return Weighed(
        *weigh_by_kernel(
            marked.y.numpy(),
            marked.d.numpy(),
            marked.indices.numpy(),
            interval_factor(1.0),
            interval_factor(reach),
            (entries.indices, entries.decisions, entries.values.view(np.float32)),
            sampled,
        )
    )


def weigh_by_reference(
    marked: Ambiguous, entries: Entries, sampled: npt.NDArray[np.bool_], reach: float, format: Format
) -> Weighed:
    """`weigh`, in torch."""
    low, high = ends(marked, format=format)
    far_low, far_high = ends(marked, reach, format)
    found, decision, value = _find(entries, marked.indices)
    by_value, up = decision == int(Decision.VALUE), decision == int(Decision.UP)
    one_boundary = adjacent(far_low, far_high, format)
    certain = low == high
    agrees = torch.where(by_value, value == low, one_boundary & (torch.where(up, far_high, far_low) == low))
    said = torch.where(by_value, value, torch.where(up, high, low))
    candidate = (value >= low) & (value <= high) & in_format(value, format)
    possible = torch.where(by_value, candidate, one_boundary)
    verdicts = np.select(
        [
            (certain & (~found | agrees)).numpy(),
            certain.numpy(),
            ~found.numpy(),
            ~possible.numpy(),
            sampled,
        ],
        [
            np.uint8(verdict)
            for verdict in (
                ElementVerdict.CERTAIN,
                ElementVerdict.CONTRADICTED,
                ElementVerdict.MISSING,
                ElementVerdict.IMPOSSIBLE,
                ElementVerdict.SAMPLED,
            )
        ],
        np.uint8(ElementVerdict.FOLLOWED),
    )
    return Weighed(torch.where(certain | ~found, low, said).numpy(), verdicts)


def _find(entries: Entries, elements: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(whether there is an entry, its decision, its value or zero) for every one of these elements, int64[m]."""
    if not len(entries):
        nothing = torch.zeros_like(elements)
        return nothing.bool(), nothing, nothing.to(torch.float32)
    values = np.zeros(len(entries), dtype=np.uint32)
    values[entries.decisions == int(Decision.VALUE)] = entries.values
    position = np.searchsorted(entries.indices, elements.numpy()).clip(max=len(entries) - 1)
    return (
        torch.from_numpy(entries.indices[position] == elements.numpy()),
        torch.from_numpy(entries.decisions[position].astype(np.int64)),
        # + 0.0: a logged -0 is the +0 that an inexact operator gives.
        torch.from_numpy(values[position].view(np.float32) + np.float32(0.0)),
    )


class Follower(WindowRounding, FollowingRounding):
    """Certified rounding by somebody else's log.

    After MAX_FINDINGS wrong entries the log is given up, and everything is resolved here.

    `share`: the probability with which a decision inside the ambiguous set is verified. With 1.0 all of them are, and
    the values are those of a run without a log, whatever the log says.
    `generator`: the auditor's secret randomness for that sample; who can predict it can bend unsampled entries.
    """

    def __init__(self, guard: int, share: float, generator: np.random.Generator) -> None:
        self.guard = guard
        self.share = share
        self.generator = generator
        self.findings: list[LogFinding] = []
        self.followed = 0
        """Decisions taken from logs without an exact evaluation, so far."""
        self._step = 0
        self.log: Mapping[int, Entries] | None = None
        """The log of the step that runs next, or is running."""
        self._window: Window | None = None
        self._before = (0, 0)
        """Number of findings before the running step, and of decisions followed."""

    @classmethod
    def without_log(cls, guard: int) -> Follower:
        """Certified rounding without any log: all that is ambiguous is resolved here."""
        return cls(guard, 1.0, np.random.default_rng())

    def follow(self, step: int, log: Mapping[int, Entries] | None) -> None:
        """The log of the step that runs next; None: there is none, and everything is resolved here."""
        self._step, self.log = step, log
        self._before = len(self.findings), self.followed

    def start_again(self) -> None:
        del self.findings[self._before[0] :]
        self.followed = self._before[1]

    def sort_findings(self) -> None:
        """Put the findings of the running step in the order of operators and elements, which parts may have changed."""
        found = self._before[0]
        self.findings[found:] = sorted(self.findings[found:], key=lambda one: (one.operator, one.element))

    def round(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        format: Format = FLOAT32,
        window: Window | None = None,
    ) -> torch.Tensor:
        """The rounded output, as `WindowRounding.round` gives it."""
        self._window = window
        inputs = operands(operator, inputs)
        # Wide enough for every element that an honest trainer may have written down.
        rounded, near = certify(operator, inputs, attributes, self.guard + AUDITOR_REACH, format)
        if self.log is None and not near.indices.numel():
            return as_dtype(rounded, format)
        if not bounded(near):
            near = settle(operator, inputs, attributes, rounded, near, format)
        parts = pieces(near)
        logs: Iterable[Entries | None] = [None] * len(parts)
        if self.log is not None and not self.given_up:
            entries = self.log.get(index, Entries.empty())
            entries = entries if window is None else window.entries(entries)
            self._report_astray(index, near, entries)
            logs = entries.until(int(some.indices[-1]) for some in parts)
        for some, log in zip(parts, logs, strict=True):
            if log is None:
                values = resolve(operator, inputs, attributes, some, format)
            else:
                values = self._decide(index, operator, inputs, attributes, some, format, log)
            put(rounded, some.indices, values)
        return as_dtype(rounded, format)

    def _decide(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        marked: Ambiguous,
        format: Format,
        entries: Entries,
    ) -> F32:
        """The values of the marked elements: all resolved where everything is verified; else logged where the log may
        be believed."""
        count = len(marked.indices)
        sampled = np.ones(count, np.bool_) if self.share >= 1.0 else self.generator.random(count) < self.share
        weighed = weigh(marked, entries, sampled, self.guard + AUDITOR_REACH, format)
        values, verdicts = weighed.values, weighed.verdicts
        self.followed += int(np.count_nonzero(verdicts == ElementVerdict.FOLLOWED))
        if not (verdicts > ElementVerdict.FOLLOWED).any():
            return values
        elements, right = marked.indices.numpy(), values.copy()
        rest = np.flatnonzero(verdicts >= ElementVerdict.SAMPLED)
        right[rest] = resolve(operator, inputs, attributes, marked.of(torch.from_numpy(rest)), format)
        wrong = (verdicts == ElementVerdict.SAMPLED) & (values != right)
        wrong |= (verdicts == ElementVerdict.CONTRADICTED) | (verdicts == ElementVerdict.IMPOSSIBLE)
        self._report(index, elements[wrong], LogFindingKind.FORGED, "the logged decision is not the correct rounding")
        missing = elements[verdicts == ElementVerdict.MISSING]
        self._report(index, missing, LogFindingKind.MISSING, "the log has no decision for it")
        return right

    def _report_astray(self, index: int, near: Ambiguous, entries: Entries) -> None:
        """Entries for elements that are nowhere near a boundary must not be."""
        indices = near.indices.numpy()
        place = np.searchsorted(indices, entries.indices)
        there = place < len(indices)
        there[there] = indices[place[there]] == entries.indices[there]
        self._report(index, entries.indices[~there], LogFindingKind.FORGED, "it is not near a rounding boundary")

    def _report(self, operator: int, elements: I64, kind: LogFindingKind, message: str) -> None:
        wrong = elements[: self.room]
        if self._window is not None:
            wrong = self._window.whole(wrong)
        for element in wrong.tolist():
            self.findings.append(LogFinding(self._step, operator, element, kind, message))
