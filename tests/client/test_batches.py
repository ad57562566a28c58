"""Many moves in few transactions, each with its own end."""

from __future__ import annotations

from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.roles.transaction_queue import BATCH_BYTES, BATCH_GAS, MoveBatches
from tiebreak.rpc.chain_errors import ContractError
from tiebreak.rpc.node import ChainNode
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.disputes import TERMS, Cast, Run
from tests.client.hostile_node import HostileNode


class World:
    """Claims whose windows are over, and batches of moves through a node that counts requests."""

    def __init__(self, jobs: int) -> None:
        self.line = HostileNode(EmbeddedChain())
        node = ChainNode(self.line)
        self.cast = Cast.on(node)
        self.jobs = [self.cast.post() for _ in range(jobs)]
        for job in self.jobs:
            self.cast.commit(job, Run.of())
        node.advance_time(TERMS.challenge_window + 1)
        self.sender = Sender(node, devnet_account(8))
        self.batches = MoveBatches(VerificationGame(node, self.cast.trainer.address), self.sender)

    def finalize(self, *jobs: int) -> list[ContractCall]:
        return [ContractCall.of("finalize", job, purpose=f"finalize {job}") for job in jobs]

    def status(self, job: int) -> JobStatus:
        return self.cast.trainer.job(job).status


def test_moves_go_in_one_transaction_and_what_would_fail_gets_the_contracts_error() -> None:
    world = World(3)
    found = world.batches.submit(world.finalize(world.jobs[0], 99, *world.jobs[1:]))
    by_job = {item.move.arguments[0]: item for item in found}
    assert isinstance(by_job[99].error, ContractError) and by_job[99].error.name == "WrongJobStatus"
    sent = {by_job[job].sent for job in world.jobs}
    assert len(sent) == 1
    (one,) = sent
    assert one is not None and world.sender.wait(one).succeeded
    assert [world.status(job) for job in world.jobs] == [JobStatus.FINAL] * 3


def test_a_kind_of_move_is_estimated_once() -> None:
    world = World(4)
    world.batches.submit(world.finalize(*world.jobs[:2]))
    world.line.asked.clear()
    (first, second) = world.batches.submit(world.finalize(*world.jobs[2:]))
    assert first.sent is second.sent is not None
    world.sender.wait(first.sent)
    assert "eth_estimateGas" not in world.line.asked
    assert len(world.line.asked) <= 4  # try, head, send, receipt: for all of them together
    assert [world.status(job) for job in world.jobs] == [JobStatus.FINAL] * 4


def test_one_move_alone_is_sent_without_a_batch() -> None:
    world = World(1)
    (only,) = world.batches.submit(world.finalize(world.jobs[0]))
    assert only.sent is not None and only.sent.purpose == f"finalize {world.jobs[0]}"
    assert world.sender.wait(only.sent).succeeded
    assert world.batches.submit([]) == []


def test_a_move_that_was_made_meanwhile_undoes_only_itself() -> None:
    world = World(3)
    world.batches.submit(world.finalize(world.jobs[0]))
    calls = [ContractCall.of("finalize", job) for job in world.jobs]
    results = world.cast.trainer.try_batch(calls)
    assert isinstance(results[0], ContractError) and results[1:] == [None, None]


def test_packs_stay_within_gas_and_bytes() -> None:
    world = World(1)
    world.batches._cost = {"postChunk": 3_000_000, "finalize": 5_000_000}
    packs = list(world.batches._packs(world.finalize(*range(1, 10)), []))
    assert [len(pack) for pack in packs] == [2, 2, 2, 2, 1]
    assert all(sum(gas for _, gas in pack) <= BATCH_GAS for pack in packs)
    world.batches._cost["bisect"] = 1
    world.batches._gas = lambda call: 1  # type: ignore[method-assign]
    large = [ContractCall.of("postChunk", 1, bytes(50_000), purpose=str(index)) for index in range(5)]
    sizes = [len(pack) for pack in world.batches._packs(large, [])]
    assert sizes == [2, 2, 1] and 2 * 50_000 < BATCH_BYTES < 3 * 50_000
