"""Members: the single nodes among several of one chain, asked at the same time; and their newest blocks: which one
counts, and which node where no majority decides."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tiebreak.deadlines import Pauses
from tiebreak.rpc.answers import Block
from tiebreak.rpc.chain_errors import ChainError, ChainUnavailable, InvalidAnswer, RpcRefused, Stopped, WrongChain
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import Contradictions, Transport

T = TypeVar("T")

GRACE = 2.0
"""Seconds that the other nodes have once one has answered."""

_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0
"""Seconds for which a node that did not answer is not asked."""

_MOST_WAITING = 3
"""Questions that a node may leave unanswered before it is not asked any more."""

_LOOK = 0.05


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a chain: its id, and the hash of its first block."""

    chain_id: int
    genesis: bytes


@dataclass(frozen=True, slots=True)
class Said(Generic[T]):
    """One node's answer: a value, or the error of a call that the contract refuses, or of a node that cannot answer."""

    member: Member
    value: T | None = None
    error: ChainError | None = None

    @property
    def is_answer(self) -> bool:
        """Whether it says something about the chain. A revert does; a refusal for want of old states does not."""
        return self.error is None or (isinstance(self.error, RpcRefused) and self.error.data is not None)

    @property
    def content(self) -> object:
        """The part by which answers are compared."""
        return ("reverted", self.error.data) if isinstance(self.error, RpcRefused) else self.value


class Member:
    """One node among several. Its methods may be called from several threads."""

    def __init__(self, transport: Transport, stop: threading.Event | None, clock: Callable[[], float]) -> None:
        self.transport = transport
        self.node = ChainNode(transport, stop=stop)
        self.head: Block | None = None
        """Its newest block when it was last asked."""
        self.away = ""
        """Reason why it is not asked at present; empty if it is."""
        self.identity: Identity | None = None
        """Its chain, once it is known to be that of the others."""
        self._clock = clock
        self._again = 0.0
        self._pauses = Pauses(first=_FIRST_PAUSE, most=_LONGEST_PAUSE)
        self._waiting = 0
        self._left_alone = 0

    @property
    def name(self) -> str:
        return self.transport.name

    @property
    def height(self) -> int:
        return -1 if self.head is None else self.head.number

    @property
    def is_usable(self) -> bool:
        return self._waiting < _MOST_WAITING and (not self.away or self._clock() >= self._again)

    def identify(self) -> Identity:
        """Its chain, asked anew. Raises the errors of ChainNode."""
        node = ChainNode(self.transport)
        first = node.block(0)
        if first is None:
            raise InvalidAnswer(f"{self.name} does not have block 0: use another node.")
        return Identity(node.chain_id, first.hash)

    def ask(self, call: Callable[[ChainNode], T], expected: Identity) -> Said[T]:
        """Its answer. A node that was away has to show first that its chain is the expected one."""
        self._waiting += 1
        before = self._left_alone
        try:
            if self.identity is None:
                self.identity = self._checked(expected)
            said = Said(self, call(self.node))
            if self._left_alone == before:  # else it was too slow, and nobody waits for this any more
                self.away = ""
                self._pauses.reset()
            return said
        except (ChainUnavailable, InvalidAnswer, WrongChain) as error:
            self.leave_alone(str(error))
            return Said(self, error=error)
        except ChainError as error:
            return Said(self, error=error)
        finally:
            self._waiting -= 1

    def leave_alone(self, why: str) -> None:
        """Asks it again after a pause only, and for its chain first: another one may answer there by then."""
        self.away, self.identity = why, None
        self._left_alone += 1
        self._again = self._clock() + self._pauses.next()

    def _checked(self, expected: Identity) -> Identity:
        found = self.identify()
        if found != expected:
            raise other_chain(self.name, found, expected)
        return found


def other_chain(name: str, found: Identity, expected: Identity) -> WrongChain:
    """The error for a node of another chain than the first one's."""
    theirs, ours = f"chain {found.chain_id}", f"chain {expected.chain_id}"
    if found.chain_id == expected.chain_id:
        theirs, ours = f"another {theirs} (first block 0x{found.genesis.hex()[:16]}...)", "the others"
    return WrongChain(f"{name} is a node of {theirs}, and not of {ours}: give nodes of one chain.")


