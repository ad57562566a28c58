"""Dishonest queues, which drop the orders of their role."""

from __future__ import annotations

from dataclasses import replace

from tiebreak.contract.game import VerificationGame
from tiebreak.roles.context import RoleContext
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.transactions.sender import Sender

_MOVES = {
    *("inTurn", "bisect", "openLevel", "openOperator", "proveStore", "postChunk"),
    *("proveElement", "disputeSum", "openPartials", "proveSegment"),
}


class SilentQueue(TransactionQueue):
    """A queue that sends only the first `moves` moves, and all other orders."""

    def __init__(self, contract: VerificationGame, sender: Sender, *, moves: int = 0) -> None:
        super().__init__(contract, sender)
        self.moves = moves

    def put(self, order: Order) -> bool:
        if order.call.function in _MOVES:
            if self.moves == 0:
                return False
            self.moves -= 1
        return super().put(order)


class ResigningQueue(TransactionQueue):
    """A queue that makes no appeals."""

    def put(self, order: Order) -> bool:
        return order.call.function != "appeal" and super().put(order)


def silenced(context: RoleContext, *, moves: int = 0) -> RoleContext:
    """Return the context of a party that falls silent after its first `moves` moves."""
    return replace(context, make_queue=lambda contract, sender: SilentQueue(contract, sender, moves=moves))
