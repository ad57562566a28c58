"""Whatever goes wrong, each intention is carried out exactly once."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.rpc.chain_errors import (
    ChainError,
    ChainUnavailable,
    ContractError,
    JournalError,
    NonceTaken,
    Stopped,
    TransactionPending,
)
from tiebreak.rpc.node import MAX_REORGANISATION, ChainNode
from tiebreak.rpc.transport import Transport
from tiebreak.transactions import journal
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.signer import Sent

from tests.client.disputes import TERMS, Cast, Run
from tests.client.simulated_chain import BLOCK_SECONDS, FakeAccount, FaultyLine, Killed, SimulatedChain

TO = FakeAccount().address


def sender_on(
    chain: SimulatedChain, directory: Path | None = None, node: ChainNode | None = None, **fees: Any
) -> Sender:
    account = cast(LocalAccount, FakeAccount())
    return Sender(node or ChainNode(chain), account, directory=directory, clock=chain.clock, sleep=chain.sleep, **fees)


def story(
    seed: int, directory: Path, *, faults: float, kills: float, reorganisations: float, strangers: float, spikes: float
) -> Counter[str]:
    """Carries out some intentions in a hostile world, and counts the effects of each."""
    dice = random.Random(seed)
    chain = SimulatedChain(seed)
    line = FaultyLine(chain, seed + 1, faults, kills=kills)
    chain.strict_fees = dice.random() < 0.5
    confirmations = 3 if strangers and reorganisations else dice.choice([0, 0, 2])

    def weather() -> None:
        if dice.random() < reorganisations and len(chain.blocks) > 5:
            # Confirmed blocks stay, as they have to for anybody who relies on them.
            chain.reorganise(dice.randrange(1, 3), lose=dice.choice([0.0, 0.5]))
        if dice.random() < strangers:
            key = FakeAccount().address, chain.nonce_of(FakeAccount().address)
            if key not in chain.pool or dice.random() < 0.3:
                chain.pool[key] = {
                    **{"from": key[0], "nonce": key[1], "data": "foreign", "hash": dice.randbytes(32)},
                    **{"maxFeePerGas": 10**13, "maxPriorityFeePerGas": 10**10},
                }
        chain.base_fee = dice.choice([10**9, 10**10, 10**11]) if dice.random() < spikes else chain.base_fee

    chain.on_sleep = weather
    purposes = [f"{index:02x}" for index in range(8)]
    todo = list(purposes)
    sender = sender_on(chain, directory, ChainNode(line, confirmations=confirmations))
    sent: dict[str, Sent] = {}
    for _ in range(4000):
        if not todo:
            break
        try:
            purpose = dice.choice(todo)
            if dice.random() < 0.5:
                sent[purpose] = sender.submit(TO, bytes.fromhex(purpose), value=1, purpose=purpose)
                sender.poll()
                if not sent[purpose].done:
                    chain.sleep(dice.choice([0.5, 5.0, 12.0]))
                    continue
            sender.send(TO, bytes.fromhex(purpose), value=1, purpose=purpose)
            todo.remove(purpose)
        except ChainError:
            chain.sleep(dice.choice([0.5, 5.0]))
        except Killed:
            sender.close()  # as the kernel does
            sender = sender_on(chain, directory, ChainNode(line, confirmations=confirmations))
    assert not todo, "the sender does not get anywhere"
    # The weather clears up.
    line.rate = line.kills = 0.0
    chain.on_sleep = lambda: None
    chain.base_fee = 10**9
    for _ in range(MAX_REORGANISATION // 4):
        chain.sleep(12)
        sender.poll()
    sender.close()
    return Counter(one for one in chain.effects() if one != "foreign")


WEATHERS = {
    "kills": dict(faults=0.1, kills=0.05, reorganisations=0.0, strangers=0.0, spikes=0.0),
    "reorganisations": dict(faults=0.1, kills=0.02, reorganisations=0.1, strangers=0.0, spikes=0.0),
    "another process": dict(faults=0.1, kills=0.02, reorganisations=0.0, strangers=0.1, spikes=0.0),
    "everything": dict(faults=0.15, kills=0.01, reorganisations=0.03, strangers=0.05, spikes=0.1),
}


@pytest.mark.slow_but("everything")
@pytest.mark.parametrize("weather", WEATHERS)
def test_every_intention_is_carried_out_exactly_once(weather: str, tmp_path: Path) -> None:
    for seed in range(8):
        found = story(seed, tmp_path / str(seed), **WEATHERS[weather])
        assert found == Counter(f"{index:02x}" for index in range(8)), f"seed {seed}"


def test_two_processes_with_one_key_pay_once(tmp_path: Path) -> None:
    """What a foreign transaction took the nonce of goes out again only after another look at the chain."""
    chain = SimulatedChain(5)
    senders = [sender_on(chain, tmp_path / str(seed)) for seed in range(2)]
    for sender in senders:
        sender.poll()  # both have seen the same nonce
    sent = [sender.submit(TO, b"\xaa", value=1, purpose="a bond", gas=50_000 + n) for n, sender in enumerate(senders)]
    for _ in range(6):
        chain.sleep(12)
        for sender in senders:
            sender.poll()
    assert chain.effects() == ["aa"]
    assert [type(one.error) for one in sent if one.error is not None] == [NonceTaken]
    assert sum(one.receipt is not None for one in sent) == 1


# Requests, waits and fees on a chain with a block every twelve seconds.

GWEI = 10**9


def test_a_transaction_takes_four_requests() -> None:
    chain = SimulatedChain()
    sender = sender_on(chain)
    for index in range(3):  # the first ones learn how fast blocks come
        sender.send(TO, bytes([index]))
        chain.sleep(30)
    for index in range(20):
        chain.requests.clear()
        sender.send(TO, bytes([100 + index]))
        assert len(chain.requests) <= 4, chain.requests
        chain.sleep(30)
    assert len(chain.effects()) == 23


def test_a_fee_spike_delays_a_transaction_by_a_few_blocks_and_not_longer() -> None:
    chain = SimulatedChain()
    chain.strict_fees = False
    sender = sender_on(chain)
    sender.send(TO, b"before")
    chain.base_fee = 2 * GWEI
    started = chain.now
    sent = sender.submit(TO, b"in the spike")
    chain.base_fee = 40 * GWEI
    sender.wait(sent)
    assert chain.now - started <= 5 * BLOCK_SECONDS
    assert len(sent.hashes) == 2 and sent.entry.signed[-1].max_fee >= 80 * GWEI


def test_no_more_is_offered_than_the_cap_and_the_rest_waits() -> None:
    chain = SimulatedChain()
    chain.strict_fees = False
    sender = sender_on(chain, max_fee=20 * GWEI, patience=600)
    chain.base_fee = 40 * GWEI
    with pytest.raises(TransactionPending):
        sender.send(TO, b"too dear")
    assert all(one.max_fee <= 20 * GWEI for sent in sender.pending for one in sent.entry.signed)
    chain.base_fee = 10 * GWEI
    assert sender.send(TO, b"too dear").succeeded
    assert chain.effects() == [b"too dear".hex()]


def test_a_power_cut_after_the_first_payment_leaves_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []
    chain = SimulatedChain()
    monkeypatch.setattr(journal, "sync_directory", lambda path: made.append((path.name, len(chain.effects()))))
    sender_on(chain, tmp_path / "home" / "role").send(TO, b"first")
    assert made == [("journal", 0), ("role", 0), ("home", 0)] and len(chain.effects()) == 1


def test_a_directory_that_could_not_be_opened_is_free_again(tmp_path: Path) -> None:
    """The node fails while it is asked about a transaction that a killed process has left."""
    chain = SimulatedChain()
    killed = sender_on(chain, tmp_path)
    killed.submit(TO, b"under way")
    killed.close()
    again = sender_on(chain, tmp_path)

    def fails(*_: object) -> None:
        raise ChainUnavailable("the node is away")

    with pytest.MonkeyPatch.context() as away:
        away.setattr(again, "poll", fails)
        with pytest.raises(ChainUnavailable):
            again.open()
    sender_on(chain, tmp_path).open()


def test_a_full_disk_stops_payments_and_no_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = SimulatedChain()
    sender = sender_on(chain, tmp_path)
    sender.send(TO, b"before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JournalError, match="No space left"):
        sender.send(TO, b"bond", value=1)
    assert sender.send(TO, b"move").succeeded
    monkeypatch.undo()
    assert sender.send(TO, b"bond", value=1).succeeded
    assert chain.effects() == [b"before".hex(), b"move".hex(), b"bond".hex()]


def test_a_damaged_entry_is_set_aside_and_stops_nobody(tmp_path: Path) -> None:
    chain = SimulatedChain()
    sender = sender_on(chain, tmp_path)
    sender.submit(TO, b"one", value=1)
    sender.close()
    (entry,) = tmp_path.glob("journal/*/*.json")
    for damage in (b"", b"{", b"[]", b"[" * 100_000, json.dumps({"nonce": "x"}).encode(), b"\xff"):
        entry.write_bytes(damage)
        again = sender_on(chain, tmp_path)
        again.settle()
        again.close()
        assert not entry.exists() and entry.with_suffix(".damaged").read_bytes() == damage
    assert chain.effects() == [b"one".hex()]


def test_a_wait_ends_at_once_when_the_process_is_stopped() -> None:
    chain, stop = SimulatedChain(), threading.Event()
    chain.halted = True
    sender = Sender(ChainNode(chain), FakeAccount(), stop=stop)  # type: ignore[arg-type]
    threading.Timer(0.3, stop.set).start()
    started = time.monotonic()
    with pytest.raises(Stopped, match=r"the journal has it.*run the same command again"):
        sender.send(TO, b"x")
    assert time.monotonic() - started < 1.0


# On a chain with contracts.


FRIEND = devnet_account(9).address


class Unreliable(Transport):
    """The embedded chain, with answers that a test replaces."""

    name = "the unreliable node"

    def __init__(self) -> None:
        super().__init__()
        self.chain = EmbeddedChain()
        self.on: dict[str, Callable[[list[object]], object]] = {}
        self.sent: list[bytes] = []

    def request(self, method: str, params: list[object]) -> object:
        if method == "eth_sendRawTransaction":
            self.sent.append(bytes.fromhex(str(params[0])[2:]))
        act = self.on.get(method)
        return self.chain.request(method, params) if act is None else act(params)

    def once(self, method: str, act: Callable[[list[object]], object]) -> None:
        def first(params: list[object]) -> object:
            del self.on[method]
            return act(params)

        self.on[method] = first


class Time:
    """A clock that moves only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()


