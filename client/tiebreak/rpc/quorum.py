"""A transport over several nodes of one chain: their answers are compared, and none of them is believed alone.

Each question is asked of all nodes at the same time. Equal answers are believed. Where answers about the same block
differ, somebody lies or is broken: the answer of more than half is believed. Without a majority each node is believed
in turn, so that a move that is due is seen through an honest one within a turn; new undertakings wait meanwhile
(`NodeAgreement.require`). The newest block is the highest that more than half have. Transactions go to all.
docs/threat-model.md says what a lying node gains. Answers hold the fields that were compared, and no others.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock, RLock
from typing import Any

from eth_hash.auto import keccak

from tiebreak.http_client import Pauses, in_thread
from tiebreak.rpc.answers import Block, Transaction, TransactionReceipt, data, quantity, read, read_logs, to_json
from tiebreak.rpc.chain_errors import ChainError, ChainUnavailable, InvalidAnswer, RpcRefused, Stopped, WrongChain
from tiebreak.rpc.node import ChainNode, connect, transport_to
from tiebreak.rpc.transport import NodeAgreement, Transport

GRACE = 2.0
"""Seconds that the other nodes have once one has answered."""

TURN_SECONDS = 15.0
"""Seconds for which one node is believed while no majority decides: several looks of a role."""

CALM_SECONDS = 60.0
"""Seconds without a contradiction after which the last one is over."""

FORK_SECONDS = 60.0
"""Seconds for which different answers about blocks that are not confirmed may be a fork of the chain, as there are some
every day. After that they are a contradiction."""

LAG = 3
"""Blocks by which a node may be behind the others without being told of: half a minute on Ethereum."""

_SAME_FORK = 30.0
"""Seconds between two differences about such blocks that count as one."""

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
"""Seconds for which a node that did not answer is not asked."""

_MOST_WAITING = 3
"""Questions that a node may leave unanswered before it is not asked any more."""

_LOOK = 0.05

_NUMBER = re.compile("0x[0-9a-fA-F]{1,16}")
"""A block's number; a hash is longer."""

_BYTES = re.compile("0x([0-9a-fA-F]{2})*")

_Read = Callable[[object], object]
"""Reads one node's answer, as those of `answers` do."""


def _number(most: int) -> _Read:
    return lambda answer: quantity(answer, "a number", most)


def _or_none(kind: type[object], what: str) -> _Read:
    return lambda answer: None if answer is None else read(kind, answer, what)


_READERS: dict[str, _Read] = {
    "eth_chainId": _number(2**64 - 1),
    "eth_blockNumber": _number(2**64 - 1),
    "eth_maxPriorityFeePerGas": _number(10**15),
    "eth_getBlockByNumber": _or_none(Block, "a block"),
    "eth_getCode": lambda answer: data(answer, "a contract's code"),
    "eth_getTransactionCount": _number(2**64 - 1),
    "eth_getBalance": _number(2**256 - 1),
    "eth_call": lambda answer: data(answer, "a call"),
    "eth_estimateGas": _number(2**40),
    "eth_getTransactionReceipt": _or_none(TransactionReceipt, "a receipt"),
    "eth_getTransactionByHash": _or_none(Transaction, "a transaction"),
    "eth_getLogs": read_logs,
    "eth_sendRawTransaction": lambda answer: data(answer, "a transaction hash", 32),
}
"""The methods whose answers are compared -> how one is read."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """One node's answer: a value, or the error of a call that the contract refuses, or of a node that has none."""

    member: _Member
    value: Any = None
    error: ChainError | None = None

    @property
    def counts(self) -> bool:
        """Whether it says something about the chain. A revert does; a refusal for want of old states does not."""
        return self.error is None or (isinstance(self.error, RpcRefused) and self.error.data is not None)

    @property
    def content(self) -> object:
        """The part by which answers are compared."""
        return ("reverted", self.error.data) if isinstance(self.error, RpcRefused) else self.value


