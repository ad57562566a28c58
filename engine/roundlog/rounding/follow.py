"""The auditor's side: read the decisions from a trainer's log, and trust none of them further than it must.

The log is a hint. What it says about elements that are not ambiguous here is checked against the value that is
certain here; what it says about ambiguous ones must be one of the candidates, and a secret random share is resolved
exactly. Whatever is found wrong is reported, and the right value used.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from roundlog.arithmetic import adjacent, round_interval
from roundlog.log import Decision, Entries
from roundlog.operators import Inexact
from roundlog.operators.bound import Bound
from roundlog.operators.registry import Attributes, Tensors
from roundlog.rounding.resolve import AUDITOR_REACH, Marked, mark, resolve

MAX_FINDINGS = 1000
"""A log with so many wrong entries is worth nothing: it is not followed any further, and an auditor's memory does not
fill with findings that a hostile log can make by the million."""


class FindingKind(enum.StrEnum):
    """What can be wrong with a log."""

    FORGED = "forged"
    """A decision that no honest trainer can have made: it contradicts the correct rounding, or is for an element
    that is nowhere near a rounding boundary."""
    MISSING = "missing"
    """An ambiguous element without an entry. Resolved here; no harm done."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One wrong entry: at which step and operator of the program, which flat element of its output."""

    step: int
    operator: int
    element: int
    kind: FindingKind
    message: str


class Follower:
    """Certified rounding by somebody else's log (implements Rounding).

    After MAX_FINDINGS wrong entries the log is given up, and everything is resolved here.

    `share`: the probability with which a decision inside the ambiguous set is verified (1.0: all of them).
    `generator`: the auditor's secret randomness for that sample; whoever can predict it can bend unsampled entries.
    """

    def __init__(self, guard: int, share: float, generator: np.random.Generator) -> None:
        self.guard = guard
        self.share = share
        self.generator = generator
        self.findings: list[Finding] = []
        self.followed = 0
        """Decisions taken from logs without an exact evaluation, so far."""
        self._step = 0
        self._log: Mapping[int, Entries] | None = None

    @classmethod
    def of_nobody(cls, guard: int) -> Follower:
        """Certified rounding without any log: all that is ambiguous is resolved here."""
        return cls(guard, 1.0, np.random.default_rng())

    def follow(self, step: int, log: Mapping[int, Entries] | None) -> None:
        """The log of the step that runs next; None: there is none, and everything is resolved here."""
        self._step, self._log = step, log

    @property
    def given_up(self) -> bool:
        """Whether so much of the log was wrong that it is not followed any more."""
        return len(self.findings) >= MAX_FINDINGS

    def round(self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        y, bound = operator.evaluate(inputs, attributes)
        rounded, marked = mark(y, bound, 1.0)
        if not marked.y.isfinite().all():
            rounded.view(-1)[marked.indices[~marked.y.isfinite()]] = torch.nan
            return rounded
        if self._log is None or self.given_up:
            rounded.view(-1)[marked.indices] = resolve(operator, inputs, attributes, marked)
            return rounded
        entries = self._log.get(index, Entries.empty())
        logged, decisions, values = _unpack(entries, y.device)

        position = torch.searchsorted(logged, marked.indices)
        found = torch.zeros_like(marked.indices, dtype=torch.bool)
        inside = position < len(logged)
        found[inside] = logged[position[inside]] == marked.indices[inside]
        self._check_entries_elsewhere(index, rounded, y, bound, logged, decisions, values, marked)
        if len(marked.indices):
            chosen = self._decide(index, operator, inputs, attributes, marked, found, position, decisions, values)
            rounded.view(-1)[marked.indices] = chosen
        return rounded

    def _decide(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        marked: Marked,
        found: torch.Tensor,
        position: torch.Tensor,
        decisions: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """The values of the ambiguous elements: logged where the log may be believed, resolved elsewhere."""
        at = position.clamp(max=max(len(decisions) - 1, 0))
        decision = decisions[at] if len(decisions) else torch.zeros_like(at)
        value = values[at] if len(values) else torch.zeros_like(marked.low)
        two = adjacent(*round_interval(marked.y, marked.d, self.guard + AUDITOR_REACH))
        by_value = decision == int(Decision.VALUE)
        logged = torch.where(by_value, value, torch.where(decision == int(Decision.UP), marked.high, marked.low))
        # Up and down name the two sides of the one boundary within reach; a value must be one of the candidates.
        possible = torch.where(by_value, (value >= marked.low) & (value <= marked.high), two)
        sampled = torch.from_numpy(self.generator.random(len(marked.indices)) < self.share).to(found.device)
        follow = found & possible & ~sampled
        self.followed += int(follow.sum())
        if follow.all():
            return logged
        rest = (~follow).nonzero().squeeze(1)
        part = Marked(*(getattr(marked, name)[rest] for name in ("indices", "y", "d", "low", "high")))
        right = resolve(operator, inputs, attributes, part)
        wrong = found[rest] & (~possible[rest] | (logged[rest] != right))
        self._report(index, part.indices[wrong], FindingKind.FORGED, "the logged decision is not the correct rounding")
        self._report(index, part.indices[~found[rest]], FindingKind.MISSING, "the log has no decision for it")
        result = logged.clone()
        result[rest] = right
        return result

    def _check_entries_elsewhere(
        self,
        index: int,
        rounded: torch.Tensor,
        y: torch.Tensor,
        bound: Bound,
        logged: torch.Tensor,
        decisions: torch.Tensor,
        values: torch.Tensor,
        marked: Marked,
    ) -> None:
        """Entries for elements that are certain here: near a boundary they must agree with it, elsewhere they must
        not be."""
        if not len(logged):
            return
        elsewhere = ~torch.isin(logged, marked.indices)
        if not elsewhere.any():
            return
        indices, decision, value = logged[elsewhere], decisions[elsewhere], values[elsewhere]
        certain = rounded.reshape(-1)[indices]
        chosen = y.reshape(-1)[indices]
        low, high = round_interval(chosen, bound.at(indices, chosen), self.guard + AUDITOR_REACH)
        self._report(index, indices[low == high], FindingKind.FORGED, "it is not near a rounding boundary")
        says_high, by_value = decision == int(Decision.UP), decision == int(Decision.VALUE)
        # Up and down are for elements with one boundary within reach, and then they say what the value is.
        contradicts = torch.where(
            by_value, value != certain, ~adjacent(low, high) | (torch.where(says_high, high, low) != certain)
        )
        self._report(
            index,
            indices[contradicts & (low != high)],
            FindingKind.FORGED,
            "the logged decision is not the correct rounding",
        )

    def _report(self, operator: int, elements: torch.Tensor, kind: FindingKind, message: str) -> None:
        room = MAX_FINDINGS - len(self.findings)
        for element in elements[: max(room, 0)].tolist():
            self.findings.append(Finding(self._step, operator, element, kind, message))


def _unpack(entries: Entries, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Entries as tensors: indices int64[n], decisions int64[n], values f32[n] (zero where the entry has none)."""
    values = np.zeros(len(entries.indices), dtype=np.uint32)
    values[entries.decisions == int(Decision.VALUE)] = entries.values
    return (
        torch.from_numpy(entries.indices).to(device),
        torch.from_numpy(entries.decisions.astype(np.int64)).to(device),
        # + 0.0: a logged -0 is the +0 that an inexact operator gives.
        torch.from_numpy(values.view(np.float32) + np.float32(0.0)).to(device),
    )
