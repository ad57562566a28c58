"""The watch: a few requests a block for any number of jobs, and no event lost or made up."""

from __future__ import annotations

from collections import Counter

from disputes import Cast, Run
from tiebreak.chain.embedded import EmbeddedChain
from tiebreak.chain.node import Node
from tiebreak.chain.records import JobStatus
from tiebreak.chain.watch import Watch


class Counting:
    """A transport that counts."""

    name = "the counting node"

    def __init__(self, chain: EmbeddedChain) -> None:
        self.chain = chain
        self.asked: Counter[str] = Counter()

    def request(self, method: str, params: list[object]) -> object:
        self.asked[method] += 1
        return self.chain.request(method, params)


def test_events_and_views_come_with_few_requests() -> None:
    line = Counting(EmbeddedChain())
    cast = Cast.on(Node(line.chain))
    jobs = [cast.post() for _ in range(3)]
    contract = cast.trainer.at(Node(line), cast.trainer.address)
    watch = Watch(contract)
    for job in jobs:
        watch.follow(job)
    assert watch.look() is not None
    assert [watch.job(job).status for job in jobs] == [JobStatus.OPEN] * 3
    line.asked.clear()
    assert watch.look() is None
    assert sum(line.asked.values()) == 1
    Node(line.chain).advance_time(12)
    line.asked.clear()
    news = watch.look()
    assert news is not None and news.events == ()
    assert sum(line.asked.values()) == 2
    cast.commit(jobs[1], Run.of())
    line.asked.clear()
    news = watch.look()
    assert news is not None and [event.job for event in news.events] == [jobs[1]]
    assert sum(line.asked.values()) == 3
    assert [watch.job(job).status for job in jobs] == [JobStatus.OPEN, JobStatus.CLAIMED, JobStatus.OPEN]
    assert sum(line.asked.values()) == 3
