"""The newest block of several nodes: which one is gone by when they lag, fork, or make blocks up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.devnet.launcher import RpcServer
from tiebreak.rpc.chain_errors import ChainUnavailable, NodesDisagree, WrongChain
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.quorum import connect_all, quorum_of
from tiebreak.rpc.quorum_members import TURN_SECONDS
from tiebreak.rpc.transport import CALM_SECONDS, UNDERTAKINGS

from tests.client.hostile_node import BlockNode


class Watch:
    """A clock in the test's hands, and the date by which a block of that number has just come."""

    def __init__(self, newest: int) -> None:
        self.steady = 0.0
        self.today = float(BlockNode.time_of(newest))


def several(*nodes: BlockNode, watch: Watch | None = None, confirmations: int = 12) -> ChainNode:
    watch = watch or Watch(max(node.height for node in nodes))
    return quorum_of(nodes, confirmations=confirmations, clock=lambda: watch.steady, today=lambda: watch.today)


def named(*heights: int) -> list[BlockNode]:
    return [BlockNode(name, height) for name, height in zip("abcdef", heights, strict=False)]


@pytest.mark.parametrize(
    ("heights", "newest"),
    [((100, 100), 100), ((100, 99), 99), ((97, 100), 97), ((100, 100, 99), 100), ((98, 100, 99), 99)],
)
def test_nodes_a_few_blocks_apart_are_in_agreement(heights: tuple[int, ...], newest: int) -> None:
    chain = several(*named(*heights))
    assert chain.head().number == newest
    assert (chain.agreement.contradiction, chain.agreement.missing) == ("", ())


def test_a_node_that_lags_is_told_of_and_does_not_hold_the_others_up() -> None:
    chain = several(*named(100, 100, 60))
    assert chain.head().number == 100
    assert chain.agreement.missing == ("c is 40 blocks behind",)
    assert not chain.agreement.contradiction


@pytest.mark.parametrize(("lag", "undecided"), [(11, False), (40, True)])
def test_of_two_nodes_the_one_whose_blocks_are_old_lags(lag: int, undecided: bool) -> None:
    """A bond needs what both show, so a node that does not have the confirmed blocks holds bonds up."""
    nodes = named(100, 100 - lag)
    chain = several(*nodes)
    assert chain.head().number == 100
    assert chain.agreement.missing == (f"b is {lag} blocks behind",)
    assert chain.agreement.undecided is undecided
    nodes[1].height = 99
    assert chain.head().number == 99
    assert not chain.agreement.missing


def test_a_made_up_height_is_outvoted_by_two() -> None:
    chain = several(*named(100, 100, 10**9), watch=Watch(100))
    assert chain.head().number == 100
    assert chain.agreement.contradiction == ("the newest block of c is 1000000000, and that of a and b is 100")
    assert not chain.agreement.undecided


def test_a_made_up_height_against_one_is_gone_by_in_turns_and_bonds_wait() -> None:
    watch = Watch(100)
    chain = several(*named(100, 10**9), watch=watch)
    seen = set()
    for _ in range(4):
        seen.add(chain.head().number)
        watch.steady += TURN_SECONDS
    assert seen == {100, 10**9}
    assert chain.agreement.undecided


@pytest.mark.parametrize("through_web3", [False, True])
def test_confirmations_that_are_set_later_hold_for_what_the_nodes_compare(through_web3: bool) -> None:
    """Regression: the default of a chain is set once its id is known, and nodes were held to have one tip then."""
    chain = several(BlockNode("a", 100), BlockNode("b", 100, forks=98), confirmations=0)
    if through_web3:
        chain = ChainNode(chain.w3)
    chain.confirmations = 12
    assert chain.head().number == 97
    assert (chain.confirmations, chain.agreement.contradiction) == (12, "")
    assert ChainNode(chain.w3, confirmations=5).head().number == 97


