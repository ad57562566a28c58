"""Several nodes as one: answers are compared, a majority is believed, and a liar holds nothing up for long."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tiebreak.contract.contract_calls import ContractCall
from tiebreak.contract.contract_watch import ContractWatch
from tiebreak.contract.enums import JobStatus, Outcome, Side
from tiebreak.contract.events import JobPosted
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.devnet.launcher import find_anvil, start_devnet
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.rpc import quorum, quorum_members
from tiebreak.rpc.chain_errors import ChainError, ContractError, InvalidAnswer, NodesDisagree, RpcRefused
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.quorum import QuorumTransport, quorum_of
from tiebreak.rpc.quorum_members import TURN_SECONDS
from tiebreak.rpc.transport import FORK_SECONDS, HttpTransport, Transport
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender
from tiebreak.transactions.signer import funds

from tests.client.disputes import Cast, Party, Run, made
from tests.client.hostile_node import HostileNode, Lie

PARTY = devnet_account(2)


@dataclass
class World:
    """A chain with a contract and a job that is claimed wrongly, and two more nodes of it."""

    chain: Transport
    cast: Cast
    job: int

    def nodes(self, *liars: HostileNode, honest: int = 1, pace: float = 180) -> ChainNode:
        """The liars first. A second here counts as `pace` seconds of theirs."""
        good = [HostileNode(self.chain, f"honest {i}") for i in range(honest)]
        return quorum_of([*liars, *good], clock=lambda: pace * time.monotonic(), today=lambda: self.now)

    @property
    def now(self) -> float:
        return float(ChainNode(self.chain).head().timestamp)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum, "_SECONDS_BETWEEN_ESTIMATES", 0.01)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """On the fastest chain at hand: what is tested stands in front of it."""
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


# Lies of one node.


def _old_views(world: World) -> Lie:
    """A lie by which nothing happens any more: every view is as of now."""
    block = hex(ChainNode(world.chain).head().number)
    return lambda params, true: world.chain.request("eth_call", [params[0], block])


def _refusing(params: list[Any], true: Any) -> Any:
    raise RpcRefused("eth_estimateGas", 3, "execution reverted", b"")


def _made_up_head(params: list[Any], true: Any) -> Any:
    return true | {"number": hex(10**9), "hash": "0x" + "77" * 32} if params[0] == "latest" else true


def _lost_receipt(params: list[Any], true: Any) -> Any:
    return None


def _failed_receipt(params: list[Any], true: Any) -> Any:
    return true and true | {"status": "0x0"}


LIES: dict[str, Callable[[World, HostileNode], None]] = {
    "old views": lambda world, liar: liar.lies.update(eth_call=_old_views(world)),
    "no events": lambda world, liar: liar.lies.update(eth_getLogs=lambda params, true: []),
    "refused estimates": lambda world, liar: liar.lies.update(eth_estimateGas=_refusing),
    "tiny estimates": lambda world, liar: liar.lies.update(eth_estimateGas=lambda params, true: hex(21_000)),
    "huge estimates": lambda world, liar: liar.lies.update(eth_estimateGas=lambda params, true: hex(2**39)),
    "huge tips": lambda world, liar: liar.lies.update(eth_maxPriorityFeePerGas=lambda params, true: hex(10**14)),
    "lost receipts": lambda world, liar: liar.lies.update(eth_getTransactionReceipt=_lost_receipt),
    "failed receipts": lambda world, liar: liar.lies.update(eth_getTransactionReceipt=_failed_receipt),
    "high nonces": lambda world, liar: liar.lies.update(eth_getTransactionCount=lambda params, true: hex(5000)),
    "no nonces": lambda world, liar: liar.lies.update(eth_getTransactionCount=lambda params, true: "0x0"),
    "made-up blocks": lambda world, liar: liar.lies.update(eth_getBlockByNumber=_made_up_head),
    "swallowed transactions": lambda world, liar: setattr(liar, "swallows", True),
    "lag": lambda world, liar: setattr(liar, "lag", 6),
    "silence": lambda world, liar: setattr(liar, "away", True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "honest"),
    [*((lie, 1) for lie in LIES), *((lie, 2) for lie in ("old views", "refused estimates", "made-up blocks"))],
)
def test_a_dispute_is_won_whatever_one_node_says(world: World, lie: str, honest: int) -> None:
    """The challenge is made before the node begins to lie; with two nodes it would rightly wait."""
    cast = world.cast
    root = Run.of().checkpoints.root
    job = cast.post()
    cast.commit(job, Run.of(33))
    liar = HostileNode(world.chain)
    chain = world.nodes(liar, honest=honest)
    contract = VerificationGame(chain, cast.auditor.address, Sender(chain, PARTY, patience=0.3))
    seen = contract.job(job)
    game, _ = made(
        contract,
        contract.challenge(
            job,
            spec_hash=seen.spec_hash,
            claimed_root=seen.claim.checkpoint_root,
            checkpoint_root=root,
            bond=seen.terms.challenger_bond,
        ),
    )
    LIES[lie](world, liar)
    parties = [Party(cast.trainer, Run.of(33), Side.TRAINER), Party(contract, Run.of(), Side.CHALLENGER)]
    ends = time.monotonic() + 300
    while not cast.customer.game(game).outcome:
        assert time.monotonic() < ends, f"{chain.agreement}"
        for party in parties:
            try:
                party.move(game)
            except ChainError:
                time.sleep(0.01)  # the next look is through another node
    assert cast.customer.game(game).outcome is Outcome.CHALLENGER_WON


# Comparisons, one by one.


def test_equal_answers_need_no_vote(world: World) -> None:
    chain = world.nodes(honest=3)
    contract = VerificationGame.at(chain, world.cast.customer.address)
    good = world.cast.customer
    assert contract.job(world.job) == good.job(world.job)
    assert contract.job(world.job, block=chain.head().number) == good.job(world.job)
    assert chain.logs(good.address, from_block=0) == good.node.logs(good.address, from_block=0)
    assert chain.fees() == good.node.fees()
    assert chain.nonce(PARTY.address) == good.node.nonce(PARTY.address)
    assert chain.balance(PARTY.address) == good.node.balance(PARTY.address)
    assert chain.now() == chain.head().timestamp
    assert (chain.agreement.contradiction, chain.agreement.missing) == ("", ())


def test_every_question_about_the_chain_goes_to_all_nodes(world: World) -> None:
    """One that went to a single node would be answered by a liar now and then."""
    contract, account = world.cast.customer.address, PARTY.address
    questions: dict[str, Callable[[ChainNode], object]] = {
        "head": lambda node: node.head(),
        "now": lambda node: node.now(),
        "block": lambda node: node.block(1),
        "whole_block": lambda node: node.whole_block(1),
        "transactions_of": lambda node: node.transactions_of(1),
        "balance": lambda node: node.balance(account),
        "code": lambda node: node.code(contract),
        "nonce": lambda node: (node.nonce(account), node.nonce(account, pending=True)),
        "priority_fee": lambda node: node.priority_fee(),
        "fees": lambda node: node.fees(),
        "call": lambda node: VerificationGame(node, contract).job_count(),
        "estimate_gas": lambda node: node.estimate_gas(account, b"", sender=account, value=1),
        "estimated": lambda node: node.estimated({"to": account, "from": account, "data": "0x"}),
        "receipt": lambda node: node.receipt(bytes(32)),
        "logs": lambda node: node.logs(contract, from_block=0),
        "all_logs": lambda node: node.all_logs(contract, 0, 3),
        "search_back": lambda node: list(node.search_back(contract, from_block=0, to_block=3)),
        "one_range": lambda node: node.one_range(contract, 0, 3),
    }
    others = {"name", "agreement", "view", "chain_id", "send_raw", "advance_time", "ask", "w3", "confirmations"}
    """Not questions about the chain's state, or of any kind; `send_raw` has a test of its own."""
    assert {name for name in vars(ChainNode) if not name.startswith("_")} == set(questions) | others
    pair = [HostileNode(world.chain, name) for name in ("first", "second")]
    nodes = quorum_of(pair)
    for name, ask in questions.items():
        for one in pair:
            one.asked.clear()
        ask(nodes)
        assert sorted(pair[0].asked) == sorted(pair[1].asked) != [], name


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("eth_chainId", [1]),
        ("eth_blockNumber", ["0x1"]),
        ("eth_maxPriorityFeePerGas", [1]),
        ("eth_getBlockByNumber", ["pending", False]),
        ("eth_getBlockByNumber", ["0x1", True]),
        ("eth_getBlockByNumber", ["0xzz", False]),
        ("eth_getBlockByNumber", ["0x-1", False]),
        ("eth_getBlockByNumber", ["0x" + "11" * 32, False]),
        ("eth_call", [None, "latest"]),
        ("eth_call", [{"to": PARTY.address}, "0xzz"]),
        ("eth_call", [{"to": PARTY.address}, "latest", {PARTY.address: {"code": "0x"}}]),
        ("eth_getBalance", [5, "latest"]),
        ("eth_getBalance", [PARTY.address, "pending"]),
        ("eth_getCode", [PARTY.address, "0x1"]),
        ("eth_estimateGas", [{"data": "0xzz"}]),
        ("eth_estimateGas", [None]),
        ("eth_getTransactionReceipt", ["0x11"]),
        ("eth_sendRawTransaction", ["nothing"]),
        ("eth_getLogs", [{"blockHash": "0x" + "11" * 32}]),
        ("eth_getLogs", [{"address": "me", "fromBlock": "0x0", "toBlock": "0x1"}]),
        ("eth_getLogs", [{"address": PARTY.address, "fromBlock": "0x0", "toBlock": "latest"}]),
        ("eth_getLogs", [{"address": PARTY.address, "fromBlock": "0x0", "toBlock": "0x1", "topics": [[]]}]),
        ("eth_getLogs", [{"address": PARTY.address, "fromBlock": "0x0", "toBlock": "0x1", "topics": [[None]]}]),
        ("eth_getLogs", [{"address": PARTY.address, "fromBlock": "0x0", "toBlock": "0x1", "topics": 5}]),
    ],
    ids=str,
)
def test_what_is_not_compared_in_a_form_is_refused_in_it(world: World, method: str, params: list[Any]) -> None:
    """A user's Web3 asks in any form. No node is asked, nor blamed, and no error is Python's own."""
    pair = [HostileNode(world.chain, name) for name in ("first", "second")]
    transport = QuorumTransport(pair)
    for one in pair:
        one.asked.clear()
    with pytest.raises(RpcRefused, match="several nodes are not compared in this form: ask one of them"):
        transport.request(method, params)
    assert not any(one.asked for one in pair)


