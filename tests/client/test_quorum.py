"""Several nodes as one: each row of the threat model's table of what one node gains keeps a test here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.contract_watch import ContractWatch
from tiebreak.contract.enums import JobStatus
from tiebreak.contract.events import JobPosted
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.devnet.launcher import find_anvil, start_devnet
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.rpc import quorum
from tiebreak.rpc.chain_errors import ChainError, NodesDisagree, RpcRefused, WrongChain
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.quorum import CALM_SECONDS, FORK_SECONDS, TURN_SECONDS, QuorumTransport
from tiebreak.rpc.transport import UNDERTAKINGS, HttpTransport, Transport
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.signer import funds

from tests.client.disputes import Cast, Run
from tests.client.hostile_node import BlockNode, HostileNode, Lie

PARTY, STRANGER = devnet_account(2), devnet_account(3)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    """A chain with a contract and a job that is claimed wrongly, and two more nodes of it."""

    chain: Transport
    cast: Cast
    job: int

    def nodes(self, *liars: HostileNode, honest: int = 1, clock: Callable[[], float] | None = None) -> ChainNode:
        """The liars first."""
        good = [HostileNode(self.chain, f"honest {i}") for i in range(honest)]
        return ChainNode(QuorumTransport([*liars, *good], clock=clock or Clock()))

    def liar(self, **lies: Lie) -> HostileNode:
        """A node that answers these methods so."""
        liar = HostileNode(self.chain)
        liar.lies.update(lies)
        return liar


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """The world on anvil, or on the embedded chain where anvil is not installed."""
    if find_anvil() is None:
        yield built(EmbeddedChain())
        return
    with start_devnet(kind="anvil") as devnet:
        yield built(HttpTransport(devnet.url))


def built(chain: Transport) -> World:
    cast = Cast.on(ChainNode(chain))
    job = cast.post()
    cast.commit(job, Run.of(33))
    return World(chain, cast, job)


def refusing(params: list[Any], true: Any) -> Any:
    raise RpcRefused("eth_estimateGas", 3, "execution reverted", b"")


# Equal answers, a majority, and none.


def test_every_question_about_the_chain_goes_to_all_nodes_and_equal_answers_need_no_vote(world: World) -> None:
    """A question to one node alone could be answered by a liar."""
    contract, account = world.cast.customer.address, PARTY.address
    questions: dict[str, Callable[[ChainNode], object]] = {
        "head": lambda node: node.head(),
        "now": lambda node: node.now(),
        "block": lambda node: node.block(1),
        "transactions_of": lambda node: node.transactions_of(1),
        "balance": lambda node: node.balance(account),
        "code": lambda node: node.code(contract),
        "nonce": lambda node: (node.nonce(account), node.nonce(account, pending=True)),
        "priority_fee": lambda node: node.priority_fee(),
        "call": lambda node: VerificationGame(node, contract).job(world.job),
        "estimate_gas": lambda node: node.estimate_gas(account, b"", sender=account, value=1),
        "receipt": lambda node: node.receipt(bytes(32)),
        "transaction": lambda node: node.transaction(bytes(32)),
        "logs": lambda node: node.logs(contract, from_block=0),
        "all_logs": lambda node: node.all_logs(contract, 0, 3),
    }
    others = {"name", "agreement", "view", "chain_id", "send_raw", "advance_time", "ask", "w3", "confirmations"}
    """Not questions about the chain's state, or of any kind; `send_raw` has a test of its own."""
    assert {name for name in vars(ChainNode) if not name.startswith("_")} == set(questions) | others
    pair = [HostileNode(world.chain, name) for name in ("first", "second")]
    nodes, alone = ChainNode(QuorumTransport(pair)), ChainNode(world.chain)
    for name, ask in questions.items():
        for one in pair:
            one.asked.clear()
        found = ask(nodes)
        assert found == ask(alone) or name == "now", name
        assert sorted(pair[0].asked) == sorted(pair[1].asked) != [], name
    assert (nodes.agreement.contradiction, nodes.agreement.missing) == ("", ())


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("eth_getBlockByNumber", ["pending", False]),
        ("eth_call", [{"to": PARTY.address}, "latest", {PARTY.address: {"code": "0x"}}]),
        ("eth_getBalance", [PARTY.address, "pending"]),
        ("eth_sendRawTransaction", ["nothing"]),
        ("eth_getLogs", [{"address": PARTY.address, "fromBlock": "0x0", "toBlock": "latest"}]),
    ],
    ids=str,
)
def test_a_question_in_a_form_that_is_not_compared_is_refused(world: World, method: str, params: list[Any]) -> None:
    """No node is asked, nor blamed."""
    pair = [HostileNode(world.chain, name) for name in ("first", "second")]
    transport = QuorumTransport(pair)
    for one in pair:
        one.asked.clear()
    with pytest.raises(RpcRefused, match="several nodes are not compared in this form: ask one of them"):
        transport.request(method, params)
    assert not any(one.asked for one in pair)


