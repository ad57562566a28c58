"""A transport over several nodes of one chain: what they say is compared, and none of them is believed alone.

Reads are asked of all nodes that answer, at the same time. Equal answers are believed. Where answers about the same
block differ, somebody lies or is broken: what more than half say is believed, and without a majority the nodes are gone
by in turns, so that a move that is due is seen through an honest one within a turn; new undertakings wait meanwhile
(`NodeAgreement.require`). The newest block is the highest that more than half have. Transactions go to all.
docs/threat-model.md says what a lying node gains. Answers hold what was compared, and nothing else.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from eth_hash.auto import keccak
from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address

from tiebreak.deadlines import Halted, pause
from tiebreak.rpc.answers import Block, Log, Topic, TransactionReceipt, block_json, log_json, read_topic, receipt_json
from tiebreak.rpc.answers import data as read_data
from tiebreak.rpc.answers import quantity as read_quantity
from tiebreak.rpc.answers import sequence as read_sequence
from tiebreak.rpc.chain_errors import ChainError, ChainUnavailable, InvalidAnswer, RpcRefused, Stopped, WrongChain
from tiebreak.rpc.node import ChainNode, connect, transport_to
from tiebreak.rpc.quorum_members import Member, NewestBlocks, Said, ask_together, names, other_chain
from tiebreak.rpc.transport import Contradictions, NodeAgreement, Transport, as_json

T = TypeVar("T")

_MOST_PENDING = 64
"""Transactions of one account that nodes keep beyond those in blocks."""

_COMPARED = frozenset(
    [
        *("eth_chainId", "eth_blockNumber", "eth_maxPriorityFeePerGas"),
        *("eth_getBlockByNumber", "eth_getCode", "eth_getTransactionCount", "eth_call", "eth_getBalance"),
        *("eth_estimateGas", "eth_getTransactionReceipt", "eth_getLogs", "eth_sendRawTransaction"),
    ]
)

_NUMBER = re.compile("0x[0-9a-fA-F]{1,16}")
"""A block's number; a hash is longer."""

_ESTIMATES = 3
_SECONDS_BETWEEN_ESTIMATES = 1.0