def ask_together(
    members: Sequence[Member],
    call: Callable[[ChainNode], T],
    expected: Identity,
    *,
    stop: threading.Event | None = None,
) -> list[Said[T]]:
    """Answers of the members, asked at the same time, in their order. Members that have not answered `GRACE` seconds
    after the first answer are left out, and left alone for a while. Raises Stopped."""
    if len(members) == 1:
        return [members[0].ask(call, expected)]
    heard: queue.SimpleQueue[Said[T] | Exception] = queue.SimpleQueue()

    def ask(member: Member) -> None:
        try:
            heard.put(member.ask(call, expected))
        except Exception as error:  # a defect of this program, which the caller has to hear of
            heard.put(error)

    for member in members:
        threading.Thread(target=ask, args=(member,), name="node", daemon=True).start()
    found: dict[Member, Said[T]] = {}
    ends: float | None = None
    while len(found) < len(members) and (ends is None or time.monotonic() < ends):
        try:
            said = heard.get(timeout=_LOOK)
        except queue.Empty:
            if stop is not None and stop.is_set():
                raise Stopped("stopped while several nodes were asked: run the same command again.") from None
            continue
        if isinstance(said, Exception):
            raise said
        found[said.member] = said
        if ends is None and said.is_answer:
            ends = time.monotonic() + GRACE
    for member in members:
        if member not in found:
            member.leave_alone(f"{member.name} did not answer within {GRACE:g} seconds after another had")
    return [found[member] for member in members if member in found]


def names(members: Sequence[Member]) -> str:
    """The names of nodes in a sentence."""
    *others, last = [one.name for one in members]
    return f"{', '.join(others)} and {last}" if others else last


LAG = 3
"""Blocks by which a node may be behind the others without being told of: half a minute on Ethereum."""

TURN_SECONDS = 15.0
"""Seconds for which one node is believed while no majority decides: several looks of a role."""

_OLD = 120
"""Seconds after which a newest block counts as old, where another node has a newer one."""


