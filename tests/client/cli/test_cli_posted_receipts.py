"""`tiebreak post`, and the block that draws a share of a posted receipt: what an author, or a node, could pretend."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tiebreak.cli.failures import CommandError
from tiebreak.cli.posted_receipts import POST, BlockBeacon, read_beacon
from tiebreak.cli.receipt_files import signed_receipt
from tiebreak.evaluation.evaluation_receipt import EvaluationReceipt, largest_unnoticed, parse_evaluation_receipt
from tiebreak.rpc.node import ChainNode, connect
from tiebreak.rpc.quorum import QuorumTransport
from tiebreak.transactions.keys import devnet_account

from tests.client.canned_node import HASH, Canned, block
from tests.client.cli.cli_world import Chain, Run, refused
from tests.client.cli.test_cli_statements import MODEL
from tests.client.evaluation_tasks import write_evaluation
from tests.client.hostile_node import HostileNode

AUTHOR, STRANGER = devnet_account(5), devnet_account(6)


@dataclass(frozen=True)
class Posted:
    """A signed receipt, and its post."""

    receipt: EvaluationReceipt
    transaction: str
    block: int


@pytest.fixture
def receipt(tmp_path: Path) -> EvaluationReceipt:
    pytest.importorskip("transformers")
    file = write_evaluation(MODEL, tmp_path / "eval.json")
    signed = signed_receipt(parse_evaluation_receipt(file.read_bytes()), AUTHOR)
    file.write_text(signed.to_json())
    return signed


@pytest.fixture
def posted(receipt: EvaluationReceipt, tmp_path: Path, run: Run, chain: Chain) -> Posted:
    said = run("post", tmp_path / "eval.json", "--json", env=chain.environment(5))
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    assert found["draws"] == found["block"] + 32
    return Posted(receipt, found["transaction"], found["block"])


def mine(node: ChainNode, to: int) -> None:
    while node.head().number < to:
        node.advance_time(1)


def test_the_32nd_block_after_a_post_draws(posted: Posted, chain: Chain) -> None:
    node = connect(chain.url)
    mine(node, posted.block + 31)
    with pytest.raises(CommandError, match="wait for 1 more blocks"):
        read_beacon(node, posted.transaction, posted.receipt)
    mine(node, posted.block + 32)
    found, last = read_beacon(node, posted.transaction, posted.receipt), node.block(posted.block + 32)
    assert last is not None and found.seed == "0x" + last.hash.hex() and found.block == last.number
    assert found.earlier_transactions == node.nonce(AUTHOR.address, block=posted.block) - 1
    node.confirmations = 3
    with pytest.raises(CommandError, match="wait for 3 more blocks"):
        read_beacon(node, posted.transaction, posted.receipt)


def test_only_its_own_signed_receipt_is_posted(
    receipt: EvaluationReceipt, tmp_path: Path, run: Run, chain: Chain
) -> None:
    refused(run("post", tmp_path / "eval.json", env=chain.environment(6)), STRANGER.address, "evaluate with --sign")
    (tmp_path / "eval.json").write_text(receipt.by(None).to_json())
    refused(run("post", tmp_path / "eval.json", env=chain.environment(5)), "evaluate with --sign")


def canned(
    digest: bytes, changes: dict[str, object] | None = None, head: int = 0x25, of_block: str = HASH
) -> ChainNode:
    """A node with a post in block 5. changes: of the transaction as it gives it."""

    def blocks(tag: str, full: bool) -> object:
        number = head if tag == "latest" else int(tag, 16)
        return block(hex(number), hash=of_block if number == 5 else HASH)

    data = "0x" + POST.hex() + digest.hex()
    sent = {
        "hash": HASH,
        "from": AUTHOR.address,
        "nonce": "0x3",
        "input": data,
        "blockNumber": "0x5",
        "blockHash": HASH,
    }
    found = None if changes is None else sent | changes
    return ChainNode(Canned(eth_getTransactionByHash=found, eth_getBlockByNumber=blocks, eth_chainId="0x7"))


PRETENDED: dict[str, tuple[tuple[Any, ...], str]] = {
    "nothing": ((), "knows no transaction"),
    "no block": (({"blockNumber": None, "blockHash": None},), "is in no block yet"),
    "another digest": (({"input": "0x" + POST.hex() + "11" * 32},), "does not post the receipt"),
    "a post of another account": (({"from": STRANGER.address},), "was sent by"),
    "a block that was taken back": (({}, 0x25, "0x" + "22" * 32), "has taken back"),
    "a block that is due": (({}, 0x20), "wait for 5 more blocks"),
}


@pytest.mark.slow_but("another*")
@pytest.mark.parametrize("name", PRETENDED)
def test_what_draws_nothing_is_refused(name: str, receipt: EvaluationReceipt) -> None:
    found = read_beacon(canned(receipt.digest, {}), HASH, receipt)
    assert found == BlockBeacon(HASH, 0x25, 7, AUTHOR.address, 3)
    answers, said = PRETENDED[name]
    with pytest.raises(CommandError, match=said):
        read_beacon(canned(receipt.digest, *answers), HASH, receipt)
    with pytest.raises(CommandError, match="no transaction's hash"):
        read_beacon(canned(receipt.digest, {}), HASH[:-1], receipt)


@pytest.mark.slow
def test_nodes_that_contradict_each_other_draw_nothing(posted: Posted, chain: Chain) -> None:
    node = connect(chain.url)
    mine(node, posted.block + 32)
    liar = HostileNode(node._transport)
    liar.lies["eth_getTransactionByHash"] = lambda params, true: true | {"nonce": "0x63"}
    several = ChainNode(QuorumTransport([liar, HostileNode(node._transport, "honest")]))
    with pytest.raises(CommandError, match="say different things about transaction"):
        read_beacon(several, posted.transaction, posted.receipt)


def test_as_many_posts_as_an_author_likes_add_up_to_5_percent() -> None:
    odds = [BlockBeacon(HASH, 32, 1, AUTHOR.address, earlier).odds for earlier in range(1000)]
    assert Fraction(49, 1000) < sum(Fraction(1, one) for one in odds) < Fraction(1, 20)
    bounds = [largest_unnoticed(300, 30, one) for one in (20, *odds[:3], odds[-1])]
    assert bounds == sorted(bounds) and bounds[0] < bounds[1] < bounds[-1] < 300
