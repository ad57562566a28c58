"""Finds what a side has shown in a game, the trainer's chunk and the rows of a search, without searching the whole
chain."""

from __future__ import annotations

from roundlog.commitments import leaf_hash

from tiebreak.contract.enums import Level, Side
from tiebreak.contract.events import Bisected, ChunkPosted, RootOpened, RowShown
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import GameView
from tiebreak.rpc.node import ChainNode

_FIRST_STEP = 64


def find_chunk(contract: VerificationGame, game_id: int, game: GameView) -> bytes | None:
    """The chunk that was posted in a game; None if the node does not show it.

    Searched from the newest block back to the block in which the game's clocks started. Its hash is known, so that it
    need not lie under any number of blocks. Raises the errors of ChainNode.
    """
    node, wanted = contract.node, game.search.nodes[Side.TRAINER]
    newest = node.head().number
    oldest = max(contract.first_block, last_block_before(node, game.started_at, newest))
    for event in contract.events_back(game_id, from_block=oldest, to_block=newest):
        if isinstance(event, ChunkPosted) and leaf_hash(event.chunk) == wanted:
            return event.chunk
    return None


def find_rows(
    contract: VerificationGame, game_id: int, game: GameView, *, everywhere: bool = False
) -> tuple[tuple[bytes, ...], ...]:
    """The rows that were shown in a game, in the block that the contract names; `everywhere`: in all blocks since the
    claim, for a chain that numbers its blocks otherwise than it tells its contracts.

    A node may leave some out or make some up: the contract holds the hash of the one that is needed. Raises the errors
    of ChainNode."""
    first = last = game.search.shown_in
    if everywhere:
        last = contract.node.head().number
        claimed = contract.job(game.job).claim.committed_at
        first = max(contract.first_block, last_block_before(contract.node, claimed, last))
    found: list[tuple[bytes, ...]] = []
    for event in contract.events(game=game_id, from_block=first, to_block=last):
        if isinstance(event, Bisected | RootOpened):
            found.append(event.next if isinstance(event, Bisected) else event.row)
    if game.current.level is Level.CHECKPOINT:
        about_job = contract.events(job=game.job, from_block=first, to_block=last)
        found += [event.row for event in about_job if isinstance(event, RowShown)]
    return tuple(found)


def last_block_before(node: ChainNode, instant: int, newest: int) -> int:
    """Number of a block that is older than `instant` (seconds since 1970), less than twice as far back as need be."""
    step = _FIRST_STEP
    while step < newest:
        block = node.block(newest - step)
        if block is not None and block.timestamp < instant:
            return newest - step
        step *= 2
    return 0
