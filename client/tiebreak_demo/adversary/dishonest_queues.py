"""Dishonest queues, which drop the orders of their role, or keep what becomes of them."""

from __future__ import annotations

from dataclasses import replace

from tiebreak.contract.game import VerificationGame
from tiebreak.roles.context import RoleContext
from tiebreak.roles.transaction_queue import Order, TransactionQueue
from tiebreak.rpc.chain_errors import ChainError, ContractError
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


class RememberingQueue(TransactionQueue):
    """A queue that keeps the contract's errors about refused proofs of elements."""

    def __init__(self, contract: VerificationGame, sender: Sender) -> None:
        super().__init__(contract, sender)
        self.refused: list[ContractError] = []

    def put(self, order: Order) -> bool:
        if order.call.function != "proveElement":
            return super().put(order)

        def failed(error: ChainError) -> None:
            if isinstance(error, ContractError):
                self.refused.append(error)
            order.failed(error)

        return super().put(replace(order, failed=failed))


def silenced(context: RoleContext, *, moves: int = 0) -> RoleContext:
    """Return the context of a party that falls silent after its first `moves` moves."""
    return replace(context, make_queue=lambda contract, sender: SilentQueue(contract, sender, moves=moves))
