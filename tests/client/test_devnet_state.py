"""Development chains that are kept over restarts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.devnet.embedded_record import ChainRecord, RecordedEvent
from tiebreak.devnet.launcher import DevnetState, find_anvil, start_devnet
from tiebreak.rpc.answers import Block
from tiebreak.rpc.chain_errors import DevnetError
from tiebreak.rpc.node import ChainNode, connect
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

PAYEE = devnet_account(1).address
WEEK = 7 * 86400


def pay(node: ChainNode, wei: int) -> None:
    Sender(node, devnet_account(0)).send(PAYEE, b"", value=wei)


@pytest.mark.parametrize("kind", ["embedded", "anvil"])
def test_a_chain_goes_on_where_it_ended_and_its_clock_does_not_run_back(tmp_path: Path, kind: str) -> None:
    if kind == "anvil" and find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with DevnetState(tmp_path) as state, start_devnet(kind=kind, state=state) as devnet:
        node = connect(devnet.url)
        before = node.balance(PAYEE)
        pay(node, 7)
        node.advance_time(WEEK)
        pay(node, 8)
        head = node.head()
        assert head.timestamp >= time.time() + WEEK - 60
    with DevnetState(tmp_path) as state, start_devnet(kind="auto", state=state) as devnet:
        assert devnet.kind == kind
        node = connect(devnet.url)
        assert node.head() == head
        assert node.balance(PAYEE) == before + 15
        pay(node, 9)
        assert node.head().number == head.number + 1
        # Anvil makes several blocks in one second.
        assert 0 <= node.head().timestamp - head.timestamp < 60
        assert node.balance(PAYEE) == before + 24


def blocks(node: ChainNode) -> list[Block | None]:
    return [node.block(number) for number in range(node.head().number + 1)]


def test_blocks_that_were_taken_back_are_not_played_again(tmp_path: Path) -> None:
    record = ChainRecord(tmp_path / "record")
    chain = EmbeddedChain(record)
    node = ChainNode(chain)
    pay(node, 1)
    snapshot = chain.request("evm_snapshot", [])
    node.advance_time(WEEK)
    pay(node, 2)
    chain.request("evm_revert", [snapshot])
    pay(node, 4)
    chain.request("evm_increaseTime", [3600])
    record.close()
    again = ChainNode(EmbeddedChain(ChainRecord(tmp_path / "record")))
    assert blocks(again) == blocks(node)
    assert again.balance(PAYEE) == node.balance(PAYEE)
    pay(again, 1)
    assert 3500 < again.head().timestamp - time.time() < 3700


def test_a_line_that_was_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "record"
    record = ChainRecord(path)
    node = ChainNode(EmbeddedChain(record))
    pay(node, 1)
    head, whole = node.head(), path.read_bytes()
    pay(node, 2)
    record.close()
    path.write_bytes(path.read_bytes()[:-1])
    again = ChainRecord(path)
    assert path.read_bytes() == whole
    assert ChainNode(EmbeddedChain(again)).head() == head


@pytest.mark.parametrize(
    "lines",
    [
        b"no json\n",
        b'{"genesis": -1}\n',
        b'{"genesis": 1099511627776}\n',
        b'{"genesis": 1}\n[]\n',
        b'{"genesis": 1}\n{"block": 2, "transaction": "0xzz"}\n',
        b'{"genesis": 1}\n{"block": 2, "transaction": "0x02c0"}\n',
        b'{"genesis": 1}\n{"offset": 1e999}\n',
        b'{"genesis": 1}\n' + b"[" * 100_000 + b"\n",
    ],
)
def test_a_damaged_record_is_named_with_what_to_do(tmp_path: Path, lines: bytes) -> None:
    path = tmp_path / "record"
    path.write_bytes(lines)
    with pytest.raises(DevnetError, match=r"record is damaged \(.*\): delete it to begin with a new chain\.$"):
        EmbeddedChain(ChainRecord(path))
    assert path.read_bytes() == lines


def test_nothing_follows_a_block_that_could_not_be_recorded(tmp_path: Path) -> None:
    class Full(ChainRecord):
        def add(self, event: RecordedEvent) -> None:
            raise DevnetError("no room")

    path = tmp_path / "record"
    node = ChainNode(EmbeddedChain(Full(path)))
    for _ in range(2):
        with pytest.raises(DevnetError, match="no room"):
            pay(node, 1)
    assert ChainNode(EmbeddedChain(ChainRecord(path))).head().number == 0


def test_one_process_has_a_state_and_a_kind_stays(tmp_path: Path) -> None:
    with DevnetState(tmp_path / "state") as state:
        with pytest.raises(DevnetError, match="another development chain runs on"):
            DevnetState(tmp_path / "state")
        with start_devnet(kind="embedded", state=state) as devnet:
            state.announce(devnet.url, PAYEE)
            said = (tmp_path / "state" / "environment").read_text()
            assert said == f"export TIEBREAK_CHAIN={devnet.url} TIEBREAK_CONTRACT={PAYEE}\n"
    assert not (tmp_path / "state" / "environment").exists()
    with DevnetState(tmp_path / "state") as state:
        assert state.contract == PAYEE
        with pytest.raises(DevnetError, match="use --kind embedded"):
            start_devnet(kind="anvil", state=state)
        (tmp_path / "state" / "anvil.json").write_text(json.dumps({}))
        with pytest.raises(DevnetError, match="two kinds"):
            start_devnet(state=state)
        (tmp_path / "state" / "contract").write_text("rm -rf")
        assert state.contract is None