@pytest.fixture
def line() -> Unreliable:
    return Unreliable()


def sender_by(line: Unreliable, time: Time | None = None, *, index: int = 0, confirmations: int = 0) -> Sender:
    time = time or Time()
    node = ChainNode(line, confirmations=confirmations)
    return Sender(node, devnet_account(index), patience=60.0, clock=lambda: time.now, sleep=time.sleep)


def balance(line: Unreliable) -> int:
    return ChainNode(line.chain).balance(FRIEND)


def test_a_nonce_that_the_node_has_counted_and_lost_is_filled(line: Unreliable) -> None:
    time = Time()

    def nonce(params: list[object]) -> object:
        latest = line.chain.request("eth_getTransactionCount", [params[0], "latest"])
        return hex(int(str(latest), 16) + 1) if params[1] == "pending" else latest

    before = balance(line)
    line.on["eth_getTransactionCount"] = nonce
    assert sender_by(line, time).send(FRIEND, b"", value=7).succeeded
    assert time.now < 40
    assert balance(line) == before + 7
    assert ChainNode(line.chain).nonce(devnet_account(0).address) == 2


def test_a_receipt_is_believed_only_when_enough_blocks_lie_on_it(line: Unreliable) -> None:
    time, node = Time(), ChainNode(line.chain)
    mined = 0

    def mine() -> None:
        nonlocal mined
        mined += 1
        node.advance_time(12)

    time.on_sleep = mine
    receipt = sender_by(line, time, confirmations=3).send(FRIEND, b"", value=7)
    assert mined == 3
    assert node.head().number == receipt.block + 3