class NewestBlocks:
    """The choice among the newest blocks of `members`. `clock`: steady seconds; `today`: seconds since 1970.

    `lead`: the node that is believed where no majority decides, and asked first; `view` counts its changes. `behind`:
    the nodes that lag, a clause each."""

    def __init__(
        self,
        members: Sequence[Member],
        contradictions: Contradictions,
        clock: Callable[[], float],
        today: Callable[[], float],
    ) -> None:
        self.lead = members[0]
        self.view = 0
        self.behind: dict[Member, str] = {}
        self._doubted = False
        self._members, self._contradictions = members, contradictions
        self._clock, self._today = clock, today

    def agreed(self, blocks: dict[Member, Block], confirmations: int) -> Block:
        """The newest block that more than half have; without a majority, that of the node whose turn it is.

        confirmations: blocks under which nodes of one chain have the same blocks."""
        self.behind = {}
        if self._doubted:
            self._doubted = False
            self.view += 1
        chains = self._chains(blocks, confirmations)
        chain = max(chains, key=len)
        if len(chains) > 1:
            decided = 2 * len(chain) > len(blocks)
            low = min(blocks[one[0]].number for one in chains)
            sides = " and ".join(names(one) for one in chains)
            self._contradictions.note(f"{sides} show different blocks up to number {low}", decided=decided)
            if not decided:
                return blocks[self._take_turns(list(blocks))]
        ordered = sorted(chain, key=lambda one: blocks[one].number, reverse=True)
        middle = blocks[ordered[len(ordered) // 2]]
        leaders = [one for one in ordered if blocks[one].number > middle.number + LAG]
        if leaders:
            return self._far_ahead(blocks, ordered, leaders, middle, confirmations)
        self._tell_behind(blocks, ordered, middle)
        self._go_by([one for one in ordered if one not in self.behind])
        return _common(ordered, blocks, middle, confirmations)

    def doubt(self) -> None:
        """Has everything read again at the next look, since one node alone was believed."""
        self._doubted = True

    def follow(self, lead: Member) -> None:
        """Believes this node from now on."""
        if lead is not self.lead:
            self.lead = lead
            self.view += 1

    def _far_ahead(
        self,
        blocks: dict[Member, Block],
        ordered: Sequence[Member],
        leaders: Sequence[Member],
        middle: Block,
        confirmations: int,
    ) -> Block:
        """The newest block where some nodes are far ahead of what more than half of them have: these lag, or those have
        made blocks up."""
        rest = [one for one in ordered if one not in leaders]
        first = blocks[leaders[-1]]
        about = f"the newest block of {names(leaders)} is {first.number}, and that of {names(rest)} is {middle.number}"
        if 2 * len(leaders) < len(ordered):
            self._contradictions.note(about, decided=True)
            self._go_by(rest)
            return middle
        now = self._today()
        if middle.timestamp < now - _OLD and middle.timestamp < first.timestamp <= now + _OLD:
            # The others' newest block is old by the clock on the wall, and this one is not.
            self._tell_behind(blocks, ordered, first)
            if first.number - middle.number > max(confirmations, LAG):
                self._contradictions.note(about, decided=False)  # nothing that a bond needs is shown by both
            self._go_by(leaders)
            return first
        self._contradictions.note(about, decided=False)
        return blocks[self._take_turns(ordered)]

    def _tell_behind(self, blocks: dict[Member, Block], chain: Sequence[Member], newest: Block) -> None:
        for one in chain:
            if (lag := newest.number - blocks[one].number) > LAG:
                self.behind[one] = f"{one.name} is {lag} blocks behind"

    def _chains(self, blocks: dict[Member, Block], confirmations: int) -> list[list[Member]]:
        """The nodes by the chain that they show, of each its highest first."""
        chains: list[list[Member]] = []
        for member in sorted(blocks, key=lambda one: blocks[one].number, reverse=True):
            for chain in chains:
                if _is_one_chain(chain[0], member, blocks, confirmations):
                    chain.append(member)
                    break
            else:
                chains.append([member])
        return chains

    def _take_turns(self, members: Sequence[Member]) -> Member:
        """The node whose turn it is, which is believed from now on."""
        ordered = [one for one in self._members if one in members]
        lead = ordered[int(self._clock() / TURN_SECONDS) % len(ordered)]
        self.follow(lead)
        return lead

    def _go_by(self, members: Sequence[Member]) -> None:
        """Believes one of these nodes: in turns while nodes contradict each other without a majority."""
        if self._contradictions.now()[1]:
            self._take_turns(members)
        elif self.lead not in members:
            self.follow(next(one for one in self._members if one in members))


def _is_one_chain(high: Member, low: Member, blocks: dict[Member, Block], confirmations: int) -> bool:
    """Whether two nodes have the same blocks, but for a tip that is not confirmed."""
    block = blocks[low]
    try:
        shown = _shown(high, blocks, block.number)
        if shown == block:
            return True
        deep = block.number - confirmations
        if shown is None or shown.hash == block.hash or confirmations == 0 or deep < 0:
            return False
        return high.node.block(deep) == low.node.block(deep)
    except ChainError:
        return True  # one of them has no answer now, which contradicts nothing


def _common(chain: Sequence[Member], blocks: dict[Member, Block], newest: Block, confirmations: int) -> Block:
    """The newest block, from `newest` downwards, that all nodes of one chain show that are as far."""
    try:
        for number in range(newest.number, newest.number - confirmations, -1):
            shown = {_shown(one, blocks, number) for one in chain if blocks[one].number >= number}
            if len(shown) == 1 and (block := shown.pop()) is not None:
                return block
    except ChainError:
        return newest
    return newest


def _shown(member: Member, blocks: dict[Member, Block], number: int) -> Block | None:
    return blocks[member] if blocks[member].number == number else member.node.block(number)
