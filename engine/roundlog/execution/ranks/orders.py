"""Orders of rank 0 to the ranks that serve it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

import torch

from roundlog.arithmetic import DisturbedError
from roundlog.execution.ranks.agreement import DisagreementError
from roundlog.execution.ranks.attendance import Wait
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.rounding import RoundingOrder

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
class Order:
    """An order to all ranks."""

    kind: OrderKind
    number: int = 0
    """Number of the step, or of the slot."""
    rounding: RoundingOrder = _NO_ROUNDING
    coming: int = GO_ON
    """Number of tensors of the state that are sent before the step, or GO_ON."""
    sweeps: int = 1
    """Micro-batches into which each rank cuts its samples."""


def give(ranks: Ranks, order: Order) -> None:
    """Gives an order, on rank 0."""
    of = order.rounding
    fields = (of.records, of.guard, of.share, of.secret, of.has_log)
    header = _HEADER.pack(order.kind, order.number, *fields, order.coming, order.sweeps)
    ranks.broadcast(torch.frombuffer(bytearray(header), dtype=torch.uint8))


class Giver:
    """Rank 0, which gives one order after another."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.is_idle = True
        """Whether the other ranks have done what was ordered, and wait for the next order."""

    @contextmanager
    def given(self, order: Order) -> Iterator[None]:
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


def next_order(ranks: Ranks) -> Order:
    """The next order of rank 0, on another rank."""
    header = torch.empty(_HEADER.size, dtype=torch.uint8)
    with ranks.membership.attendance.expecting(Wait.ORDER):
        ranks.broadcast(header)
    kind, number, *fields, coming, sweeps = _HEADER.unpack(header.numpy().tobytes())
    return Order(OrderKind(kind), number, RoundingOrder(*fields), coming, sweeps)