def test_two_honest_nodes_outvote_hidden_and_made_up_events_and_bonds_go_on(world: World) -> None:
    address = world.cast.customer.address

    def another_job(params: list[Any], true: Any) -> Any:
        posted = next(one for one in true if len(one["topics"]) > 1)
        return [posted | {"topics": [posted["topics"][0], "0x" + "ff" * 32, *posted["topics"][2:]]}, *true]

    hidden: Lie = lambda params, true: true[1:]  # noqa: E731
    for lie in (hidden, another_job):
        chain = world.nodes(world.liar(eth_getLogs=lie), honest=2)
        found = VerificationGame(chain, address).events()
        assert found == VerificationGame(ChainNode(world.chain), address).events()
        assert max(event.job for event in found if isinstance(event, JobPosted)) < 1000
        begins = "the liar and honest 0 and honest 1 say different things about the events of blocks"
        assert chain.agreement.contradiction.startswith(begins)
        chain.agreement.require("challenge")


def test_without_a_majority_nothing_new_is_begun_and_games_go_on(world: World) -> None:
    chain = world.nodes(world.liar(eth_getLogs=lambda params, true: []))
    sender = Sender(chain, PARTY)
    contract = VerificationGame(chain, world.cast.customer.address, sender)
    chain.logs(contract.address, from_block=0)
    with pytest.raises(NodesDisagree, match="and honest 0 say different things about the events of blocks 0 to"):
        contract.send(
            contract.paying(
                "challenge", 1, **dict.fromkeys(["spec_hash", "claimed_root", "checkpoint_root"], bytes(32)), bond=1
            )
        )
    queue = TransactionQueue(contract, sender)
    refused: list[ChainError] = []
    call = ContractCall.of("challenge", 1, *[bytes(32)] * 3, value=1)
    order = Order(call=call, sent=lambda _: None, failed=refused.append)
    assert queue.put(order) is False
    assert [type(error) for error in refused] == [NodesDisagree]
    assert queue.put(replace(order, call=ContractCall.of("claimTimeout", 1)))


def test_a_watch_reads_everything_again_through_the_next_node(world: World) -> None:
    """The liar shows an old state of a job that is claimed; a turn later it is seen as it is."""
    cast, job, clock = world.cast, world.cast.post(), Clock()
    block = hex(ChainNode(world.chain).head().number)
    liar = world.liar(eth_call=lambda params, true: world.chain.request("eth_call", [params[0], block]))
    cast.commit(job, Run.of())
    watch = ContractWatch(VerificationGame(world.nodes(liar, clock=clock), cast.customer.address))
    watch.follow(job)
    seen = set()
    for _ in range(4):
        watch.look()
        seen.add(watch.job(job).status)
        clock.now += TURN_SECONDS
    assert seen == {JobStatus.OPEN, JobStatus.CLAIMED}


