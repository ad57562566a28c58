"""Transactions and gas of a story, read from the chain and not from what the parties say."""

from __future__ import annotations

from dataclasses import dataclass

from eth_typing import ChecksumAddress
from tiebreak.contract.enums import Level
from tiebreak.contract.events import (
    Bisected,
    ChunkPosted,
    ElementDisputed,
    ElementProven,
    Event,
    LeafOpened,
    RootOpened,
    SegmentProven,
    StoreProven,
)
from tiebreak.contract.game import VerificationGame
from tiebreak.rpc import answers
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import Transport

PROOF = "PROOF"


@dataclass(frozen=True, slots=True)
class Spent:
    """A transaction, successful or not: its sender, its gas, its fee in wei."""

    sender: ChecksumAddress
    gas: int
    fee: int


def transactions(node: ChainNode, transport: Transport, first_block: int) -> list[Spent]:
    """All transactions from a block up to the newest one. Raises ChainError."""
    found = []
    for number in range(first_block, node.head().number + 1):
        block = answers.record(transport.request("eth_getBlockByNumber", [hex(number), True]), "a block")
        for item in answers.sequence(block.get("transactions"), "a block's transactions", 1000):
            transaction = answers.record(item, "a transaction")
            receipt = node.receipt(answers.data(transaction.get("hash"), "a transaction's hash", 32))
            assert receipt is not None, "a transaction in a block has a receipt"
            sender = answers.address(transaction.get("from"), "a transaction's sender")
            found.append(Spent(sender, receipt.gas_used, receipt.fee))
    return found


def gas_by_level(contract: VerificationGame, game: int) -> dict[str, int]:
    """Gas of all moves of a game, by the level at which they were made, and of the proofs at its end. Raises
    ChainError."""
    found = dict.fromkeys((*Level.__members__, PROOF), 0)
    counted: set[bytes] = set()
    for event in contract.events(game=game):
        level = _level(event)
        if level is not None and event.transaction not in counted:
            counted.add(event.transaction)
            receipt = contract.node.receipt(event.transaction)
            assert receipt is not None, "the transaction of an event has a receipt"
            found[level] += receipt.gas_used
    return found


def _level(event: Event) -> str | None:
    """The level of the move that an event reports; None if another event of the transaction tells it, or none does."""
    match event:
        case Bisected(level=level) | LeafOpened(level=level):
            return level.name
        case RootOpened(next_level=level) if level in (Level.CHUNK, Level.PARTIAL):
            return (Level.OPERATOR if level is Level.CHUNK else Level.PARTIAL).name
        case ChunkPosted():
            return Level.CHUNK.name
        case ElementDisputed():
            return Level.PARTIAL.name
        case ElementProven() | SegmentProven() | StoreProven():
            return PROOF
    return None
