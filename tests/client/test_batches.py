"""Many moves in few transactions, each with its own end; and few requests at a start, however many jobs are over."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import JobView
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.roles.auditor_role import AuditorRole
from tiebreak.roles.context import RoleContext
from tiebreak.roles.job_role import JobFollower, JobRole
from tiebreak.roles.trainer_role import TrainerRole
from tiebreak.roles.transaction_queue import BATCH_BYTES, BATCH_GAS, MoveBatches
from tiebreak.rpc.chain_errors import ContractError
from tiebreak.rpc.node import ChainNode
from tiebreak.store import FolderStore
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.disputes import TERMS, Cast, Run
from tests.client.hostile_node import HostileNode
from tests.client.inline_jobs import Inline


class World:
    """Claims whose windows are over, and batches of moves through a node that counts requests."""

    def __init__(self) -> None:
        self.line = HostileNode(EmbeddedChain())
        node = ChainNode(self.line)
        self.cast = Cast.on(node)
        self.jobs = [self.cast.post() for _ in range(8)]
        for job in self.jobs:
            self.cast.commit(job, Run.of())
        node.advance_time(TERMS.challenge_window + 1)
        self.sender = Sender(node, devnet_account(8))
        self.batches = MoveBatches(VerificationGame(node, self.cast.trainer.address), self.sender)

    def are_final(self, jobs: list[int]) -> bool:
        return all(self.cast.trainer.job(job).status is JobStatus.FINAL for job in jobs)


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def finalize(*jobs: int) -> list[ContractCall]:
    return [ContractCall.of("finalize", job, purpose=f"finalize {job}") for job in jobs]


def test_moves_go_in_one_transaction_and_a_kind_of_move_is_estimated_once(world: World) -> None:
    jobs = [world.jobs.pop() for _ in range(3)]
    found = world.batches.submit(finalize(jobs[0], 99, *jobs[1:]))
    by_job = {item.move.arguments[0]: item for item in found}
    assert isinstance(by_job[99].error, ContractError) and by_job[99].error.name == "WrongJobStatus"
    (one,) = {by_job[job].sent for job in jobs}
    assert one is not None and world.sender.wait(one).succeeded
    assert world.are_final(jobs)
    more = [world.jobs.pop() for _ in range(2)]
    world.line.asked.clear()
    (first, second) = world.batches.submit(finalize(*more))
    assert first.sent is second.sent is not None
    world.sender.wait(first.sent)
    assert "eth_estimateGas" not in world.line.asked
    assert len(world.line.asked) <= 4  # try, head, send, receipt: for all of them together
    assert world.are_final(more)


def test_one_move_alone_is_sent_without_a_batch(world: World) -> None:
    job = world.jobs.pop()
    (only,) = world.batches.submit(finalize(job))
    assert only.sent is not None and only.sent.purpose == f"finalize {job}"
    assert world.sender.wait(only.sent).succeeded
    assert world.batches.submit([]) == []


def test_a_move_that_was_made_meanwhile_undoes_only_itself(world: World) -> None:
    jobs = [world.jobs.pop() for _ in range(2)]
    world.batches.submit(finalize(jobs[0]))
    results = world.cast.trainer.try_batch(finalize(*jobs))
    assert isinstance(results[0], ContractError) and results[1:] == [None]


def test_packs_stay_within_gas_and_bytes(world: World) -> None:
    batches = MoveBatches(world.batches._contract, world.sender)
    batches._cost = {"postChunk": 3_000_000, "finalize": 5_000_000}
    packs = list(batches._packs(finalize(*range(1, 10)), []))
    assert [len(pack) for pack in packs] == [2, 2, 2, 2, 1]
    assert all(sum(gas for _, gas in pack) <= BATCH_GAS for pack in packs)
    batches._gas = lambda call: 1  # type: ignore[method-assign]
    large = [ContractCall.of("postChunk", 1, bytes(50_000), purpose=str(index)) for index in range(5)]
    sizes = [len(pack) for pack in batches._packs(large, [])]
    assert sizes == [2, 2, 1] and 2 * 50_000 < BATCH_BYTES < 3 * 50_000


# Requests of a role that follows all jobs to its node at the start.


@pytest.fixture(scope="module")
def line() -> HostileNode:
    return HostileNode(EmbeddedChain())


@pytest.fixture(scope="module")
def cast(line: HostileNode) -> Cast:
    return Cast.on(ChainNode(line))


def asked_by(kind: type[JobRole], cast: Cast, line: HostileNode, place: Path) -> int:
    """Requests of a follower's first looks, until it has left all jobs."""
    sender = Sender(cast.customer.node, devnet_account(4), directory=place)
    contract = VerificationGame(cast.customer.node, cast.customer.address, sender)
    store = FolderStore(place / "store")
    context = RoleContext(contract=contract, sender=sender, store=store, directory=place, background_jobs=Inline())

    def make(number: int, posted: JobView) -> JobRole:
        return kind(context, number)

    follower = JobFollower(context, "role", make)
    before = len(line.asked)
    for _ in range(5):
        progress = follower.step()
    assert "follows 0 jobs" in progress.state
    return len(line.asked) - before


@pytest.mark.slow_cases("TrainerRole")
@pytest.mark.parametrize("kind", [TrainerRole, AuditorRole])
def test_jobs_that_are_over_cost_a_restart_no_requests_each(
    kind: type[JobRole], cast: Cast, line: HostileNode, tmp_path: Path
) -> None:
    """A role that has to move in a game must not ask for ten thousand old jobs before."""

    def expired() -> None:
        job = cast.post()
        cast.customer.node.advance_time(TERMS.commit_window + 1)
        cast.customer.send(ContractCall.of("reclaim", job))

    expired()
    one = asked_by(kind, cast, line, tmp_path / "one")
    for _ in range(3):
        expired()
    assert asked_by(kind, cast, line, tmp_path / "four") == one