class _Member:
    """One node among several. `chain`: its chain's id and first block's hash, once it is known to be that of the
    others. `height`: the number of its newest block. `away`: why it is not asked at present; empty if it is."""

    def __init__(self, transport: Transport, clock: Callable[[], float]) -> None:
        self.transport, self.name = transport, transport.name
        self.chain: tuple[int, bytes] | None = None
        self.height = -1
        self.away = ""
        self._clock, self._again = clock, 0.0
        self._pauses = Pauses(first=_FIRST_PAUSE, most=_LONGEST_PAUSE)
        self._waiting = 0

    @property
    def is_usable(self) -> bool:
        return self._waiting < _MOST_WAITING and (not self.away or self._clock() >= self._again)

    def find_chain(self) -> tuple[int, bytes]:
        """Ask for its chain. Raises the errors of Transport, and InvalidAnswer."""
        node = ChainNode(self.transport)
        first = node.block(0)
        if first is None:
            raise InvalidAnswer(f"{self.name} does not have block 0: use another node.")
        return node.chain_id, first.hash

    def ask(self, method: str, params: list[Any], expected: tuple[int, bytes]) -> _Answer:
        """Ask it. A node that was away has to show first that its chain is the expected one."""
        self._waiting += 1
        try:
            if self.chain is None:
                found = self.find_chain()
                if found != expected:
                    raise _other_chain(self.name, found, expected)
                self.chain = found
            return _Answer(self, _READERS[method](self.transport.request(method, params)))
        except ChainError as error:
            return _Answer(self, error=error)
        finally:
            self._waiting -= 1

    def leave_alone(self, why: str) -> None:
        """Ask it again after a pause only, and for its chain first: another one may answer there by then."""
        self.away, self.chain = why, None
        self._again = self._clock() + self._pauses.next()

    def is_back(self) -> None:
        """Take note that it has answered in time."""
        self.away = ""
        self._pauses.reset()


def _other_chain(name: str, found: tuple[int, bytes], expected: tuple[int, bytes]) -> WrongChain:
    theirs, ours = f"chain {found[0]}", f"chain {expected[0]}"
    if theirs == ours:
        theirs, ours = f"another {theirs} (first block 0x{found[1].hex()[:16]}...)", "the others"
    return WrongChain(f"{name} is a node of {theirs}, and not of {ours}: give nodes of one chain.")


def _names(members: Sequence[_Member]) -> str:
    *others, last = [one.name for one in members]
    return f"{', '.join(others)} and {last}" if others else last


