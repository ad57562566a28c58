"""The watch: a few requests a block for any number of jobs, and no event lost or made up."""

from __future__ import annotations

import pytest
from tiebreak.contract.contract_watch import ContractWatch
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.events import Committed, RowShown
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.rpc.chain_errors import NotConfirmed, RpcRefused
from tiebreak.rpc.node import ChainNode

from tests.client.disputes import Cast, Run
from tests.client.hostile_node import HostileNode


def requests_of(line: HostileNode) -> int:
    """The requests since it was counted last."""
    found = len(line.asked)
    line.asked.clear()
    return found


@pytest.fixture(scope="module")
def shared() -> tuple[EmbeddedChain, Cast]:
    """A chain with a contract."""
    chain = EmbeddedChain()
    return chain, Cast.on(ChainNode(chain))


class Scene:
    """Jobs of its own on the shared chain, a line to it, and a watch."""

    def __init__(self, shared: tuple[EmbeddedChain, Cast], jobs: int = 3, confirmations: int = 0) -> None:
        self.chain, self.cast = shared
        self.line = HostileNode(self.chain)
        self.jobs = [self.cast.post() for _ in range(jobs)]
        node = ChainNode(self.line, confirmations=confirmations)
        self.contract = VerificationGame(node, self.cast.trainer.address)
        self.watch = ContractWatch(self.contract)
        for job in self.jobs:
            self.watch.follow(job)

    def mine(self, blocks: int = 1) -> None:
        for _ in range(blocks):
            ChainNode(self.chain).advance_time(12)


def test_an_idle_block_costs_two_requests_and_one_with_events_three(shared: tuple[EmbeddedChain, Cast]) -> None:
    scene = Scene(shared)
    watch, line = scene.watch, scene.line
    assert watch.look() is not None
    assert [watch.job(job).status for job in scene.jobs] == [JobStatus.OPEN] * 3
    requests_of(line)
    assert watch.look() is None
    assert requests_of(line) == 1
    scene.mine()
    news = watch.look()
    assert news is not None and news.events == ()
    assert requests_of(line) == 2
    scene.cast.commit(scene.jobs[1], Run.of())
    news = watch.look()
    assert news is not None
    event, row = news.events
    assert isinstance(event, Committed) and isinstance(row, RowShown) and event.job == row.job == scene.jobs[1]
    assert [watch.job(job).status for job in scene.jobs] == [JobStatus.OPEN, JobStatus.CLAIMED, JobStatus.OPEN]
    assert requests_of(line) == 3


def test_a_reorganisation_takes_events_back_and_tells_so(shared: tuple[EmbeddedChain, Cast]) -> None:
    scene = Scene(shared)
    watch = scene.watch
    watch.look()
    before = scene.chain.request("evm_snapshot", [])
    scene.cast.commit(scene.jobs[0], Run.of())
    assert watch.look() is not None
    assert watch.job(scene.jobs[0]).status is JobStatus.CLAIMED
    scene.chain.request("evm_revert", [before])
    scene.mine(2)
    news = watch.look()
    assert news is not None and news.events == ()
    assert [type(event) for event in news.taken_back] == [Committed, RowShown]
    assert watch.job(scene.jobs[0]).status is JobStatus.OPEN
    scene.cast.commit(scene.jobs[0], Run.of())
    news = watch.look()
    assert news is not None and [type(event) for event in news.events] == [Committed, RowShown]
    assert watch.job(scene.jobs[0]).status is JobStatus.CLAIMED


def test_a_node_that_lags_behind_shows_nothing_new_and_takes_nothing_back(shared: tuple[EmbeddedChain, Cast]) -> None:
    scene = Scene(shared)
    watch, line = scene.watch, scene.line
    scene.mine()
    watch.look()
    scene.cast.commit(scene.jobs[0], Run.of())
    assert watch.look() is not None
    for lag in (1, 2, 3):
        line.lag = {"eth_getBlockByNumber": lag}
        assert watch.look() is None
    line.lag = {}
    scene.mine()
    line.lag = {"eth_getLogs": 3}
    news = watch.look()
    assert news is not None and news.taken_back == () and news.events == ()
    assert watch.job(scene.jobs[0]).status is JobStatus.CLAIMED


def test_an_event_that_a_lagging_node_left_out_comes_with_the_next_block(
    shared: tuple[EmbeddedChain, Cast],
) -> None:
    scene = Scene(shared)
    watch, line = scene.watch, scene.line
    watch.look()
    scene.cast.commit(scene.jobs[2], Run.of())
    line.lag = {"eth_getLogs": 1}
    news = watch.look()
    assert news is not None and news.events == ()
    line.lag = {}
    scene.mine()
    news = watch.look()
    assert news is not None and [type(event) for event in news.events] == [Committed, RowShown]
    assert watch.job(scene.jobs[2]).status is JobStatus.CLAIMED


def test_an_old_state_is_never_kept_as_the_new_one(shared: tuple[EmbeddedChain, Cast]) -> None:
    scene = Scene(shared)
    watch, line = scene.watch, scene.line
    watch.look()
    scene.cast.commit(scene.jobs[2], Run.of())
    line.lag = {"eth_call": 1}
    with pytest.raises(RpcRefused):
        watch.look()
    line.lag = {}
    news = watch.look()
    assert news is not None and [type(event) for event in news.events] == [Committed, RowShown]
    assert watch.job(scene.jobs[2]).status is JobStatus.CLAIMED


def test_a_bond_is_put_only_on_a_job_that_is_deep_enough_and_still_the_same(shared: tuple[EmbeddedChain, Cast]) -> None:
    scene = Scene(shared, jobs=1, confirmations=3)
    job = scene.jobs[0]
    scene.watch.look()
    for _ in range(3):
        with pytest.raises(NotConfirmed, match="3 blocks"):
            scene.watch.confirmed_job(job)
        scene.mine()
        scene.watch.look()
    assert scene.watch.confirmed_job(job) == scene.contract.job(job)