def test_a_balance_or_code_that_one_node_makes_up_is_outvoted_or_told(world: World) -> None:
    """An account that seems to be empty pays no bond, and one that does not appeal loses the bond that it has paid."""
    empty: Lie = lambda params, true: "0x0"  # noqa: E731
    true = ChainNode(world.chain).balance(PARTY.address)
    nodes = world.nodes(world.liar(eth_getBalance=empty), honest=2)
    assert true and funds(nodes, PARTY.address, 1).balance == true
    assert "the balance of" in nodes.agreement.contradiction and not nodes.agreement.undecided
    clock = Clock()
    pair, seen = world.nodes(world.liar(eth_getBalance=empty), clock=clock), set()
    for _ in range(4):
        pair.head()
        seen.add(pair.balance(PARTY.address))
        clock.now += TURN_SECONDS
    assert seen == {0, true} and pair.agreement.undecided, "without a majority each is believed in turn, and it is told"
    chain = world.nodes(world.liar(eth_getCode=lambda params, true: "0x6001"))
    chain.code(world.cast.customer.address)
    assert chain.agreement.undecided


# Transactions: receipts, nonces, fees, gas.


def test_transactions_go_to_every_node_and_are_refused_with_the_nodes_reason(world: World) -> None:
    liar, other = world.liar(), HostileNode(world.chain, "honest")
    liar.swallows = True
    chain = ChainNode(QuorumTransport([liar, other]))
    assert Sender(chain, devnet_account(5), patience=5.0).send(PARTY.address, b"", value=7).succeeded
    assert "eth_sendRawTransaction" in liar.asked and "eth_sendRawTransaction" in other.asked
    with pytest.raises(RpcRefused):
        world.nodes(honest=2).send_raw(b"\x02nonsense")


@pytest.mark.slow_but("missing-1", "invented-2")
@pytest.mark.parametrize("honest", [1, 2])
@pytest.mark.parametrize("lie", ["missing", "invented", "failed"])
def test_one_lying_node_among_several_ends_no_payment(world: World, honest: int, lie: str) -> None:
    """The payment is made once, and its end is that of the two honest nodes; with one, nothing new is begun by it."""
    node, clock = ChainNode(world.chain), Clock()
    sample = Sender(node, devnet_account(6)).send(STRANGER.address, b"", value=1)
    true_one: Any = world.chain.request("eth_getTransactionReceipt", ["0x" + sample.transaction.hex()])
    lies: dict[str, Lie] = {
        "missing": lambda params, true: None,
        "invented": lambda params, true: true_one | {"transactionHash": params[0]},
        "failed": lambda params, true: true and true | {"status": "0x0"},
    }
    nodes = world.nodes(world.liar(eth_getTransactionReceipt=lies[lie]), honest=honest, clock=clock)
    sender = Sender(nodes, PARTY, patience=0.3)
    before = node.balance(STRANGER.address)
    sent = sender.submit(STRANGER.address, b"", value=7)
    was_undecided = False
    for _ in range(6):
        sender.poll()
        was_undecided |= nodes.agreement.undecided
        clock.now += TURN_SECONDS
    true = node.receipt(sent.hashes[0])
    assert true is not None and true.succeeded
    assert sent.receipt == true or (sent.receipt is not None and was_undecided)
    assert was_undecided == (honest == 1)
    assert node.balance(STRANGER.address) == before + 7


@pytest.mark.parametrize("honest", [1, 2])
def test_tips_nonces_and_gas_that_one_node_makes_up_gain_nothing(world: World, honest: int) -> None:
    alone = ChainNode(world.chain)
    liar = world.liar(
        eth_maxPriorityFeePerGas=lambda params, true: hex(10**14),
        eth_getTransactionCount=lambda params, true: hex(5000) if params[1] == "pending" else true,
    )
    nodes = world.nodes(liar, honest=honest)
    assert nodes.priority_fee() == alone.priority_fee()
    assert nodes.nonce(PARTY.address, pending=True) == alone.nonce(PARTY.address)
    assert not nodes.agreement.contradiction
    lies: list[Lie] = [refusing, lambda params, true: hex(2**39), lambda params, true: hex(21_000)]
    for lie in lies:
        nodes = world.nodes(world.liar(eth_estimateGas=lie), honest=honest)
        try:
            estimate = nodes.estimate_gas(PARTY.address, bytes(1000), sender=PARTY.address)
        except ChainError:
            estimate = 0
        assert nodes.agreement.undecided == (honest == 1)
        assert honest == 1 or estimate == alone.estimate_gas(PARTY.address, bytes(1000), sender=PARTY.address)


