"""Newest blocks of several nodes: which one counts, and which node where no majority decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiebreak.rpc.answers import Block
from tiebreak.rpc.chain_errors import ChainError
from tiebreak.rpc.node_agreement import Contradictions
from tiebreak.rpc.quorum_members import Member, names

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