def test_a_foreign_transaction_hash_is_not_believed(line: Unreliable) -> None:
    line.on["eth_sendRawTransaction"] = lambda params: "0x" + "11" * 32
    with pytest.raises(TransactionPending, match="no block has taken"):
        sender_by(line).send(FRIEND, b"", value=7)


def test_a_call_that_fails_only_in_its_block_still_gets_the_contracts_reason(line: Unreliable) -> None:
    cast = Cast.on(ChainNode(line))
    job = cast.post()
    cast.commit(job, Run.of())
    ChainNode(line).advance_time(TERMS.challenge_window + 1)
    other = VerificationGame(
        ChainNode(line.chain), cast.trainer.address, Sender(ChainNode(line.chain), devnet_account(8))
    )

    def be_faster(params: list[object]) -> object:
        other.send(ContractCall.of("finalize", job))
        return line.chain.request("eth_sendRawTransaction", params)

    before = ChainNode(line).nonce(devnet_account(1).address)
    line.once("eth_sendRawTransaction", be_faster)
    with pytest.raises(ContractError) as caught:
        cast.trainer.send(ContractCall.of("finalize", job))
    assert (caught.value.name, caught.value.values["actual"]) == ("WrongJobStatus", JobStatus.FINAL)
    assert ChainNode(line).nonce(devnet_account(1).address) == before + 1  # it was mined, and failed there


def test_an_account_without_money_says_so(line: Unreliable) -> None:
    poor = Account.create()
    with pytest.raises(Exception, match=f"{poor.address} cannot pay"):
        Sender(ChainNode(line), poor).send(FRIEND, b"", value=1)