class _Contradictions:
    """The contradiction between nodes that counts now. `clock`: seconds, as `time.monotonic`. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, Lock()
        self._about, self._seen, self._undecided = "", 0.0, float("-inf")
        """What the first one was about, and when the last one, and the last one without a majority, were seen."""
        self._fork = float("-inf"), float("-inf")
        """When the first and the last difference of what may be a fork were seen."""

    def note(self, about: str, *, decided: bool, confirmed: bool = True) -> None:
        """Take in a contradiction. about: a clause; that of the first is shown until all is calm, so that it is told
        once. decided: whether more than half say the same. confirmed: whether it is about confirmed blocks, or else
        counts once it has lasted."""
        with self._lock:
            now = self._clock()
            if not confirmed:
                first, last = self._fork
                self._fork = (first if now - last <= _SAME_FORK else now), now
                if now - self._fork[0] < FORK_SECONDS:
                    return
            shown, undecided = self._state(now)
            if not shown or not (decided or undecided):
                self._about = about
            self._seen = now
            if not decided:
                self._undecided = now

    def now(self) -> tuple[str, bool]:
        """Return the contradiction, empty if there is none, and whether it is undecided."""
        with self._lock:
            return self._state(self._clock())

    def _state(self, now: float) -> tuple[str, bool]:
        calm = now - CALM_SECONDS
        return ("", False) if not self._about or self._seen <= calm else (self._about, self._undecided > calm)


class QuorumTransport(Transport):
    """The transport over `transports` of one chain. `clock`: steady seconds.

    Raises ChainUnavailable if none answers, and WrongChain if no more than half of those that answer are of one chain.
    One that is away has to show its chain when it comes back."""

    def __init__(
        self,
        transports: Sequence[Transport],
        *,
        stop: Event | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members = [_Member(one, clock) for one in transports]
        self.name = _names(self._members)
        self._confirmations, self._stop, self._clock = 0, stop, clock
        self._contradictions = _Contradictions(clock)
        self._looking = RLock()
        self._agreed: Block | None = None
        """The newest block that the nodes agreed on."""
        self._behind: dict[_Member, str] = {}
        """The nodes that lag, a clause each."""
        self._doubted = False
        """Whether one node alone was believed since the last look, so that everything is to be read again."""
        self._chain = self._find_chain()
        self._lead = next(one for one in self._members if one.chain is not None)
        """The node that is believed where no majority decides, and asked first; `view` counts its changes."""

    def _find_chain(self) -> tuple[int, bytes]:
        """Find the chain that more than half of the nodes that answer are of."""
        for member in self._members:
            try:
                member.chain = member.find_chain()
            except Stopped:
                raise
            except ChainError as error:
                member.leave_alone(str(error))
        known = [one.chain for one in self._members if one.chain is not None]
        if not known:
            raise ChainUnavailable(f"none of the nodes {self.name} answers: start one, or check the addresses.")
        found = max(known, key=known.count)
        for member in self._members:
            if member.chain is not None and member.chain != found:
                wrong = _other_chain(member.name, member.chain, found)
                if 2 * known.count(found) <= len(known):
                    raise wrong
                member.leave_alone(str(wrong))
        return found

    @property
    def agreement(self) -> NodeAgreement:
        about, undecided = self._contradictions.now()
        missing = [one.away for one in self._members if one.away]
        missing += [why for one, why in self._behind.items() if not one.away]
        return NodeAgreement(nodes=len(self._members), contradiction=about, undecided=undecided, missing=tuple(missing))

    def set_confirmations(self, blocks: int) -> None:
        self._confirmations = blocks

    def request(self, method: str, params: list[Any]) -> object:
        """Return an answer as `Transport.request`. Methods that `ChainNode` does not use are compared with nothing: the
        first node that answers is believed. Those that it uses are refused in other forms (full transactions, tags,
        pending blocks, which are each node's own)."""
        match method, params:
            case _ if method not in _READERS:
                return self._relayed(method, params)
            case "eth_chainId", []:
                return hex(self._chain[0])
            case "eth_blockNumber", []:
                return hex(self._head().number)
            case "eth_getBlockByNumber", ["latest", False]:
                return to_json(self._head())
            case "eth_getBlockByNumber", [str(tag), False] if _NUMBER.fullmatch(tag):
                number = int(tag, 16)
                return to_json(self._decided(f"block {number}", self._answers(method, params, number), at=number))
            case "eth_getTransactionCount", [str(account), "pending"]:
                return hex(self._nonce(account))
            case (
                ("eth_call" | "eth_getBalance" | "eth_getCode" | "eth_getTransactionCount"),
                [about, str(tag)],
            ) if tag == "latest" or _NUMBER.fullmatch(tag):
                return to_json(self._state(method, about, tag))
            case "eth_maxPriorityFeePerGas", []:
                found = self._numbers(method, params)
                return hex(found[(len(found) - 1) // 2])  # one that asks for much gets nothing
            case "eth_estimateGas", [_]:
                return hex(self._estimate(params))
            case (("eth_getTransactionReceipt" | "eth_getTransactionByHash"), [str(name)]):
                return to_json(self._receipt(method, name))
            case "eth_getLogs", [{"address": _, "fromBlock": str(first), "toBlock": str(until), **more}] if (
                _NUMBER.fullmatch(first) and _NUMBER.fullmatch(until) and _are_topics(more.get("topics"))
            ):
                return to_json(self._range(params, int(first, 16), int(until, 16)))
            case "eth_sendRawTransaction", [str(signed)] if _BYTES.fullmatch(signed):
                return self._send(signed)
        raise RpcRefused(method, -32602, "several nodes are not compared in this form: ask one of them")

    def _relayed(self, method: str, params: list[Any]) -> object:
        """Return the answer of the first node that gives one. Raises the last one's error."""
        for member in sorted(self._members, key=lambda one: (one is not self._lead, not one.is_usable)):
            try:
                return member.transport.request(method, params)
            except ChainUnavailable as error:
                member.leave_alone(str(error))
                last = error
        raise last

    # The newest block.

    def _head(self) -> Block:
        """Return the newest block that more than half of the nodes that answer have; without a majority, that of the
        node whose turn it is."""
        with self._looking:
            said = self._together("eth_getBlockByNumber", ["latest", False], self._usable())
            heads: dict[_Member, Block] = {one.member: one.value for one in said if one.value is not None}
            if not heads:
                raise self._no_answer(said)
            for member, block in heads.items():
                member.height = block.number
            if self._doubted:
                self._doubted = False
                self.view += 1
            self._agreed = self._newest(heads)
            return self._agreed

    def _newest(self, heads: dict[_Member, Block]) -> Block:
        ordered = sorted(heads, key=lambda one: heads[one].number, reverse=True)
        height = heads[ordered[len(ordered) // 2]].number  # more than half have a block of this number
        block = self._shared(heads, height)
        if block is None:
            self._behind = {}
            return heads[self._believe(ordered, by_turns=True)]
        ahead = [one for one in ordered if heads[one].number > height + LAG]
        is_even = 2 * len(ahead) == len(ordered)
        top = heads[ahead[-1]].number if is_even else height
        lags = {one: top - heads[one].number for one in ordered}
        self._behind = {one: f"{one.name} is {lag} blocks behind" for one, lag in lags.items() if lag > LAG}
        if ahead and (not is_even or top - height > max(self._confirmations, LAG)):
            # Within the confirmations both sides show all that a bond needs.
            rest = [one for one in ordered if one not in ahead]
            self._contradictions.note(
                f"the newest block of {_names(ahead)} is {heads[ahead[-1]].number}, and that of {_names(rest)} is "
                f"{height}",
                decided=not is_even,
            )
        if is_even:  # half of them lag, or the other half has made blocks up
            return heads[self._believe(ordered, by_turns=True)]
        self._believe([one for one in ordered if one not in self._behind and one not in ahead], by_turns=False)
        return block

    def _shared(self, heads: dict[_Member, Block], height: int) -> Block | None:
        """Return the newest block up to number `height` that more than half of the nodes show that are as far: one that
        is some node's newest, or, as chains fork at their tip, the last confirmed one. None if there is no majority for
        that either."""
        deepest = max(0, height - self._confirmations)
        newest = {block.number for block in heads.values() if deepest < block.number <= height}
        for number in (*sorted(newest, reverse=True), deepest):
            shown: dict[_Member, Block | None] = {one: block for one, block in heads.items() if block.number == number}
            if others := [one for one, block in heads.items() if block.number > number]:
                said = self._together("eth_getBlockByNumber", [hex(number), False], others)
                shown |= {one.member: one.value for one in said if one.error is None}
            blocks = list(shown.values())
            most = max(blocks, key=blocks.count, default=None)
            decided = 2 * blocks.count(most) > len(blocks)
            if any(one != most for one in blocks) and (decided or number == deepest):
                sides = [_names([one for one in shown if shown[one] == block]) for block in dict.fromkeys(blocks)]
                about = f"{' and '.join(sides)} show different blocks up to number {number}"
                self._contradictions.note(about, decided=decided, confirmed=number == deepest)
            if decided:
                return most
        return None

    def _believe(self, members: Sequence[_Member], *, by_turns: bool) -> _Member:
        """Believe one of these nodes, and return it: the same as before, if it is one of them; or by turns, as always
        while nodes contradict each other without a majority."""
        ordered = [one for one in self._members if one in members]
        lead = self._lead if self._lead in ordered else ordered[0]
        if by_turns or self._contradictions.now()[1]:
            lead = ordered[int(self._clock() / TURN_SECONDS) % len(ordered)]
        if lead is not self._lead:
            self._lead = lead
            self.view += 1
        return lead

    # Questions whose answers are compared.

    def _state(self, method: str, about: Any, tag: str) -> object:
        """Return a view, a balance, a code or a number of transactions: after the newest block if all say the same,
        else after the newest that they agree on; or after the block that is named."""
        if tag == "latest":
            answers = self._answers(method, [about, tag])
            if all(one.content == answers[0].content for one in answers):
                return _result(answers[0])
            tag = hex(self._head().number)
        number = int(tag, 16)
        kinds = {"eth_call": "a view of", "eth_getBalance": "the balance of", "eth_getCode": "the code at"}
        subject = about.get("to") if isinstance(about, dict) else about
        what = f"{kinds.get(method, 'the transactions of')} {subject} at block {number}"
        return self._decided(what, self._answers(method, [about, tag], number), at=number)

    def _numbers(self, method: str, params: list[Any]) -> list[int]:
        """Return the numbers that the nodes give, in ascending order."""
        said = self._together(method, params, self._usable())
        found: list[int] = sorted(one.value for one in said if one.error is None)
        if not found:
            raise self._no_answer(said)
        return found

    def _nonce(self, account: str) -> int:
        """Return the number of an account's transactions, those that wait for a block with them. Nodes may differ in
        these: the lower middle counts."""
        found = self._numbers("eth_getTransactionCount", [account, "pending"])
        if found[0] == found[-1]:
            return found[0]
        least = self._state("eth_getTransactionCount", account, "latest")
        assert isinstance(least, int)
        possible = [one for one in found if one >= least]
        return possible[(len(possible) - 1) // 2] if possible else least

    def _estimate(self, params: list[Any]) -> int:
        """Return the highest estimate, where they differ by a quarter at most and no node says that the call would
        fail."""
        answers = self._answers("eth_estimateGas", params)
        found = sorted(one.value for one in answers if one.error is None)
        if len(found) == len(answers) and 4 * found[-1] <= 5 * found[0]:
            return found[-1]  # type: ignore[no-any-return]
        middle = found[len(found) // 2] if found else 0

        def kind(one: _Answer) -> object:
            return one.error is None and 4 * abs(one.value - middle) <= middle, one.error is None

        return self._decided("the gas of a call, or its success", answers, at=self._head().number, kind=kind)  # type: ignore[no-any-return]

    def _receipt(self, method: str, name: str) -> object:
        """Return a transaction or its receipt, once the newest block that the nodes agree on has it."""
        answers = self._answers(method, [name])
        shown = [one.value for one in answers if one.value is not None and one.value.block is not None]
        if not shown:
            return next((one.value for one in answers if one.value is not None), None)
        number = min(one.block for one in shown)
        if self._agreed is None or self._agreed.number < number:
            if self._head().number < number:
                return None
            answers = self._answers(method, [name])
        answers = [one for one in answers if one.member.height >= number]
        return self._decided(f"transaction {name}", answers, at=number) if answers else None

    def _range(self, params: list[Any], first: int, until: int) -> object:
        """Return the events of a range on which more than half of those agree that were asked. A node that refuses the
        range, since it allows fewer blocks at once, leaves no other to be believed alone: a smaller one is asked for
        then."""
        said = self._together("eth_getLogs", params, self._usable(until))
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
        return self._decided(f"the events of blocks {first} to {until}", answers, at=until)

    def _send(self, signed: str) -> str:
        """Hand a signed transaction to all nodes, those that are away too, so that none can hold it back. Raises
        RpcRefused if no node takes it."""
        name = keccak(bytes.fromhex(signed[2:]))
        said = self._together("eth_sendRawTransaction", [signed], self._members)
        refused = [one.error for one in said if isinstance(one.error, RpcRefused)]
        if not any(one.value == name for one in said):
            # One that has it already outweighs one that will not have it.
            raise next((one for one in refused if "already" in one.reason.lower()), self._no_answer(said))
        return "0x" + name.hex()

    # Comparison of the answers.

    def _usable(self, at: int | None = None) -> list[_Member]:
        """Return the nodes to ask; with a block's number, those that have it."""
        usable = [one for one in self._members if one.is_usable] or self._members
        return [one for one in usable if at is None or one.height >= at] or usable

    def _together(self, method: str, params: list[Any], members: Sequence[_Member]) -> list[_Answer]:
        """Ask nodes at the same time, and return what they answer. Nodes that have not answered `GRACE` seconds after
        the first are left out. All that have no answer are left alone for a while. Raises Stopped."""
        if len(members) == 1:
            said = [members[0].ask(method, params, self._chain)]
        else:
            asked = {in_thread(partial(one.ask, method, params, self._chain)): one for one in members}
            waiting, ends = {*asked}, float("inf")
            while waiting and time.monotonic() < ends:
                done, waiting = wait(waiting, _LOOK, FIRST_COMPLETED)
                if self._stop is not None and self._stop.is_set():
                    raise Stopped("stopped while several nodes were asked: run the same command again.")
                if ends == float("inf") and any(one.result().counts for one in done):
                    ends = time.monotonic() + GRACE
            for late in waiting:
                asked[late].leave_alone(f"{asked[late].name} did not answer within {GRACE:g} seconds after another had")
            said = [one.result() for one in asked if one not in waiting]
        for one in said:
            if isinstance(one.error, (ChainUnavailable, InvalidAnswer, WrongChain)):
                one.member.leave_alone(str(one.error))
            elif not isinstance(one.error, Stopped):
                one.member.is_back()
        return said

    def _answers(self, method: str, params: list[Any], at: int | None = None) -> list[_Answer]:
        """Return the answers of the nodes that have one. Raises the error of a node where none has."""
        said = self._together(method, params, self._usable(at))
        found = [one for one in said if one.counts]
        if not found:
            raise self._no_answer(said)
        return found

    def _decided(
        self,
        what: str,
        answers: Sequence[_Answer],
        *,
        at: int,
        kind: Callable[[_Answer], object] = lambda one: one.content,
    ) -> Any:
        """Return the answer of more than half; without a majority, that of the node whose turn it is. `at`: the block
        that they are about; of one that is not confirmed nodes may say different things for a while."""
        groups: list[list[_Answer]] = []
        for one in answers:
            group = next((group for group in groups if kind(group[0]) == kind(one)), None)
            if group is None:
                groups.append([one])
            else:
                group.append(one)
        chosen = max(groups, key=len)
        if len(groups) > 1:
            decided = 2 * len(chosen) > len(answers)
            sides = " and ".join(_names([one.member for one in group]) for group in groups)
            confirmed = self._agreed is None or at <= self._agreed.number - self._confirmations
            self._contradictions.note(
                f"{sides} say different things about {what}", decided=decided, confirmed=confirmed
            )
            if not decided:
                self._doubted = True
                chosen = next((one for one in groups if self._lead in [said.member for said in one]), groups[0])
        return _result(next((one for one in chosen if one.member is self._lead), chosen[0]))

    def _no_answer(self, said: Sequence[_Answer]) -> ChainError:
        """Return the error where no node has an answer: a node's own refusal if there is one."""
        errors = [one.error for one in said if one.error is not None]
        errors.sort(key=lambda one: not isinstance(one, RpcRefused))
        if not errors or isinstance(errors[0], WrongChain):
            return ChainUnavailable(f"none of the nodes {self.name} answers: start one, or check the addresses.")
        return errors[0]


def _result(answer: _Answer) -> Any:
    if answer.error is not None:
        raise answer.error
    return answer.value


def _are_topics(wanted: object) -> bool:
    """Return whether these are conditions on topics that all nodes read alike: they differ about an empty list."""
    return wanted is None or (isinstance(wanted, list) and [] not in wanted)


def connect_all(locations: Sequence[str], *, confirmations: int = 0, stop: Event | None = None) -> ChainNode:
    """Return the chain behind one or several locations, each as of `connect`.

    Raises ChainUnavailable if nobody answers, and WrongChain if the nodes are not of one chain."""
    if len(locations) == 1:
        return connect(locations[0], confirmations=confirmations, stop=stop)
    if len(set(locations)) < len(locations):
        raise ChainUnavailable("a node is named twice: it has one voice only; name each once.")
    # A node that is away must not keep the others waiting for long, and may come later.
    options = {"timeout": 8.0, "deadline": 12.0, "attempts": 3}
    transports = [transport_to(one, stop, **options) for one in locations]
    return ChainNode(QuorumTransport(transports, stop=stop), confirmations=confirmations, stop=stop)
