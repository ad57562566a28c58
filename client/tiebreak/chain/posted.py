"""Finds the chunk that a trainer has posted in a game, without searching the whole chain."""

from __future__ import annotations

from roundlog.commitments import leaf_hash

from tiebreak.chain.events import ChunkPosted
from tiebreak.chain.game import VerificationGame
from tiebreak.chain.node import ChainNode
from tiebreak.chain.records import GameView, Side

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


def last_block_before(node: ChainNode, instant: int, newest: int) -> int:
    """Number of a block that is older than `instant` (seconds since 1970), less than twice as far back as need be."""
    step = _FIRST_STEP
    while step < newest:
        block = node.block(newest - step)
        if block is not None and block.timestamp < instant:
            return newest - step
        step *= 2
    return 0
