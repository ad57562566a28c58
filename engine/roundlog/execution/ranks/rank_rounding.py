"""Rounding on one rank: by the log of the whole step, and into it.

A rank rounds its slices and its shares of sums alone, and whole values as every other rank does. So it has two
roundings, one for what is its own, and one that is in the same state on every rank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from roundlog.log import Entries
from roundlog.log.payload import decode, encode
from roundlog.operators import Inexact
from roundlog.operators.registry import Attributes, Tensors
from roundlog.rounding import Follower, LogFinding, LogFindingKind, Recorder, Rounding, Window, in_order
from roundlog.rounding.protocols import MAX_FINDINGS


@dataclass(frozen=True, slots=True)
class RoundingOrder:
    """The part of an order that says how all ranks round in a step."""

    records: bool
    """Whether decisions are recorded; otherwise a log is followed, if there is one."""
    guard: int
    share: float
    """Share of the decisions to verify."""
    secret: int
    """Seed of the random numbers by which these are drawn, below 2^63."""
    has_log: bool

    @classmethod
    def of(cls, rounding: Rounding) -> RoundingOrder:
        """The one that follows from rank 0's rounding. Raises TypeError for another policy than `certified`."""
        if isinstance(rounding, Recorder):
            return cls(True, rounding.guard, 1.0, 0, False)
        if isinstance(rounding, Follower):
            secret = int(rounding.generator.integers(1 << 63))
            return cls(False, rounding.guard, rounding.share, secret, rounding.log is not None)
        raise TypeError(f"ranks cannot be rounded by a {type(rounding).__name__}: give a Recorder or a Follower")


def log_bytes(rounding: Rounding) -> bytes:
    """The log that rank 0 follows in this step, for the others."""
    log = rounding.log if isinstance(rounding, Follower) else None
    return b"" if log is None else encode(log)


class RankRounding:
    """The roundings of one rank in one step."""

    def __init__(self, orders: RoundingOrder, rank: int, step: int, bits: int, log: bytes) -> None:
        self._own, self._shared = (self._made(orders, seed, step, bits, log) for seed in (rank + 1, 0))
        self._tells_all = rank == 0
        """Whether what every rank finds is told by this one."""

    @staticmethod
    def _made(orders: RoundingOrder, seed: int, step: int, bits: int, log: bytes) -> Recorder | Follower:
        if orders.records:
            return Recorder(orders.guard, bits)
        made = Follower(orders.guard, orders.share, np.random.default_rng([orders.secret, seed]), bits)
        made.follow(step, decode(log, None) if orders.has_log else None)
        return made

    def own(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes, window: Window | None
    ) -> torch.Tensor:
        """Rounds this rank's part of an operator; without a window, all of an operator that it computes alone."""
        return self._own.round(index, operator, inputs, attributes, window)

    def shared(self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        """Rounds an operator that every rank rounds."""
        return self._shared.round(index, operator, inputs, attributes)

    def told(self) -> bytes:
        """Message of this rank about the step, for `collect`."""
        told = (self._own, self._shared) if self._tells_all else (self._own,)
        if isinstance(self._own, Recorder):
            entries: dict[int, Entries] = {}
            for one in told:
                assert isinstance(one, Recorder)
                # An operator is either shared out, or one rank's, or everybody's.
                entries.update(one.take())
            return encode(entries)
        findings = [asdict(finding) for one in told if isinstance(one, Follower) for finding in one.findings]
        followed = sum(one.followed for one in told if isinstance(one, Follower))
        return json.dumps({"findings": findings, "followed": followed}).encode()


def collect(rounding: Rounding, told: Sequence[bytes], foreign: Callable[[int, str], Exception]) -> None:
    """Puts what all ranks have told of a step into rank 0's rounding, in program order.

    foreign: makes the error that is raised for a rank, by its number, which tells what is nothing of the kind."""
    logs: list[Mapping[int, Entries]] = []
    found: list[LogFinding] = []
    for rank, one in enumerate(told):
        try:
            if isinstance(rounding, Recorder):
                logs.append(decode(one, None))
            else:
                assert isinstance(rounding, Follower)
                followed, findings = _read_findings(one)
                rounding.followed += followed
                found += findings
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise foreign(rank, f"{len(one)} bytes that tell nothing of a step's log") from error
    if isinstance(rounding, Recorder):
        rounding.entries = _joined(logs)
        return
    assert isinstance(rounding, Follower)
    room = MAX_FINDINGS - len(rounding.findings)
    rounding.findings += sorted(found, key=lambda finding: (finding.operator, finding.element))[: max(room, 0)]


def _read_findings(told: bytes) -> tuple[int, list[LogFinding]]:
    """The number of entries that another rank has followed, and its findings. Raises what reading JSON raises, and
    TypeError."""
    said = json.loads(told)
    found = [LogFinding(**{**item, "kind": LogFindingKind(item["kind"])}) for item in said["findings"]]
    for finding in found:
        numbers = finding.step, finding.operator, finding.element
        if not all(type(number) is int for number in numbers) or not isinstance(finding.message, str):
            raise TypeError("a finding has numbers and a message")
    if type(said["followed"]) is not int or said["followed"] < 0:
        raise TypeError("entries are counted")
    return said["followed"], found


def _joined(logs: Sequence[Mapping[int, Entries]]) -> dict[int, Entries]:
    operators = sorted({index for log in logs for index in log})
    return {index: in_order([log[index] for log in logs if index in log]) for index in operators}
