"""Limits on spending: what counts, what is held back and until when, and what a restart knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.quantities import in_utc
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.rpc.answers import TransactionReceipt
from tiebreak.rpc.chain_errors import ChainError
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import UNDERTAKINGS
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.spending import DAY, Spending, SpendingLimit

from tests.client.disputes import Cast, Run

START = 1_700_000_000


def spending(place: Path, per_day: int | None = 100, per_job: int | None = None) -> Spending:
    return Spending(place, "31337-0xcc", per_day=per_day, per_job=per_job)


def pay(book: Spending, name: str, job: int, wei: int, now: int, came_to: int | None = None) -> None:
    book.require(name, job, wei, now)
    book.enter(name, job, wei, now)
    book.settle(name, wei if came_to is None else came_to)


def test_a_node_that_makes_its_time_up_ends_no_role(tmp_path: Path) -> None:
    book, late = spending(tmp_path), 2**64 - 1
    pay(book, "one", 1, 60, late)
    with pytest.raises(SpendingLimit, match=f"begun until second {late + DAY}"):
        book.require("two", 2, 50, late)
    assert in_utc(253_402_300_799) == "9999-12-31 23:59:59 UTC" and in_utc(0) == "second 0"
    assert all(in_utc(instant) for instant in (-1, 1, 2**63, 2**256))


def test_a_day_is_over_once_the_chain_and_this_machine_say_so(tmp_path: Path) -> None:
    wall = [float(START)]
    book = Spending(tmp_path, "1-0xcc", per_day=100, today=lambda: wall[0])
    pay(book, "one", 1, 90, START)
    for lie in (START + DAY, START + 400 * DAY, 2**64 - 1):
        with pytest.raises(SpendingLimit) as caught:
            book.require("two", 2, 50, lie)
        assert caught.value.until == lie + DAY
    pay(book, "two", 2, 5, START + 2 * DAY)  # whatever enters then forgets nothing
    again = Spending(tmp_path, "1-0xcc", per_day=100, today=lambda: wall[0])
    assert again.last_day(START + 1) == again.last_day(START + 3 * DAY) == 95
    wall[0] = START + DAY - 1.0  # by both clocks a second is missing, also for a process that begins now
    with pytest.raises(SpendingLimit) as caught:
        again.require("three", 3, 50, START + DAY - 1)
    assert caught.value.until == START + DAY
    wall[0] = START + DAY
    again.require("three", 3, 50, START + DAY)
    assert again.last_day(START + DAY) == 0


def test_a_clock_that_goes_back_holds_nothing_back_for_good(tmp_path: Path) -> None:
    """Neither a node's that was in a far future for a moment, nor this machine's before it is set right."""
    wall = [float(START)]
    book = Spending(tmp_path, "1-0xcc", per_day=100, today=lambda: wall[0])
    pay(book, "one", 1, 90, 2**64 - 1)  # the node's clock is wrong
    wall[0] = START + 50 * DAY
    pay(book, "two", 2, 90, START + 50 * DAY)
    wall[0] = START - 400 * DAY  # this machine's was right, and is wrong after a restart
    with pytest.raises(SpendingLimit):
        book.require("three", 3, 90, START + 51 * DAY - 1)
    pay(book, "three", 3, 90, START + 51 * DAY)
    wall[0] = START + 51 * DAY  # and is set right again
    with pytest.raises(SpendingLimit):
        book.require("four", 4, 90, START + 52 * DAY - 1)
    wall[0] = START + 52 * DAY
    book.require("four", 4, 90, START + 52 * DAY)


def test_a_job_has_its_own_limit_for_good(tmp_path: Path) -> None:
    book = spending(tmp_path, None, 100)
    pay(book, "one", 1, 60, START)
    for now in (START + 1, START + 100 * DAY):
        with pytest.raises(SpendingLimit, match=r"--spend-per-job 100 wei .* in job 1 \(spent: 60 wei\)"):
            spending(tmp_path, None, 100).require("two", 1, 50, now)
        spending(tmp_path, None, 100).require("two", 2, 50, now)
        pay(book, f"another {now}", 3, 1, now)
    Spending(tmp_path, "31337-0xdd", per_job=100).require("two", 1, 50, START + 1)


def test_a_payment_counts_once_whatever_repeats_it(tmp_path: Path) -> None:
    book = spending(tmp_path)
    for _ in range(5):
        book.require("one", 1, 90, START)
        book.enter("one", 1, 90, START)
    assert book.last_day(START) == 90
    book.require(None, 1, 90, START)  # the same undertaking, thought of while it is under way
    book.cancel("one")
    assert book.last_day(START) == 0
    pay(book, "one", 1, 90, START)
    book.cancel("one")
    assert book.last_day(START) == 90, "what a block has cannot be cancelled"


def test_a_payment_that_fails_in_its_block_leaves_the_next_attempt_to_count(tmp_path: Path) -> None:
    """The attempts have one name."""
    book = spending(tmp_path)
    for fee in (3, 4):
        book.require("one", 1, 60, START)
        book.enter("one", 1, 60, START)
        book.settle("one", fee, failed=True)
    assert book.last_day(START) == 7
    with pytest.raises(SpendingLimit):
        book.require("one", 1, 94, START)
    pay(book, "one", 1, 60, START)
    assert spending(tmp_path).last_day(START) == 67
    book.enter("one", 1, 60, START)  # heard of again
    assert book.last_day(START) == 67


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"payments": {"x": [1]}, "earlier": {}}', b'{"payments": 3}'])
def test_a_damaged_record_holds_new_bonds_back_in_one_sentence(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "spending.json").write_bytes(damage)
    with pytest.raises(SpendingLimit, match=r"spending\.json, cannot be used .*: make room, or move it away"):
        spending(tmp_path).require("one", 1, 1, START)


# The transaction queue.


class Scene:
    """An auditor's queue on a chain with two wrong claims."""

    def __init__(self, place: Path, per_day: int) -> None:
        self.chain = ChainNode(EmbeddedChain())
        self.cast = Cast.on(self.chain)
        self.jobs = [self.cast.post(), self.cast.post()]
        for job in self.jobs:
            self.cast.commit(job, Run.of(33))
        self.root = Run.of().checkpoints.root
        self.sender = Sender(self.chain, devnet_account(2), directory=place)
        contract = VerificationGame(self.chain, self.cast.customer.address)
        self.queue = TransactionQueue(contract, self.sender)
        self.queue.spending = Spending(place, "x", per_day=per_day)
        self.failed: list[ChainError] = []
        self.sent: list[TransactionReceipt] = []

    def challenge(self, job: int) -> Order:
        seen = self.cast.customer.job(job)
        call = self.queue.contract.paying(
            "challenge",
            job,
            spec_hash=seen.spec_hash,
            claimed_root=seen.claim.checkpoint_root,
            checkpoint_root=self.root,
            bond=seen.terms.challenger_bond,
        )
        return Order(call=call, sent=self.sent.append, failed=self.failed.append)