# Ranges of events that nodes refuse.


def limited(world: World, name: str, most: int) -> HostileNode:
    """A node that shows events of so many blocks at once."""
    node = HostileNode(world.chain, name)

    def lie(params: list[Any], true: Any) -> Any:
        if int(params[0]["toBlock"], 16) - int(params[0]["fromBlock"], 16) + 1 > most:
            raise RpcRefused("eth_getLogs", -32005, f"you can query {most} blocks at once")
        return true

    node.lies["eth_getLogs"] = lie
    return node


@pytest.mark.parametrize("limits", [(3,), (1, 4)], ids=str)
def test_a_node_that_allows_any_range_is_not_believed_for_it_alone(world: World, limits: tuple[int, ...]) -> None:
    """Regression: a node that answered where hosted ones refuse long ranges was believed alone."""
    honest = [limited(world, f"honest {i}", most) for i, most in enumerate(limits)]
    nodes = ChainNode(QuorumTransport([*honest, world.liar(eth_getLogs=lambda params, true: true[1:])], clock=Clock()))
    found = nodes.logs(world.cast.customer.address, from_block=0)
    assert "say different things about the events of blocks" in nodes.agreement.contradiction
    assert nodes.agreement.undecided == (len(honest) == 1)
    assert len(honest) == 1 or found == ChainNode(world.chain).logs(world.cast.customer.address, from_block=0)


def test_nodes_with_different_limits_show_all_events_and_one_that_shows_none_is_left_alone(world: World) -> None:
    true = ChainNode(world.chain).logs(world.cast.customer.address, from_block=0)
    for limits in ((1, 5), (7, 3, 2)):
        nodes = ChainNode(QuorumTransport([limited(world, f"node {i}", most) for i, most in enumerate(limits)]))
        assert nodes.logs(world.cast.customer.address, from_block=0) == true
        assert not nodes.agreement.contradiction and not nodes.agreement.missing
    nodes = ChainNode(QuorumTransport([limited(world, "the mute node", 0), limited(world, "the good node", 2000)]))
    assert nodes.logs(world.cast.customer.address, from_block=0) == true
    assert nodes.agreement.missing == ("the mute node shows no events, not even of one block",)


def bent(value: Any) -> Any:
    """Another value of the same form."""
    if isinstance(value, list):
        return value[:-1]
    return "0x" + "11" * 20 if value is None else value[:-1] + ("1" if value[-1] != "1" else "2")


@pytest.mark.slow_but("eth_getBlockByNumber")
@pytest.mark.parametrize(
    "method", ["eth_getBlockByNumber", "eth_getTransactionReceipt", "eth_getTransactionByHash", "eth_getLogs"]
)
def test_no_field_is_shown_that_was_not_compared(world: World, method: str) -> None:
    """The liar is the first of two nodes, so its answer is believed, and has to be reported."""
    contract = world.cast.customer.address
    event = ChainNode(world.chain).logs(contract, from_block=0)[-1]
    block = hex(event.block)
    params: list[Any] = {
        "eth_getBlockByNumber": [block, False],
        "eth_getTransactionReceipt": ["0x" + event.transaction.hex()],
        "eth_getTransactionByHash": ["0x" + event.transaction.hex()],
        "eth_getLogs": [{"address": contract, "fromBlock": block, "toBlock": block, "topics": []}],
    }[method]
    second = HostileNode(world.chain, "second")
    true: Any = ChainNode(QuorumTransport([HostileNode(world.chain, "first"), second])).ask(method, *params)
    shown: list[Any] = true if isinstance(true, list) else [true, *true.get("logs", [])]
    told: list[Any] = []
    for place, record in enumerate(shown):
        for field in record:

            def lie(asked: list[Any], answer: Any, place: int = place, field: str = field) -> Any:
                if asked != params:
                    return answer
                told.append((place, field))
                answer = deepcopy(answer)
                records = answer if isinstance(answer, list) else [answer, *answer.get("logs", [])]
                records[place][field] = bent(records[place][field])
                return answer

            nodes = ChainNode(QuorumTransport([world.liar(**{method: lie}), second], clock=Clock()))
            found = nodes.ask(method, *params)
            assert nodes.agreement.contradiction or nodes.agreement.missing or found == true, (place, field)
    assert len(set(told)) == sum(map(len, shown)) >= 5


