"""Orders of rank 0 to the ranks that serve it; the digest that finds a broken memory or network at the end of an
interval; and the rounding of a rank, by the log of the whole step, and into it.

A rank rounds its slices and its shares of sums alone, and whole values as every other rank does. So it has two
roundings, one for its own values, and one that is in the same state on every rank."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import IntEnum
from hashlib import sha256

import numpy as np
import torch

from roundlog.commitments import canonical
from roundlog.execution.ranks.group import Ranks
from roundlog.log import Entries
from roundlog.log.payload import decode, encode
from roundlog.program import as_array
from roundlog.rounding import Follower, LogFinding, LogFindingKind, Recorder, Rounding, in_order


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

    @classmethod
    def of(cls, rounding: Rounding) -> RoundingOrder:
        """Return the order for rank 0's rounding. Raises TypeError for another policy than `certified`."""
        if isinstance(rounding, Recorder):
            return cls(True, rounding.guard, 1.0, 0)
        if isinstance(rounding, Follower):
            secret = int(rounding.generator.integers(1 << 63))
            return cls(False, rounding.guard, rounding.share, secret)
        raise TypeError(f"ranks cannot be rounded by a {type(rounding).__name__}: give a Recorder or a Follower")


def log_bytes(rounding: Rounding) -> bytes:
    """Return the log that rank 0 follows in this step, for the others; nothing if it follows none."""
    log = rounding.log if isinstance(rounding, Follower) else None
    return b"" if log is None else encode(log)


class RankRounding:
    """The roundings of one rank in one step."""

    def __init__(self, orders: RoundingOrder, rank: int, step: int, log: bytes) -> None:
        self.own, self.shared = (self._made(orders, seed, step, log) for seed in (rank + 1, 0))
        """What rounds this rank's parts of operators, and operators that it computes alone; and what rounds operators
        that every rank computes."""
        self._tells_all = rank == 0
        """Whether this rank tells what all of them find."""

    @staticmethod
    def _made(orders: RoundingOrder, seed: int, step: int, log: bytes) -> Recorder | Follower:
        if orders.records:
            return Recorder(orders.guard)
        made = Follower(orders.guard, orders.share, np.random.default_rng([orders.secret, seed]))
        made.follow(step, decode(log, None) if log else None)
        return made

    def told(self) -> bytes:
        """Return the message of this rank about the step, for `collect`."""
        told = (self.own, self.shared) if self._tells_all else (self.own,)
        if isinstance(self.own, Recorder):
            entries: dict[int, Entries] = {}
            for one in told:
                assert isinstance(one, Recorder)
                # An operator is either shared out, or one rank's, or everybody's.
                entries.update(one.take())
            return encode(entries)
        findings = [asdict(finding) for one in told if isinstance(one, Follower) for finding in one.findings]
        followed = sum(one.followed for one in told if isinstance(one, Follower))
        return json.dumps([followed, findings]).encode()


def collect(rounding: Rounding, told: Sequence[bytes]) -> None:
    """Put the messages of all ranks about a step into rank 0's rounding, in program order."""
    if isinstance(rounding, Recorder):
        logs = [decode(one, None) for one in told]
        operators = sorted({index for log in logs for index in log})
        rounding.entries = {index: in_order([log[index] for log in logs if index in log]) for index in operators}
        return
    assert isinstance(rounding, Follower)
    found: list[LogFinding] = []
    for followed, findings in map(json.loads, told):
        rounding.followed += followed
        found += [LogFinding(**{**one, "kind": LogFindingKind(one["kind"])}) for one in findings]
    rounding.findings += sorted(found, key=lambda finding: (finding.operator, finding.element))[: rounding.room]


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
        """Add a value that every rank has received, bit for bit, to the digest, and return it."""
        self._take(value)
        return value

    def begin_anew(self) -> None:
        """Start a new digest; all ranks call it. Rank 0 may have given up an interval, and a new executor has received
        nothing yet."""
        self._digest = sha256()

    def after(self, step: int, states: Sequence[torch.Tensor]) -> None:
        """Compare at the end of an interval; all ranks call it after every step. Raises DisagreementError on all of
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
    """Return the error that names the ranks that differ from more than half of all; or from rank 0, if no half
    agrees."""
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
    rounding: RoundingOrder | None = None
    """How to round in a step."""
    coming: int = GO_ON
    """Number of tensors of the state that are sent before the step, or GO_ON."""
    passes: int = 1
    """Micro-batches into which each rank cuts its samples."""


def give(ranks: Ranks, order: RankOrder, log: bytes = b"") -> None:
    """Give an order, on rank 0. log: of the step, if one is followed."""
    ranks.broadcast_bytes(json.dumps(asdict(order)).encode() + b"\n" + log)


class Giver:
    """Rank 0, which gives one order after another."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.is_idle = True
        """Whether the other ranks have done what was ordered, and wait for the next order."""

    @contextmanager
    def given(self, order: RankOrder, log: bytes = b"") -> Iterator[None]:
        """A block in which this rank does its part of an order. Of its errors, the other ranks share those that all
        raise at the same place."""
        self.is_idle = False
        give(self._ranks, order, log)
        try:
            yield
        except DisagreementError:
            self.is_idle = True
            raise
        self.is_idle = True


def next_order(ranks: Ranks) -> tuple[RankOrder, bytes]:
    """Return the next order of rank 0, on another rank, and the log that is followed."""
    told = ranks.broadcast_bytes(None)
    head, _, log = told.partition(b"\n")
    order = json.loads(head)
    rounding = order["rounding"] and RoundingOrder(**order["rounding"])
    return RankOrder(**{**order, "kind": OrderKind(order["kind"]), "rounding": rounding}), log