def test_two_honest_nodes_outvote_a_liar_and_bonds_go_on(world: World) -> None:
    liar = HostileNode(world.chain)
    liar.lies["eth_getLogs"] = lambda params, true: true[1:]
    chain = world.nodes(liar, honest=2, pace=1)
    address = world.cast.customer.address
    assert chain.logs(address, from_block=0) == ChainNode(world.chain).logs(address, from_block=0)
    assert chain.agreement.contradiction.startswith(
        "the liar and honest 0 and honest 1 say different things about the ev"
    )
    chain.agreement.require("challenge")


def test_without_a_majority_nothing_new_is_begun_and_games_go_on(world: World) -> None:
    liar = HostileNode(world.chain)
    chain = world.nodes(liar, pace=1)
    liar.lies["eth_getLogs"] = lambda params, true: []
    sender = Sender(chain, PARTY)
    contract = VerificationGame(chain, world.cast.customer.address, sender)
    chain.logs(contract.address, from_block=0)
    with pytest.raises(NodesDisagree, match="and honest 0 say different things about the events of blocks 0 to"):
        contract.send(
            contract.challenge(1, spec_hash=bytes(32), claimed_root=bytes(32), checkpoint_root=bytes(32), bond=1)
        )
    queue = TransactionQueue(contract, sender)
    refused: list[ChainError] = []
    call = ContractCall.of("challenge", 1, *[bytes(32)] * 3, value=1)
    order = Order(call=call, sent=lambda _: None, failed=refused.append)
    assert queue.put(order) is False
    assert [type(error) for error in refused] == [NodesDisagree]
    assert queue.put(replace(order, call=ContractCall.of("claimTimeout", 1)))


