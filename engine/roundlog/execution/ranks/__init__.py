"""Execution of steps by ranks, processes that share the samples of every batch: the same bits on many machines
(docs/numerics.md)."""

from roundlog.execution.ranks.executor import DisagreementError, RanksExecutor, serve
from roundlog.execution.ranks.group import Ranks, connect, disconnect
from roundlog.execution.ranks.local import samples_of_ranks
from roundlog.execution.ranks.membership import LostRankError

__all__ = [
    "DisagreementError",
    "LostRankError",
    "Ranks",
    "RanksExecutor",
    "connect",
    "disconnect",
    "samples_of_ranks",
    "serve",
]
