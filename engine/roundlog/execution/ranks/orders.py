"""Orders of rank 0 to the ranks that serve it, their agreement on what all of them have, by which a broken memory or
network is found within an interval, and their rounding, by the log of the whole step, and into it.

A rank rounds its slices and its shares of sums alone, and whole values as every other rank does. So it has two
roundings, one for what is its own, and one that is in the same state on every rank."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import IntEnum
from hashlib import sha256

import numpy as np
import torch

from roundlog.arithmetic import DisturbedError
from roundlog.commitments import canonical
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.membership import RankWait
from roundlog.log import Entries
from roundlog.log.payload import decode, encode
from roundlog.number_format import Format
from roundlog.operators import Inexact
from roundlog.operators.registry import Attributes, Tensors
from roundlog.program import as_array
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

    def __init__(self, orders: RoundingOrder, rank: int, step: int, log: bytes) -> None:
        self._own, self._shared = (self._made(orders, seed, step, log) for seed in (rank + 1, 0))
        self._tells_all = rank == 0
        """Whether what every rank finds is told by this one."""

    @staticmethod
    def _made(orders: RoundingOrder, seed: int, step: int, log: bytes) -> Recorder | Follower:
        if orders.records:
            return Recorder(orders.guard)
        made = Follower(orders.guard, orders.share, np.random.default_rng([orders.secret, seed]))
        made.follow(step, decode(log, None) if orders.has_log else None)
        return made

    def own(
        self,
        index: int,
        operator: Inexact,
        inputs: Tensors,
        attributes: Attributes,
        format: Format,
        window: Window | None,
    ) -> torch.Tensor:
        """Rounds this rank's part of an operator; without a window, all of an operator that it computes alone."""
        return self._own.round(index, operator, inputs, attributes, format, window)

    def shared(
        self, index: int, operator: Inexact, inputs: Tensors, attributes: Attributes, format: Format
    ) -> torch.Tensor:
        """Rounds an operator that every rank rounds."""
        return self._shared.round(index, operator, inputs, attributes, format)

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


class DisagreementError(RuntimeError):
    """Ranks have come to different values, so that one of their machines is broken.

    rank_0_differs: whether rank 0 has other values than more than half of the ranks."""

    def __init__(self, sentence: str, *, rank_0_differs: bool = False) -> None:
        super().__init__(sentence)
        self.rank_0_differs = rank_0_differs


class Agreement:
    """Digest of what a rank has received and stored, which all ranks compare once an interval."""

    def __init__(self, ranks: Ranks, interval: int) -> None:
        """interval: steps between two comparisons."""
        self._ranks, self._interval = ranks, interval
        self._digest = sha256()

    def received(self, value: torch.Tensor) -> torch.Tensor:
        """Takes a value that every rank has received, bit for bit, and returns it."""
        self._take(value)
        return value

    def begin_anew(self) -> None:
        """Forgets what was received since the last comparison; all ranks call it. Rank 0 may have given up an interval,
        and a new executor has received nothing yet."""
        self._digest = sha256()

    def after(self, step: int, states: Sequence[torch.Tensor]) -> None:
        """Compares at the end of an interval; all ranks call it after every step. Raises DisagreementError on all of
        them where one differs."""
        if (step + 1) % self._interval:
            return
        for state in states:
            # NaN has one meaning, and several bits.
            self._take(canonical(state))
        said = self._ranks.gather_bytes(self._digest.digest())
        self._digest = sha256()
        if len(set(said)) > 1:
            raise _disagreement(said, step, self._ranks)

    def _take(self, value: torch.Tensor) -> None:
        self._digest.update(np.ascontiguousarray(as_array(value.cpu())).data)


def _disagreement(said: Sequence[bytes], step: int, ranks: Ranks) -> DisagreementError:
    """The error that names the ranks that differ from more than half of all; or from rank 0, if no half agrees."""
    most = max(set(said), key=said.count)
    is_majority = 2 * said.count(most) > len(said)
    right = most if is_majority else said[0]
    others = [ranks.membership.name(rank) for rank, one in enumerate(said) if one != right]
    agreed = "all other ranks" if is_majority else "rank 0, which may itself be wrong"
    return DisagreementError(
        f"after step {step}, {' and '.join(others)} had other values than {agreed}: a memory or network is broken; "
        "leave that machine out, and run the same command again, with any number of ranks, to carry on",
        rank_0_differs=right != said[0],
    )


_HEADER = struct.Struct("<Bq?qdq?qq")
"""The kind, the step or slot, and the other fields of an order."""

_NO_ROUNDING = RoundingOrder(False, 0, 0.0, 0, False)

GO_ON = -1
"""The step begins with the states that the step before it has left."""


class OrderKind(IntEnum):
    """Kinds of orders."""

    END = 0
    """There are no more."""
    STEP = 1
    """Execute a step."""
    SLOT = 2
    """The rank that keeps a slot of the state gives it to all."""
    ROOTS = 3
    """Every rank tells the tensor roots of the slots that it keeps."""


@dataclass(frozen=True, slots=True)
class RankOrder:
    """An order to all ranks."""

    kind: OrderKind
    number: int = 0
    """Number of the step, or of the slot."""
    rounding: RoundingOrder = _NO_ROUNDING
    coming: int = GO_ON
    """Number of tensors of the state that are sent before the step, or GO_ON."""
    passes: int = 1
    """Micro-batches into which each rank cuts its samples."""


def give(ranks: Ranks, order: RankOrder) -> None:
    """Gives an order, on rank 0."""
    of = order.rounding
    fields = (of.records, of.guard, of.share, of.secret, of.has_log)
    header = _HEADER.pack(order.kind, order.number, *fields, order.coming, order.passes)
    ranks.broadcast(torch.frombuffer(bytearray(header), dtype=torch.uint8))


class Giver:
    """Rank 0, which gives one order after another."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.is_idle = True
        """Whether the other ranks have done what was ordered, and wait for the next order."""

    @contextmanager
    def given(self, order: RankOrder) -> Iterator[None]:
        """A block in which this rank does its part of an order. Of its errors, the other ranks share those that all
        raise at the same place."""
        self.is_idle = False
        give(self._ranks, order)
        try:
            yield
        except (DisturbedError, DisagreementError):
            self.is_idle = True
            raise
        self.is_idle = True


def next_order(ranks: Ranks) -> RankOrder:
    """The next order of rank 0, on another rank."""
    header = torch.empty(_HEADER.size, dtype=torch.uint8)
    with ranks.membership.stragglers.expecting(RankWait.ORDER):
        ranks.broadcast(header)
    kind, number, *fields, coming, passes = _HEADER.unpack(header.numpy().tobytes())
    return RankOrder(OrderKind(kind), number, RoundingOrder(*fields), coming, passes)