def test_two_forks_are_gone_by_in_turns_until_all_is_calm() -> None:
    watch = Watch(100)
    nodes = [BlockNode("a", 100), BlockNode("b", 100, forks=80)]
    chain = several(*nodes, watch=watch)
    assert chain.agreement.contradiction == ""
    views, hashes = set(), set()
    for _ in range(4):
        hashes.add(chain.head().hash)
        views.add(chain.view)
        watch.steady += TURN_SECONDS
    assert len(hashes) == 2
    assert len(views) > 2, "what was seen of the other chain has to be read again"
    assert chain.agreement.contradiction == "a and b show different blocks up to number 100"
    for function in UNDERTAKINGS:
        with pytest.raises(NodesDisagree, match="no new bond is paid until they agree"):
            chain.agreement.require(function)
    chain.agreement.require("bisect")
    nodes[1].forks = None
    chain.head()
    assert chain.agreement.undecided, "a liar that is honest now and then"
    watch.steady += CALM_SECONDS
    chain.head()
    assert not chain.agreement.undecided
    chain.agreement.require("challenge")


def test_two_of_three_decide_between_forks() -> None:
    nodes = [BlockNode("a", 100, forks=80), BlockNode("b", 100), BlockNode("c", 99)]
    chain = several(*nodes)
    block = chain.head()
    assert block.number in (99, 100)
    assert block.hash == several(BlockNode("x", block.number), BlockNode("y", block.number)).head().hash
    assert chain.agreement.contradiction == "b, c and a show different blocks up to number 99" or (
        "a" in chain.agreement.contradiction
    )
    chain.agreement.require("challenge")


def test_at_a_fork_of_the_tip_the_newest_common_block_counts() -> None:
    for height in (100, 101, 99):
        chain = several(BlockNode("a", 100), BlockNode("b", height, forks=95))
        assert chain.head().number == 94
        assert chain.agreement.contradiction == ""


def test_most_nodes_say_which_chain_it_is() -> None:
    """A node that is put off the track, or lies, at the moment of a restart must not keep a role from its games."""
    nodes = named(100, 100, 100)
    nodes[0].chain_id = 5
    chain = several(*nodes)
    assert (chain.chain_id, chain.head().number) == (1, 100)
    assert chain.agreement.missing == ("a is a node of chain 5, and not of chain 1: give nodes of one chain.",)


def test_a_socket_that_is_not_there_yet_keeps_no_role_from_the_other_nodes(tmp_path: Path) -> None:
    chain = EmbeddedChain()
    with served(chain) as url:
        nodes = connect_all([str(tmp_path / "late.ipc"), url])
        assert nodes.head().number == 0
        assert "late.ipc" in nodes.agreement.missing[0]
    (tmp_path / "file.ipc").write_text("")
    with pytest.raises(ChainUnavailable, match="is not a node's socket"):
        connect_all([str(tmp_path / "file.ipc"), "http://127.0.0.1:1"])


@contextmanager
def served(chain: EmbeddedChain) -> Iterator[str]:
    server = RpcServer(chain)
    try:
        yield server.url
    finally:
        server.close()


def test_a_block_of_another_time_under_the_same_hash_is_a_lie() -> None:
    liar = BlockNode("b", 100)
    chain = several(BlockNode("a", 100), liar)
    liar.time_of = lambda number: 1
    chain.head()
    assert chain.agreement.undecided


def test_nodes_of_two_chains_are_refused_by_name() -> None:
    other = BlockNode("b", 100)
    other.chain_id = 5
    with pytest.raises(WrongChain, match=r"b is a node of chain 5, and not of chain 1: give nodes of one chain\."):
        several(BlockNode("a", 100), other)
    with pytest.raises(WrongChain, match=r"b is a node of another chain 1 \(first block 0x"):
        several(BlockNode("a", 100), BlockNode("b", 100, forks=0))


def test_a_node_that_is_away_at_first_shows_its_chain_when_it_comes() -> None:
    watch = Watch(100)
    late = BlockNode("b", 100)
    late.away = True
    chain = several(BlockNode("a", 100), late, watch=watch)
    assert chain.head().number == 100
    assert chain.agreement.missing == ("b does not answer",)
    late.away, late.chain_id = False, 5
    watch.steady += 10
    chain.head()
    assert "b is a node of chain 5" in chain.agreement.missing[0]
    late.chain_id = 1
    watch.steady += 100
    chain.head()
    assert not chain.agreement.missing


def test_no_node_at_all_is_said_in_one_sentence() -> None:
    nodes = named(1, 1)
    nodes[0].away = nodes[1].away = True
    with pytest.raises(ChainUnavailable, match=r"none of the nodes a and b answers: start one, or check the addresses"):
        several(*nodes)
    with pytest.raises(ChainUnavailable, match="named twice"):
        connect_all(["http://127.0.0.1:1", "http://127.0.0.1:1"])