class QuorumTransport(Transport):
    """The transport over `transports` of one chain. `confirmations`: blocks under which its nodes have the same blocks;
    `clock`: steady seconds; `today`: seconds since 1970.

    Raises ChainUnavailable if none answers, and WrongChain if no more than half of those that answer are of one chain.
    One that is away has to show its chain when it comes back."""

    def __init__(
        self,
        transports: Sequence[Transport],
        *,
        confirmations: int = 0,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._members = [Member(one, stop, clock) for one in transports]
        self.name = names(self._members)
        self._confirmations, self._stop = confirmations, stop
        self._contradictions = Contradictions(clock)
        self._newest_blocks = NewestBlocks(self._members, self._contradictions, clock, today)
        self._looking = threading.RLock()
        self._agreed: Block | None = None
        self._introduce()

    def _introduce(self) -> None:
        """Finds the chain that more than half of the nodes that answer are of."""
        for member in self._members:
            try:
                member.identity = member.identify()
            except Stopped:
                raise
            except ChainError as error:
                member.leave_alone(str(error))
        known = [one.identity for one in self._members if one.identity is not None]
        if not known:
            raise ChainUnavailable(f"none of the nodes {self.name} answers: start one, or check the addresses.")
        self._identity = max(known, key=known.count)
        for member in self._members:
            if member.identity is not None and member.identity != self._identity:
                wrong = other_chain(member.name, member.identity, self._identity)
                if 2 * known.count(self._identity) <= len(known):
                    raise wrong
                member.leave_alone(str(wrong))
        self._newest_blocks.follow(next(one for one in self._members if one.identity is not None))

    def request(self, method: str, params: list[Any]) -> object:
        """An answer as `Transport.request`. Methods that `ChainNode` does not use are compared with nothing: the first
        node that answers is believed. Those that it uses are refused in other forms (full transactions, tags, pending
        blocks, which are each node's own)."""
        match method, params:
            case "eth_chainId", []:
                return hex(self._identity.chain_id)
            case "eth_blockNumber", []:
                return hex(self._head().number)
            case "eth_getBlockByNumber", ["latest", False]:
                return block_json(self._head())
            case "eth_getBlockByNumber", [str(tag), False] if _is_number(tag):
                found = self._agreed_on(
                    f"block {int(tag, 16)}", lambda node: node.whole_block(int(tag, 16)), at=int(tag, 16)
                )
                return None if found is None else block_json(*found)
            case "eth_getCode", [str(account), "latest"]:
                return as_json(self._code(account))
            case "eth_getTransactionCount", [str(account), "pending"]:
                return hex(self._nonce(account))
            case (("eth_getBalance" | "eth_getTransactionCount"), [str(account), str(tag)]) if _is_state(tag):
                return hex(self._quantity_of(method, account, _block(tag)))
            case "eth_call", [Mapping() as call, str(tag)] if _is_state(tag):
                return as_json(self._view_of(call, _block(tag)))
            case "eth_maxPriorityFeePerGas", []:
                return hex(self._priority_fee())
            case "eth_estimateGas", [Mapping() as call] if _is_data(call.get("data", "0x")):
                return hex(self._estimate(call))
            case "eth_getTransactionReceipt", [str(name)] if _is_data(name, 32):
                receipt = self._receipt(bytes.fromhex(name[2:]))
                return None if receipt is None else receipt_json(receipt)
            case "eth_getLogs", [
                {"address": str(address) | [str(address)], "fromBlock": str(first), "toBlock": str(until)} as wanted
            ] if _is_number(first) and _is_number(until) and _is_data(address, 20):
                topics = _topics(wanted.get("topics"))
                if topics is not None:
                    logs = self._range(to_checksum_address(address), int(first, 16), int(until, 16), topics)
                    return [log_json(log) for log in logs]
            case "eth_sendRawTransaction", [str(signed)] if _is_data(signed):
                return as_json(self._send(bytes.fromhex(signed[2:])))
        if method in _COMPARED:
            raise RpcRefused(method, -32602, "several nodes are not compared in this form: ask one of them")
        return self._relayed(method, params)

    def _relayed(self, method: str, params: list[Any]) -> object:
        """The answer of the first node that gives one. Raises the last one's error."""
        lead = self._lead
        others = [one for one in self._members if one is not lead]
        for member in (lead, *sorted(others, key=lambda one: not one.is_usable)):
            try:
                return member.transport.request(method, params)
            except ChainUnavailable as error:
                member.leave_alone(str(error))
                last = error
        raise last

    # The nodes' agreement.

    @property
    def agreement(self) -> NodeAgreement:
        about, undecided = self._contradictions.now()
        missing = [one.away for one in self._members if one.away]
        missing += [why for one, why in self._newest_blocks.behind.items() if not one.away]
        return NodeAgreement(nodes=len(self._members), contradiction=about, undecided=undecided, missing=tuple(missing))

    @property
    def view(self) -> int:
        return self._newest_blocks.view

    def set_confirmations(self, blocks: int) -> None:
        self._confirmations = blocks

    @property
    def _lead(self) -> Member:
        return self._newest_blocks.lead

    # The newest block.

    def _head(self) -> Block:
        """The newest block that more than half of the nodes that answer have; without a majority, of the node whose
        turn it is."""
        with self._looking:
            said = self._together(self._usable(), lambda node: node.head())
            blocks = {one.member: one.value for one in said if one.value is not None}
            if not blocks:
                raise self._no_answer(said)
            for member, block in blocks.items():
                member.head = block
            self._agreed = self._newest_blocks.agreed(blocks, self._confirmations)
            return self._agreed

    # Questions whose answers are compared.

    def _code(self, account: str) -> bytes:
        """A contract's code. A node that shows none may lag behind, and is not believed against one that does."""
        said = self._together(self._usable(), lambda node: node.code(cast(ChecksumAddress, account)))
        shown = [one for one in said if one.value]
        if not shown and not any(one.is_answer for one in said):
            raise self._no_answer(said)
        return self._decided(f"the code at {account}", shown) if shown else b""

    def _view_of(self, call: Mapping[str, Any], block: int | None) -> bytes:
        """The result of a call now, or after block number `block`."""

        def ask(node: ChainNode, number: int | None) -> bytes:
            return read_data(node.ask("eth_call", call, "latest" if number is None else hex(number)), "a call")

        return self._newest_or_at(f"a view of {call.get('to')}", ask, block)

    def _quantity_of(self, method: str, account: str, block: int | None) -> int:
        """The balance of an account in wei, or the number of its transactions, now or after block number `block`."""
        name, most = ("balance", 2**256 - 1) if method == "eth_getBalance" else ("transactions", 2**64 - 1)
        what = f"the {name} of {account}"

        def ask(node: ChainNode, number: int | None) -> int:
            return read_quantity(node.ask(method, account, "latest" if number is None else hex(number)), what, most)

        return self._newest_or_at(what, ask, block)

    def _nonce(self, account: str) -> int:
        """Transactions of an account, those that wait for a block with them."""
        said = self._together(self._usable(), lambda node: node.nonce(cast(ChecksumAddress, account), pending=True))
        found = sorted(one.value for one in said if one.value is not None)
        if not found:
            raise self._no_answer(said)
        if found[0] == found[-1]:
            return found[0]
        # Nodes may differ in what waits for a block, but not by more than they keep.
        least = self._quantity_of("eth_getTransactionCount", account, None)
        possible = [one for one in found if least <= one <= least + _MOST_PENDING]
        return possible[(len(possible) - 1) // 2] if possible else least

    def _priority_fee(self) -> int:
        """The lower middle of what the nodes say: one that asks for much gets nothing."""
        said = self._together(self._usable(), lambda node: node.priority_fee())
        found = sorted(one.value for one in said if one.value is not None)
        if not found:
            raise self._no_answer(said)
        return found[(len(found) - 1) // 2]

    def _estimate(self, call: Mapping[str, Any]) -> int:
        """The highest estimate, where they differ by a quarter at most and no node says that the call would fail."""
        for left in reversed(range(_ESTIMATES)):
            said = self._together(self._usable(), lambda node: node.estimated(call))
            answers = [one for one in said if one.is_answer]
            if not answers:
                raise self._no_answer(said)
            found = sorted(one.value for one in answers if one.value is not None)
            if len(found) == len(answers) and 4 * found[-1] <= 5 * found[0]:
                return found[-1]
            if not left or not found or self._contradictions.now()[1]:
                break
            try:  # a block may have come to one of them and not yet to the others
                pause(_SECONDS_BETWEEN_ESTIMATES, self._stop)
            except Halted as error:
                raise Stopped("stopped while gas was estimated: run the same command again to carry on.") from error
        if len(found) < len(answers):
            about = "whether a call would succeed"
            return self._decided(about, answers, at=self._head().number, same=lambda one: one.error is None)
        if len(found) > 2:
            return found[len(found) // 2]
        return self._decided("the gas of a call", answers, at=self._head().number)

    def _receipt(self, transaction: bytes) -> TransactionReceipt | None:
        """The receipt of a transaction, once the newest block that the nodes agree on has it."""
        said = self._together(self._usable(), lambda node: node.receipt(transaction))
        shown = [one.value for one in said if one.value is not None]
        if not shown:
            if not any(one.is_answer for one in said):
                raise self._no_answer(said)
            return None
        number = min(one.block for one in shown)
        if self._agreed is None or self._agreed.number < number:
            if self._head().number < number:
                return None
            said = self._together(self._usable(), lambda node: node.receipt(transaction))
        answers = [one for one in said if one.is_answer and one.member.height >= number]
        if not answers:
            return None
        return self._decided(f"transaction 0x{transaction.hex()}", answers, at=number)

    def _range(self, address: ChecksumAddress, first: int, until: int, topics: Sequence[Topic]) -> list[Log]:
        """The events of a range on which more than half of those agree that were asked. A node that refuses the range,
        since it allows fewer blocks at once, leaves no other to be believed alone: a smaller one is asked for then."""
        said = self._together(self._usable(until), lambda node: node.one_range(address, first, until, topics))
        answers = [one for one in said if one.error is None]
        refusals = [one for one in said if isinstance(one.error, RpcRefused)]
        if not answers:
            raise self._no_answer(said)
        agreeing = max(sum(one.content == other.content for one in answers) for other in answers)
        if refusals and 2 * agreeing <= len(answers) + len(refusals):
            if until > first:
                raise self._no_answer(refusals)
            for one in refusals:
                one.member.leave_alone(f"{one.member.name} shows no events, not even of one block")
            self.range_limit.forget()
        return self._decided(f"the events of blocks {first} to {until}", answers, at=until)

    def _send(self, signed: bytes) -> bytes:
        """Hands a signed transaction to all nodes, those that are away too, so that none can hold it back. Raises
        RpcRefused if no node takes it."""
        name = keccak(signed)

        def send(node: ChainNode) -> bytes:
            if node.send_raw(signed) != name:
                raise InvalidAnswer(f"{node.name} gave a foreign transaction hash: use another node.")
            return name

        said = self._together(self._members, send)
        if any(one.value == name for one in said):
            return name
        refused = [one.error for one in said if isinstance(one.error, RpcRefused)]
        if not refused:
            raise self._no_answer(said)
        # One that has it already outweighs one that will not have it.
        raise next((one for one in refused if "already" in one.reason.lower()), refused[0])

    # Comparison of the answers.

    def _usable(self, at: int | None = None) -> list[Member]:
        """The nodes to ask; with a block's number, those that have it."""
        usable = [one for one in self._members if one.is_usable] or self._members
        return [one for one in usable if at is None or one.height >= at] or usable

    def _together(self, members: Sequence[Member], call: Callable[[ChainNode], T]) -> list[Said[T]]:
        return ask_together(members, call, self._identity, stop=self._stop)

    def _agreed_on(self, what: str, call: Callable[[ChainNode], T], *, at: int) -> T:
        """The answer to a question about block `at`."""
        said = self._together(self._usable(at), call)
        answers = [one for one in said if one.is_answer]
        if not answers:
            raise self._no_answer(said)
        return self._decided(what, answers, at=at)

    def _newest_or_at(self, what: str, ask: Callable[[ChainNode, int | None], T], block: int | None) -> T:
        """The answer about the newest block if all say the same, else about the newest that they agree on."""
        if block is None:
            said = [one for one in self._together(self._usable(), lambda node: ask(node, None)) if one.is_answer]
            if said and len({one.content for one in said}) == 1:
                return _result(said[0])
            block = self._head().number
        number = block
        return self._agreed_on(f"{what} at block {number}", lambda node: ask(node, number), at=number)

    def _decided(
        self,
        what: str,
        answers: Sequence[Said[T]],
        *,
        at: int = 0,
        same: Callable[[Said[T]], object] = lambda one: one.content,
    ) -> T:
        """Answer of more than half; without a majority, the answer of the node whose turn it is. `at`: the block that
        they speak of; of one that is not confirmed nodes may say different things for a while."""
        groups: list[list[Said[T]]] = []
        for one in answers:
            group = next((group for group in groups if same(group[0]) == same(one)), None)
            if group is None:
                groups.append([one])
            else:
                group.append(one)
        chosen = max(groups, key=len)
        if len(groups) > 1:
            decided = 2 * len(chosen) > len(answers)
            sides = " and ".join(names([one.member for one in group]) for group in groups)
            about = f"{sides} say different things about {what}"
            if self._agreed is not None and at > self._agreed.number - self._confirmations:
                self._contradictions.doubt(about, decided=decided)
            else:
                self._contradictions.note(about, decided=decided)
            if not decided:
                self._newest_blocks.doubt()
                chosen = next((one for one in groups if self._lead in [said.member for said in one]), groups[0])
        return _result(next((one for one in chosen if one.member is self._lead), chosen[0]))

    def _no_answer(self, said: Sequence[Said[T]]) -> ChainError:
        """The error where no node has an answer: a node's own refusal if there is one."""
        errors = [one.error for one in said if one.error is not None]
        errors.sort(key=lambda one: not isinstance(one, RpcRefused))
        if not errors or isinstance(errors[0], WrongChain):
            return ChainUnavailable(f"none of the nodes {self.name} answers: start one, or check the addresses.")
        return errors[0]


def _result(said: Said[T]) -> T:
    if said.error is not None:
        raise said.error
    return said.value  # type: ignore[return-value]  # None where that is the answer


def _is_number(tag: str) -> bool:
    return _NUMBER.fullmatch(tag) is not None


def _is_state(tag: str) -> bool:
    return tag == "latest" or _is_number(tag)


def _block(tag: str) -> int | None:
    return None if tag == "latest" else int(tag, 16)


def _is_data(value: object, length: int | None = None) -> bool:
    try:
        read_data(value, "data", length)
    except InvalidAnswer:
        return False
    return True


def _topics(wanted: object) -> list[Topic] | None:
    """The conditions of a question about events; None for another form: nodes differ about what an empty list means."""
    try:
        topics = [read_topic(one) for one in read_sequence(wanted or [], "topics", 4)]
    except InvalidAnswer:
        return None
    return None if () in topics else topics


def quorum_of(
    transports: Sequence[Transport], *, confirmations: int = 0, stop: threading.Event | None = None, **clocks: Any
) -> ChainNode:
    """The chain behind several transports; `clocks`: of QuorumTransport, whose errors are raised."""
    transport = QuorumTransport(transports, confirmations=confirmations, stop=stop, **clocks)
    return ChainNode(transport, confirmations=confirmations, stop=stop)


def connect_all(locations: Sequence[str], *, confirmations: int = 0, stop: threading.Event | None = None) -> ChainNode:
    """The chain behind one or several locations, each as of `connect`.

    Raises ChainUnavailable if nobody answers, and WrongChain if the nodes are not of one chain."""
    if len(locations) == 1:
        return connect(locations[0], confirmations=confirmations, stop=stop)
    if len(set(locations)) < len(locations):
        raise ChainUnavailable("a node is named twice: it has one voice only; name each once.")
    transports = []
    for location in locations:
        # A node that is away must not keep the others waiting for long, and may come later.
        options = {"timeout": 8.0, "deadline": 12.0, "attempts": 3}
        transports.append(transport_to(location, stop, may_be_away=True, **options))
    return quorum_of(transports, confirmations=confirmations, stop=stop)
