"""Memory that ranks save by cutting their samples: logistic regression is one contraction over the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from roundlog.execution import Batches
from roundlog.execution.ranks import Ranks, RanksExecutor, dismiss, serve
from roundlog.rounding import Follower
from roundlog.training.job import Job

from tests.engine.microbatch import memory_taken
from tests.engine.microbatch.memory_taken import logistic
from tests.engine.ranks.rank_processes import call

pytestmark = pytest.mark.slow

BATCH = 1 << 16


def steps(ranks: Ranks, job: Job, micro_batches: int) -> None:
    batches = Batches(job.dataset, job.spec)
    if ranks.rank:
        serve(job.program, ranks, lambda step, states: job.inputs(batches, step, states))
        return
    executor = RanksExecutor(job.program, ranks, micro_batches=micro_batches)
    executor.run(job.inputs(batches, 0, list(job.initial.values())), Follower.without_log(job.spec.log_guard))
    dismiss(ranks)


def memory(ranks: Ranks, micro_batches: int) -> int:
    """Bytes that a step takes on this rank."""
    small, job = logistic(16), logistic(BATCH)
    steps(ranks, small, min(micro_batches, 4))  # loads and compiles what is needed
    return memory_taken.taken(lambda: steps(ranks, job, micro_batches))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured by Linux's /proc")
def test_ranks_that_cut_their_samples_take_less_memory() -> None:
    whole, cut = (call("test_memory_of_ranks:memory", 2, count) for count in (1, 32))
    # A rank's half of the batch is 64 MiB.
    assert all(one > 3 * 512 * BATCH // 2 for one in whole)
    assert all(a < b / 2 for a, b in zip(cut, whole, strict=True)), (cut, whole)