def test_a_balance_that_one_node_makes_up_takes_no_money_from_an_appeal(world: World) -> None:
    """An account that seems to be empty pays no bond, and one that does not appeal loses the bond that it has paid."""
    liar = HostileNode(world.chain)
    liar.lies["eth_getBalance"] = lambda params, true: "0x0"
    true = ChainNode(world.chain).balance(PARTY.address)
    nodes = world.nodes(liar, honest=2)
    assert true and funds(nodes, PARTY.address, 1).balance == true
    assert "the balance of" in nodes.agreement.contradiction and not nodes.agreement.undecided
    pair, seen = world.nodes(liar), set()
    ends = time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < ends:
        pair.head()
        seen.add(pair.balance(PARTY.address))
    assert seen == {0, true} and pair.agreement.undecided, (
        "without a majority they are believed in turns, and it is told"
    )
    lags = HostileNode(world.chain)
    lags.lag = 2
    nodes, node = world.nodes(lags), ChainNode(world.chain)
    both_have = node.balance(PARTY.address, block=node.head().number - lags.lag)
    assert nodes.balance(PARTY.address) == both_have and not nodes.agreement.contradiction


@pytest.mark.slow
def test_what_differs_about_the_tip_may_be_a_fork_until_it_lasts(world: World) -> None:
    """A fork of a block or two is nothing to call a person for; a lie about the tip lasts, and is found out."""
    liar = HostileNode(world.chain)
    clock = [0.0]
    chain = quorum_of(
        [liar, HostileNode(world.chain, "honest")], confirmations=5, clock=lambda: clock[0], today=lambda: world.now
    )
    watch = ContractWatch(VerificationGame(chain, world.cast.customer.address))
    watch.follow(world.job)
    watch.look()
    honest = watch.job(world.job)
    liar.lies["eth_call"] = _old_views(world)
    job = world.cast.post()
    watch.follow(job)
    seen = set()
    for _ in range(int(FORK_SECONDS + 4 * TURN_SECONDS) // 10):
        with suppress(ContractError):
            watch.look()
            seen.add(watch.job(job).status)
        assert watch.job(world.job) == honest
        if clock[0] < FORK_SECONDS:
            chain.agreement.require("challenge")
        clock[0] += 10.0
    assert chain.agreement.undecided
    assert seen == {JobStatus.OPEN}, "the honest node had its turns"


def test_a_made_up_event_and_a_missing_one_are_contradictions(world: World) -> None:
    liar = HostileNode(world.chain)
    chain = world.nodes(liar, honest=2, pace=1)
    contract = VerificationGame(chain, world.cast.customer.address)

    def another_job(params: list[Any], true: Any) -> Any:
        job_posted = next(one for one in true if len(one["topics"]) > 1)
        return [job_posted | {"topics": [job_posted["topics"][0], "0x" + "ff" * 32, *job_posted["topics"][2:]]}, *true]

    liar.lies["eth_getLogs"] = another_job
    found = [event.job for event in contract.events() if isinstance(event, JobPosted)]
    assert max(found) < 1000
    assert chain.agreement.contradiction


def test_a_watch_reads_everything_again_through_the_next_node(world: World) -> None:
    """The liar shows an old state of a job that is final; a turn later it is seen as it is."""
    cast = world.cast
    job = cast.post()
    liar = HostileNode(world.chain)
    liar.lies["eth_call"] = _old_views(world)
    cast.commit(job, Run.of())
    clock = [0.0]
    chain = quorum_of([liar, HostileNode(world.chain, "honest")], clock=lambda: clock[0], today=lambda: world.now)
    watch = ContractWatch(VerificationGame(chain, cast.customer.address))
    watch.follow(job)
    seen = set()
    for _ in range(4):
        watch.look()
        seen.add(watch.job(job).status)
        clock[0] += TURN_SECONDS
    assert seen == {JobStatus.OPEN, JobStatus.CLAIMED}


def test_a_made_up_head_does_not_stop_a_watch(world: World) -> None:
    liar = HostileNode(world.chain)
    clock = [0.0]
    chain = quorum_of([liar, HostileNode(world.chain, "honest")], clock=lambda: clock[0], today=lambda: world.now)
    watch = ContractWatch(VerificationGame(chain, world.cast.customer.address))
    watch.look()
    liar.lies["eth_getBlockByNumber"] = _made_up_head
    seen: list[JobStatus | None] = []
    for _ in range(4):
        job = world.cast.post()
        watch.follow(job)
        try:
            watch.look()
            seen.append(watch.job(job).status)
        except (InvalidAnswer, RpcRefused):
            seen.append(None)  # the liar has nothing to show at its height
        clock[0] += TURN_SECONDS
    assert seen in ([None, JobStatus.OPEN] * 2, [JobStatus.OPEN, None] * 2)


def test_a_slow_node_is_waited_for_once_and_then_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_members, "GRACE", 0.05)
    slow = HostileNode(world.chain, "the slow node")
    clock = [0.0]
    chain = quorum_of(
        [slow, HostileNode(world.chain, "the quick node")], clock=lambda: clock[0], today=lambda: world.now
    )
    chain.head()
    slow.seconds = 0.3
    slow.asked.clear()
    for _ in range(20):
        chain.head()
    assert len(slow.asked) == 1
    assert chain.agreement.missing == ("the slow node did not answer within 0.05 seconds after another had",)
    chain.agreement.require("challenge")
    slow.seconds = 0.0
    clock[0] += 100
    time.sleep(0.3)
    # A busy machine may take longer than the grace that a test can wait for.
    monkeypatch.setattr(quorum_members, "GRACE", 10.0)
    chain.head()
    assert not chain.agreement.missing


