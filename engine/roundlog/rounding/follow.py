"""The auditor's side: read the decisions from a trainer's log, and trust none of them further than it must.

The log is a hint. What it says about elements that are not ambiguous here is checked against the value that is
certain here; what it says about ambiguous ones must be one of the candidates, and a secret random share is resolved
exactly. Whatever is found wrong is reported, and the right value used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from roundlog.arithmetic import FULL_BITS, adjacent, in_format
from roundlog.log import Decision, Entries, LogReader
from roundlog.operators import Inexact
from roundlog.operators.marking import Marked
from roundlog.operators.registry import Attributes, Tensors
from roundlog.rounding.finding import MAX_FINDINGS, Finding, FindingKind
from roundlog.rounding.resolve import AUDITOR_REACH, certify, ends, give_up, pieces, put, resolve
from roundlog.rounding.window import Window


class Follower:
    """Certified rounding by somebody else's log (implements Rounding).

    After MAX_FINDINGS wrong entries the log is given up, and everything is resolved here.

    `share`: the probability with which a decision inside the ambiguous set is verified (1.0: all of them).
    `generator`: the auditor's secret randomness for that sample; whoever can predict it can bend unsampled entries.
    `bits`: of the results.
    """

    def __init__(self, guard: int, share: float, generator: np.random.Generator, bits: int = FULL_BITS) -> None:
        self.guard = guard
        self.bits = bits
        self.share = share
        self.generator = generator
        self.findings: list[Finding] = []
        self.followed = 0
        """Decisions taken from logs without an exact evaluation, so far."""
        self._step = 0
        self._log: Mapping[int, Entries] | None = None
        self._window: Window | None = None

    @classmethod
    def of_nobody(cls, guard: int, bits: int = FULL_BITS) -> Follower:
        """Certified rounding without any log: all that is ambiguous is resolved here."""
        return cls(guard, 1.0, np.random.default_rng(), bits)

    def follow(self, step: int, log: Mapping[int, Entries] | None) -> None:
        """The log of the step that runs next; None: there is none, and everything is resolved here."""
        self._step, self._log = step, log

    def read(self, reader: LogReader, step: int) -> None:
        """`follow` what a log file says of the step that runs next. Raises LogError."""
        self.follow(step, reader.step(step))

    @property
    def given_up(self) -> bool:
        """Whether so much of the log was wrong that it is not followed any more."""
        return len(self.findings) >= MAX_FINDINGS

    def round(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        window: Window | None = None,
    ) -> tuple[torch.Tensor, bool]:
        """As `Rounding.round`. window: which part of the operator's output this is; None: all of it."""
        self._window = window
        # Wide enough for every element that an honest trainer may have written down.
        rounded, near = certify(operator, inputs, attributes, self.guard + AUDITOR_REACH, self.bits)
        if give_up(operator, inputs, attributes, rounded, near, self.bits):
            return rounded, False
        parts = pieces(near)
        logs: Iterable[Entries | None] = [None] * len(parts)
        if self._log is not None and not self.given_up:
            entries = self._log.get(index, Entries.empty())
            entries = entries if window is None else window.entries(entries)
            self._report_astray(index, near, entries)
            logs = entries.until(int(some.indices[-1]) for some in parts)
        finite = True
        for some, log in zip(parts, logs, strict=True):
            low, high = ends(some, bits=self.bits)
            doubtful = low != high
            marked = some.of(doubtful)
            if log is None:
                low[doubtful] = resolve(operator, inputs, attributes, marked, self.bits)
            else:
                logged = _unpack(log)
                self._check_certain(index, some.of(~doubtful), low[~doubtful], logged)
                if len(marked.indices):
                    candidates = low[doubtful], high[doubtful]
                    low[doubtful] = self._decide(index, operator, inputs, attributes, marked, candidates, logged)
            put(rounded, some.indices, low)
            finite &= bool(low.isfinite().all())
        return rounded, finite

    def _decide(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        marked: Marked,
        candidates: tuple[torch.Tensor, torch.Tensor],
        logged: _Logged,
    ) -> torch.Tensor:
        """The values of the ambiguous elements: logged where the log may be believed, resolved elsewhere."""
        low, high = candidates
        found, decision, value = logged.at(marked.indices)
        two = adjacent(*ends(marked, self.guard + AUDITOR_REACH, self.bits), self.bits)
        by_value = decision == int(Decision.VALUE)
        said = torch.where(by_value, value, torch.where(decision == int(Decision.UP), high, low))
        # Up and down name the two sides of the one boundary within reach; a value must be one of the candidates.
        candidate = (value >= low) & (value <= high) & in_format(value, self.bits)
        possible = torch.where(by_value, candidate, two)
        sampled = torch.from_numpy(self.generator.random(len(marked.indices)) < self.share)
        follow = found & possible & ~sampled
        self.followed += int(follow.sum())
        if follow.all():
            return said
        rest = (~follow).nonzero().squeeze(1)
        part = marked.of(rest)
        right = resolve(operator, inputs, attributes, part, self.bits)
        wrong = found[rest] & (~possible[rest] | (said[rest] != right))
        self._report(index, part.indices[wrong], FindingKind.FORGED, "the logged decision is not the correct rounding")
        self._report(index, part.indices[~found[rest]], FindingKind.MISSING, "the log has no decision for it")
        result = said.clone()
        result[rest] = right
        return result

    def _report_astray(self, index: int, near: Marked, entries: Entries) -> None:
        """Entries for elements that are nowhere near a boundary must not be."""
        indices = near.indices.numpy()
        place = np.searchsorted(indices, entries.indices)
        there = place < len(indices)
        there[there] = indices[place[there]] == entries.indices[there]
        astray = torch.from_numpy(entries.indices[~there])
        self._report(index, astray, FindingKind.FORGED, "it is not near a rounding boundary")

    def _check_certain(self, index: int, certain: Marked, values: torch.Tensor, logged: _Logged) -> None:
        """Entries for elements that are certain here, near a boundary: they must agree with it."""
        if not len(logged.indices):
            return
        found, decision, value = logged.at(certain.indices)
        low, high = ends(certain, self.guard + AUDITOR_REACH, self.bits)
        says_high, by_value = decision == int(Decision.UP), decision == int(Decision.VALUE)
        # Up and down are for elements with one boundary within reach, and then they say what the value is.
        one_boundary = adjacent(low, high, self.bits)
        contradicts = torch.where(
            by_value, value != values, ~one_boundary | (torch.where(says_high, high, low) != values)
        )
        self._report(
            index,
            certain.indices[contradicts & found],
            FindingKind.FORGED,
            "the logged decision is not the correct rounding",
        )

    def _report(self, operator: int, elements: torch.Tensor, kind: FindingKind, message: str) -> None:
        room = MAX_FINDINGS - len(self.findings)
        wrong = elements[: max(room, 0)].numpy()
        if self._window is not None:
            wrong = self._window.whole(wrong)
        for element in wrong.tolist():
            self.findings.append(Finding(self._step, operator, element, kind, message))


@dataclass(frozen=True, slots=True)
class _Logged:
    """One operator's entries as tensors."""

    indices: torch.Tensor
    """int64[n], ascending."""
    decisions: torch.Tensor
    """int64[n]."""
    values: torch.Tensor
    """f32[n]; zero where the entry has none."""

    def at(self, elements: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(whether there is an entry, its decision, its value) for every one of these elements, int64[m]."""
        if not len(self.indices):
            nothing = torch.zeros_like(elements)
            return nothing.bool(), nothing, nothing.to(torch.float32)
        position = torch.searchsorted(self.indices, elements).clamp_(max=len(self.indices) - 1)
        return self.indices[position] == elements, self.decisions[position], self.values[position]


def _unpack(entries: Entries) -> _Logged:
    values = np.zeros(len(entries.indices), dtype=np.uint32)
    values[entries.decisions == int(Decision.VALUE)] = entries.values
    return _Logged(
        torch.from_numpy(entries.indices),
        torch.from_numpy(entries.decisions.astype(np.int64)),
        # + 0.0: a logged -0 is the +0 that an inexact operator gives.
        torch.from_numpy(values.view(np.float32) + np.float32(0.0)),
    )
