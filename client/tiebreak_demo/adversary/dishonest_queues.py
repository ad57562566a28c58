"""Dishonest queues, which change or drop the orders of their role."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

from roundlog.commitments import node_hash
from tiebreak.contract.game import VerificationGame
from tiebreak.contract.structs import Descent, NextRoot
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


class CheatingQueue(TransactionQueue):
    """A queue that sends bisection moves with two nodes swapped, which no hash supports."""

    def put(self, order: Order) -> bool:
        if order.call.function == "bisect":
            game, move = order.call.arguments
            assert isinstance(move, Descent)
            swapped = replace(move, mine=(move.mine[1], move.mine[0], *move.mine[2:]))
            order = replace(order, call=replace(order.call, arguments=(game, swapped)))
        return super().put(order)


class FabricatingQueue(TransactionQueue):
    """A queue that claims a root with nothing below it but its row and its last leaf, so that no other leaf can ever be
    opened."""

    def put(self, order: Order) -> bool:
        if order.call.function == "commit":
            job, spec_hash, claimed, final, log_cid, model_cid = order.call.arguments
            assert isinstance(claimed, NextRoot) and isinstance(final, bytes)
            arguments = (job, spec_hash, _fabricated(claimed, final), final, log_cid, model_cid)
            order = replace(order, call=replace(order.call, arguments=arguments))
        return super().put(order)


def _fabricated(claimed: NextRoot, final: bytes) -> NextRoot:
    """A root over a row and siblings of the last leaf that are made up."""
    proof = claimed.last_leaf_proof
    last = next(leaf for leaf in range(1 << len(proof)) if _folded(final, proof, leaf) == claimed.root)
    below = len(proof) - (len(claimed.row) - 1).bit_length()
    siblings = [_made_up(sibling) for sibling in proof[:below]]
    nodes = [_made_up(node) for node in claimed.row]
    nodes[last >> below] = _folded(final, tuple(siblings), last & ((1 << below) - 1))
    row, place = tuple(nodes), last >> below
    while len(nodes) > 1:
        siblings.append(nodes[place ^ 1])
        nodes = [node_hash(nodes[i], nodes[i + 1]) for i in range(0, len(nodes), 2)]
        place >>= 1
    return NextRoot(root=nodes[0], last_leaf_proof=tuple(siblings), row=row)


def _made_up(node: bytes) -> bytes:
    return sha256(b"made up" + node).digest()


def _folded(payload: bytes, proof: tuple[bytes, ...], leaf: int) -> bytes:
    """The root that the proof of a leaf leads to."""
    node = sha256(b"\x00" + payload).digest()
    for bit, sibling in enumerate(proof):
        node = node_hash(sibling, node) if leaf >> bit & 1 else node_hash(node, sibling)
    return node


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
    """The context of a party that falls silent after its first `moves` moves."""
    return replace(context, make_queue=lambda contract, sender: SilentQueue(contract, sender, moves=moves))


def cheating(context: RoleContext) -> RoleContext:
    """The context of a party that sends wrong children of its nodes."""
    return replace(context, make_queue=CheatingQueue)
