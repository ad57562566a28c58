"""Execution of steps by ranks, processes that share the samples of every batch: the same bits on many machines
(docs/numerics.md)."""

from roundlog.execution.ranks.group import Launch, LaunchError, Ranks, connect, disconnect, joined
from roundlog.execution.ranks.membership import LostRankError
from roundlog.execution.ranks.orders import DisagreementError
from roundlog.execution.ranks.rank_part import samples_of_ranks
from roundlog.execution.ranks.ranks_executor import RanksExecutor, await_dismissal, dismiss, serve
