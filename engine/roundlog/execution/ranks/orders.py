"""Orders of rank 0 to the ranks that serve it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

import numpy as np
import torch

from roundlog.arithmetic import DisturbedError
from roundlog.commitments import canonical
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.rank_rounding import RoundingOrder
from roundlog.execution.ranks.stragglers import Wait


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
        self._digest.update(np.ascontiguousarray(value.cpu().numpy()).data)


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
    with ranks.membership.stragglers.expecting(Wait.ORDER):
        ranks.broadcast(header)
    kind, number, *fields, coming, passes = _HEADER.unpack(header.numpy().tobytes())
    return RankOrder(OrderKind(kind), number, RoundingOrder(*fields), coming, passes)
