"""The sender's questions, waits and fees on a chain with a block every twelve seconds."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from tiebreak.rpc.chain_errors import ChainUnavailable, JournalError, Stopped, TransactionPending
from tiebreak.rpc.node import ChainNode
from tiebreak.transactions import journal
from tiebreak.transactions.sender import Sender

from tests.client.simulated_chain import BLOCK_SECONDS, FakeAccount, SimulatedChain

TO = FakeAccount().address
GWEI = 10**9


def sender_on(chain: SimulatedChain, directory: Path | None = None, **options: object) -> Sender:
    return Sender(
        ChainNode(chain),  # type: ignore[arg-type]
        FakeAccount(),  # type: ignore[arg-type]
        directory=directory,
        clock=chain.clock,
        sleep=chain.sleep,
        **options,  # type: ignore[arg-type]
    )


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


def test_a_power_cut_after_the_first_payment_takes_no_directory_of_the_journal_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []
    chain = SimulatedChain()
    monkeypatch.setattr(journal, "sync_directory", lambda path: made.append((path.name, len(chain.effects()))))
    sender_on(chain, tmp_path / "home" / "role").send(TO, b"first")
    assert made == [("journal", 0), ("role", 0), ("home", 0)] and len(chain.effects()) == 1


def test_a_directory_that_could_not_be_opened_is_free_for_the_next_attempt(tmp_path: Path) -> None:
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