# Nodes that hang, are down, or are of another chain.


def test_a_slow_node_is_waited_for_once_and_then_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "GRACE", 0.05)
    slow, clock = HostileNode(world.chain, "the slow node"), Clock()
    chain = ChainNode(QuorumTransport([slow, HostileNode(world.chain, "the quick node")], clock=clock))
    chain.head()
    slow.seconds = 0.3
    slow.asked.clear()
    for _ in range(20):
        chain.head()
    assert len(slow.asked) == 1
    assert chain.agreement.missing == ("the slow node did not answer within 0.05 seconds after another had",)
    chain.agreement.require("challenge")
    slow.seconds = 0.0
    clock.now += 100
    monkeypatch.setattr(quorum, "GRACE", 10.0)
    chain.head()
    assert not chain.agreement.missing


def test_a_defect_in_a_question_is_heard_of_at_once(world: World) -> None:
    def defect(params: list[Any], true: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.nodes(world.liar(eth_getCode=defect)).code(PARTY.address)


def several(*nodes: BlockNode, clock: Callable[[], float] | None = None, confirmations: int = 12) -> ChainNode:
    return ChainNode(QuorumTransport(nodes, clock=clock or Clock()), confirmations=confirmations)


def named(*heights: int) -> list[BlockNode]:
    return [BlockNode(name, height) for name, height in zip("abcdef", heights, strict=False)]


def test_most_nodes_say_which_chain_it_is_and_two_chains_are_refused_by_name() -> None:
    """A node of another chain must not keep a role from its games at a restart."""
    nodes = named(100, 100, 100)
    nodes[0].chain_id = 5
    chain = several(*nodes)
    assert (chain.chain_id, chain.head().number) == (1, 100)
    assert chain.agreement.missing == ("a is a node of chain 5, and not of chain 1: give nodes of one chain.",)
    with pytest.raises(
        WrongChain, match=r"a is a node of chain 5, and not of chain 1: give|b is a node of chain 1, and"
    ):
        several(*nodes[:2])
    with pytest.raises(WrongChain, match=r"b is a node of another chain 1 \(first block 0x"):
        several(BlockNode("a", 100), BlockNode("b", 100, forks=0))


def test_a_node_that_is_away_at_first_shows_its_chain_when_it_comes() -> None:
    clock, late = Clock(), BlockNode("b", 100)
    late.away = True
    chain = several(BlockNode("a", 100), late, clock=clock)
    assert chain.head().number == 100
    assert chain.agreement.missing == ("b does not answer",)
    chain.agreement.require("challenge")
    late.away, late.chain_id = False, 5
    clock.now += 10
    chain.head()
    assert "b is a node of chain 5" in chain.agreement.missing[0]
    late.chain_id = 1
    clock.now += 100
    chain.head()
    assert not chain.agreement.missing


# The newest block.


@pytest.mark.parametrize(("heights", "newest"), [((97, 100), 97), ((100, 100, 99), 100), ((98, 100, 99), 99)])
def test_nodes_a_few_blocks_apart_are_in_agreement(heights: tuple[int, ...], newest: int) -> None:
    chain = several(*named(*heights))
    assert chain.head().number == newest
    assert (chain.agreement.contradiction, chain.agreement.missing) == ("", ())


@pytest.mark.parametrize("lag", [11, 40])
def test_a_node_that_lags_is_told_of_and_holds_bonds_up_if_there_is_no_third(lag: int) -> None:
    """A bond needs what both show, so a node that does not have the confirmed blocks holds bonds up."""
    chain = several(*named(100, 100, 100 - lag))
    assert chain.head().number == 100
    assert chain.agreement.missing == (f"c is {lag} blocks behind",)
    assert not chain.agreement.contradiction
    nodes, clock, seen = named(100, 100 - lag), Clock(), set()
    chain = several(*nodes, clock=clock)
    for _ in range(2):
        seen.add(chain.head().number)
        clock.now += TURN_SECONDS
    assert seen == {100, 100 - lag}, "each is believed in turn"
    assert chain.agreement.missing == (f"b is {lag} blocks behind",)
    assert chain.agreement.undecided is (lag > 12)
    nodes[1].height = 99
    assert chain.head().number == (99 if lag == 11 else chain.head().number)
    assert not chain.agreement.missing


def test_a_made_up_height_is_outvoted_by_two_and_taken_back_by_one() -> None:
    chain = several(*named(100, 100, 10**9))
    assert chain.head().number == 100
    assert chain.agreement.contradiction == "the newest block of c is 1000000000, and that of a and b is 100"
    assert not chain.agreement.undecided
    clock, seen = Clock(), set()
    chain = several(*named(100, 10**9), clock=clock)
    for _ in range(4):
        seen.add(chain.head().number)
        clock.now += TURN_SECONDS
    assert seen == {100, 10**9}
    assert chain.agreement.undecided


def test_confirmations_that_are_set_later_hold_for_what_the_nodes_compare() -> None:
    """Regression: the default of a chain is set once its id is known, and nodes were held to have one tip then."""
    chain = ChainNode(several(BlockNode("a", 100), BlockNode("b", 100, forks=98), confirmations=0).w3)
    chain.confirmations = 12
    assert chain.head().number == 88, "the last confirmed block"
    assert (chain.confirmations, chain.agreement.contradiction) == (12, "")
    assert ChainNode(chain.w3, confirmations=5).head().number == 95


def test_two_forks_are_believed_in_turns_until_all_is_calm() -> None:
    clock, nodes = Clock(), [BlockNode("a", 100), BlockNode("b", 100, forks=80)]
    chain = several(*nodes, clock=clock)
    assert chain.agreement.contradiction == ""
    views, hashes = set(), set()
    for _ in range(4):
        hashes.add(chain.head().hash)
        views.add(chain.view)
        clock.now += TURN_SECONDS
    assert len(hashes) == 2
    assert len(views) > 2, "what was seen of the other chain has to be read again"
    assert chain.agreement.contradiction == "a and b show different blocks up to number 88"
    for function in UNDERTAKINGS:
        with pytest.raises(NodesDisagree, match="no new bond is paid until they agree"):
            chain.agreement.require(function)
    chain.agreement.require("bisect")
    nodes[1].forks = None
    chain.head()
    assert chain.agreement.undecided, "a liar that is honest now and then"
    clock.now += CALM_SECONDS
    chain.head()
    assert not chain.agreement.undecided
    chain.agreement.require("challenge")


def test_two_of_three_decide_between_forks_and_the_third_is_told_of_if_it_lasts() -> None:
    clock = Clock()
    chain = several(BlockNode("a", 100, forks=80), BlockNode("b", 100), BlockNode("c", 99), clock=clock)
    block = chain.head()
    assert block == several(BlockNode("x", block.number), BlockNode("y", block.number)).head()
    for _ in range(4):
        assert chain.head() == block
        clock.now += FORK_SECONDS / 3
    assert "show different blocks up to number 99" in chain.agreement.contradiction
    chain.agreement.require("challenge")


def test_a_block_of_another_time_under_the_same_hash_is_a_lie() -> None:
    liar = BlockNode("b", 100)
    chain = several(BlockNode("a", 100), liar, confirmations=0)
    liar.time_of = lambda number: 1  # type: ignore[method-assign]
    chain.head()
    assert chain.agreement.undecided