def test_a_defect_in_a_question_is_heard_of_at_once(world: World) -> None:
    broken = HostileNode(world.chain)
    chain = quorum_of([broken, HostileNode(world.chain, "honest")])

    def defect(params: list[Any], true: Any) -> Any:
        raise ZeroDivisionError

    broken.lies["eth_getCode"] = defect
    with pytest.raises(ZeroDivisionError):
        chain.code(PARTY.address)


def test_transactions_go_to_every_node(world: World) -> None:
    liar = HostileNode(world.chain)
    liar.swallows = True
    other = HostileNode(world.chain, "honest")
    chain = quorum_of([liar, other], today=lambda: world.now)
    receipt = Sender(chain, devnet_account(5), patience=5.0).send(PARTY.address, b"", value=7)
    assert receipt.succeeded
    assert "eth_sendRawTransaction" in liar.asked and "eth_sendRawTransaction" in other.asked


def test_a_transaction_that_all_refuse_is_refused_with_the_nodes_reason(world: World) -> None:
    chain = world.nodes(honest=2)
    with pytest.raises(RpcRefused):
        chain.send_raw(b"\x02nonsense")


def test_a_node_without_the_contract_lags_and_another_code_is_a_contradiction(world: World) -> None:
    liar = HostileNode(world.chain)
    liar.lies["eth_getCode"] = lambda params, true: "0x"
    chain = world.nodes(liar, honest=1, pace=1)
    VerificationGame.at(chain, world.cast.customer.address)
    assert not chain.agreement.contradiction
    liar.lies["eth_getCode"] = lambda params, true: "0x6001"
    chain.code(world.cast.customer.address)
    assert chain.agreement.undecided


def test_a_receipt_is_shown_once_the_block_is_agreed_on(world: World) -> None:
    late = HostileNode(world.chain, "the late node")
    late.lag = 1
    chain = quorum_of([late, HostileNode(world.chain, "the other")], today=lambda: world.now)
    receipt = Sender(ChainNode(world.chain), devnet_account(6)).send(PARTY.address, b"", value=1)
    assert chain.receipt(receipt.transaction) is None
    assert not chain.agreement.contradiction
    late.lag = 0
    assert chain.receipt(receipt.transaction) == receipt