def test_a_limit_holds_challenges_back_and_no_move(tmp_path: Path) -> None:
    scene = Scene(tmp_path, per_day=3 * 10**18 // 2)
    scene.queue.look()
    assert scene.queue.put(scene.challenge(scene.jobs[0]))
    scene.queue.flush()
    (receipt,) = scene.sent
    assert scene.queue.spending is not None
    assert scene.queue.spending.last_day(0) == 10**18 + receipt.fee
    scene.queue.look()
    assert not scene.queue.put(scene.challenge(scene.jobs[1]))
    (error,) = scene.failed
    assert isinstance(error, SpendingLimit)
    reached = scene.queue.reached_limit()
    assert reached is error and reached.until is not None and scene.queue.reached_limit() is None
    # The game goes on, whatever its moves cost.
    for function in ("claimTimeout", "finalize", "withdraw", "appeal", "openAudit", "bisect"):
        assert function not in UNDERTAKINGS
    move = Order(call=ContractCall.of("claimTimeout", 1), sent=scene.sent.append, failed=lambda _: None)
    assert scene.queue.put(move)
    # After a restart the same is known; a day later there is room.
    again = TransactionQueue(scene.queue.contract, scene.sender)
    again.spending = Spending(tmp_path, "x", per_day=3 * 10**18 // 2)
    again.look()
    with pytest.raises(SpendingLimit):
        again.require_allowed(scene.jobs[1], 10**18)
    scene.chain.advance_time(DAY)
    again.look()
    again.require_allowed(scene.jobs[1], 10**18)


@pytest.mark.slow
def test_two_bonds_of_one_look_do_not_count_on_the_same_money(tmp_path: Path) -> None:
    """The second would leave nothing for the gas of the first one's game."""
    scene = Scene(tmp_path, per_day=10**20)
    scene.queue.look()
    before = scene.queue.funds(10**18, 0.0).balance
    assert before == scene.chain.balance(scene.sender.address)
    assert scene.queue.put(scene.challenge(scene.jobs[0]))
    assert scene.queue.funds(10**18, 0.0, job=scene.jobs[1]).balance == before - 10**18
    assert scene.queue.funds(10**18, 0.0, job=scene.jobs[0]).balance == before, "its own bond is not missing"
    scene.queue.flush()
    (receipt,) = scene.sent
    after = scene.chain.balance(scene.sender.address)
    assert scene.queue.funds(10**18, 0.0).balance == after == before - 10**18 - receipt.fee
