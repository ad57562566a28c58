"""Nodes that agree about the newest block, and lie about receipts and events."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from tiebreak.contract.events import JobPosted
from tiebreak.contract.game import VerificationGame
from tiebreak.devnet.embedded import EmbeddedChain
from tiebreak.rpc.chain_errors import InvalidAnswer, RpcRefused
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.quorum import quorum_of
from tiebreak.transactions.keys import devnet_account
from tiebreak.transactions.sender import Sender

from tests.client.disputes import Cast
from tests.client.hostile_node import HostileNode

PARTY, STRANGER = devnet_account(2), devnet_account(3)


@pytest.fixture(scope="module")
def cast() -> Cast:
    cast = Cast.on(ChainNode(EmbeddedChain()))
    for _ in range(12):
        cast.post()
    return cast


def several(cast: Cast, *nodes: HostileNode) -> ChainNode:
    """A second here counts as three minutes of theirs."""
    newest = float(cast.customer.node.head().timestamp)
    return quorum_of(nodes, clock=lambda: 0.0, today=lambda: newest)


def node_of(cast: Cast, name: str, most: int | None = None) -> HostileNode:
    """A node that shows events of so many blocks at once."""
    node = HostileNode(cast.customer.node._transport, name)

    def limited(params: list[Any], true: Any) -> Any:
        size = int(params[0]["toBlock"], 16) - int(params[0]["fromBlock"], 16) + 1
        if most is not None and size > most:
            raise RpcRefused("eth_getLogs", -32005, f"you can query {most} blocks at once")
        return true

    node.lies["eth_getLogs"] = limited
    return node


def jobs_in(nodes: ChainNode, cast: Cast) -> list[int]:
    contract = VerificationGame(nodes, cast.customer.address)
    return [event.job for event in contract.events(from_block=0) if isinstance(event, JobPosted)]


@pytest.mark.parametrize("invents", [False, True], ids=["leaves out", "invents"])
@pytest.mark.parametrize("limits", [(3,), (3, 3), (1, 4)], ids=str)
def test_a_node_that_allows_any_range_is_not_believed_for_it_alone(
    cast: Cast, limits: tuple[int, ...], invents: bool
) -> None:
    """Hosted nodes refuse ranges of blocks that are too long for them. Whoever answered was believed, alone."""
    liar = HostileNode(cast.customer.node._transport)

    def lie(params: list[Any], true: Any) -> Any:
        if not invents:
            return true[1:]
        return [one | {"topics": [*one["topics"][:1], "0x" + "ee" * 32, *one["topics"][2:]]} for one in true]

    liar.lies["eth_getLogs"] = lie
    honest = [node_of(cast, f"honest {i}", most) for i, most in enumerate(limits)]
    nodes = several(cast, *honest, liar)
    found = jobs_in(nodes, cast)
    assert "say different things about the events of blocks" in nodes.agreement.contradiction
    assert nodes.agreement.undecided == (len(honest) == 1)
    if len(honest) == 2:
        assert found == jobs_in(cast.customer.node, cast)


def test_nodes_with_different_limits_show_all_events(cast: Cast) -> None:
    for limits in ((1, 5), (2, 1000), (7, 3, 2), (1000, 1, 4)):
        nodes = several(cast, *(node_of(cast, f"node {i}", most) for i, most in enumerate(limits)))
        assert jobs_in(nodes, cast) == jobs_in(cast.customer.node, cast)
        assert not nodes.agreement.contradiction and not nodes.agreement.missing


def test_a_node_that_shows_no_events_at_all_is_left_alone_and_slows_nothing(cast: Cast) -> None:
    mute, good = node_of(cast, "the mute node", 0), node_of(cast, "the good node")
    nodes = several(cast, mute, good)
    assert jobs_in(nodes, cast) == jobs_in(cast.customer.node, cast)
    assert nodes.agreement.missing == ("the mute node shows no events, not even of one block",)
    asked = good.asked.count("eth_getLogs")
    assert asked <= 8, "the range is halved to one block, once"
    assert jobs_in(nodes, cast) == jobs_in(cast.customer.node, cast)
    assert good.asked.count("eth_getLogs") == asked + 1


def _with(**changes: object) -> Callable[[list[Any], Any], Any]:
    return lambda params, true: true and true | changes


FORGED = {
    "more gas than it may use": (_with(gasUsed=hex(10**9)), "with 1000000000 gas of [0-9]{5}: use another node"),
    "a price above the offered one": (_with(effectiveGasPrice=hex(2**100)), "with a fee above the one that was offe"),
    "a contract that it cannot create": (_with(contractAddress=STRANGER.address), "with another new contract than its"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_receipt_that_the_transaction_cannot_have_is_not_believed(cast: Cast, forged: str) -> None:
    """A fee that was made up filled the record of what may be spent in a day, or for good in a job."""
    liar = HostileNode(cast.customer.node._transport)
    liar.lies["eth_getTransactionReceipt"], said = FORGED[forged]
    sender = Sender(ChainNode(liar), PARTY, patience=0.3)
    with pytest.raises(InvalidAnswer, match=said):
        sender.send(STRANGER.address, b"", value=1)
    (sent,) = sender.pending
    assert sent.receipt is None
    liar.lies.clear()
    sender.poll()
    assert sent.receipt is not None and sent.receipt.fee <= 21_000 * 10**12


def test_a_new_contract_lies_where_its_maker_and_nonce_say(cast: Cast) -> None:
    """The address of a deployed contract is what others are told to pay into."""
    liar = HostileNode(cast.customer.node._transport)
    sender = Sender(ChainNode(liar), STRANGER, patience=0.3)
    code = bytes.fromhex("600160005360016000f3")
    for _ in range(3):
        created = sender.send(None, code).contract
        assert created is not None and cast.customer.node.code(created) == b"\x01"
    liar.lies["eth_getTransactionReceipt"] = _with(contractAddress=cast.customer.address)
    with pytest.raises(InvalidAnswer, match="another new contract than its own"):
        sender.send(None, code)


@pytest.mark.parametrize("honest", [1, 2])
@pytest.mark.parametrize("lie", ["missing", "invented", "failed"])
def test_one_lying_node_among_several_ends_no_payment(cast: Cast, honest: int, lie: str) -> None:
    """The payment is made once, and its end is that of the two honest nodes; with one, nothing new is begun by it."""
    liar = HostileNode(cast.customer.node._transport)
    sample = Sender(cast.customer.node, devnet_account(6)).send(STRANGER.address, b"", value=1)
    true_one = cast.customer.node._transport.request("eth_getTransactionReceipt", ["0x" + sample.transaction.hex()])
    assert isinstance(true_one, dict)
    lies: dict[str, Callable[[list[Any], Any], Any]] = {
        "missing": lambda params, true: None,
        "invented": lambda params, true: true_one | {"transactionHash": params[0]},
        "failed": lambda params, true: true and true | {"status": "0x0"},
    }
    liar.lies["eth_getTransactionReceipt"] = lies[lie]
    clock = [0.0]
    newest = float(cast.customer.node.head().timestamp)
    good = [HostileNode(cast.customer.node._transport, f"honest {i}") for i in range(honest)]
    nodes = quorum_of([liar, *good], clock=lambda: clock[0], today=lambda: newest)
    sender = Sender(nodes, PARTY, patience=0.3)
    before = cast.customer.node.balance(STRANGER.address)
    sent = sender.submit(STRANGER.address, b"", value=7)
    was_undecided = False
    for _ in range(6):
        sender.poll()
        was_undecided |= nodes.agreement.undecided
        clock[0] += 15.0
    assert sent.receipt is not None
    true = cast.customer.node.receipt(sent.hashes[0])
    assert true is not None and true.succeeded
    assert sent.receipt == true or was_undecided
    assert was_undecided == (honest == 1)
    assert cast.customer.node.balance(STRANGER.address) == before + 7


def bent(value: Any) -> Any:
    """Another value of the same form."""
    if isinstance(value, list):
        return value[:-1]
    return "0x" + "11" * 20 if value is None else value[:-1] + ("1" if value[-1] != "1" else "2")


@pytest.mark.parametrize("method", ["eth_getBlockByNumber", "eth_getTransactionReceipt", "eth_getLogs"])
def test_no_field_is_shown_that_was_not_compared(cast: Cast, method: str) -> None:
    """The liar is the first of two, and believed: then it is told of. A field that is not shown may be anything."""
    contract = cast.customer.address
    event = cast.customer.node.logs(contract, from_block=0)[-1]
    params: list[Any] = {
        "eth_getBlockByNumber": [hex(event.block), False],
        "eth_getTransactionReceipt": ["0x" + event.transaction.hex()],
        "eth_getLogs": [
            {"address": contract, "fromBlock": hex(event.block), "toBlock": hex(event.block), "topics": []}
        ],
    }[method]
    first, second = node_of(cast, "first"), node_of(cast, "second")
    true: Any = quorum_of([first, second]).ask(method, *params)
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

            liar = node_of(cast, "the liar")
            liar.lies[method] = lie
            nodes = several(cast, liar, second)
            found = nodes.ask(method, *params)
            assert nodes.agreement.contradiction or nodes.agreement.missing or found == true, (place, field)
    assert len(set(told)) == sum(map(len, shown)) >= 5
