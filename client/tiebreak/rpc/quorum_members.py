"""Members: the single nodes among several of one chain, asked at the same time."""

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
from tiebreak.rpc.transport import Transport

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
