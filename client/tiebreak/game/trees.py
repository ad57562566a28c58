"""Trees that a party holds at each level of a game, over the payloads that it believes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roundlog.commitments import MerkleTree
from roundlog.descriptors import Descriptor
from roundlog.dispute import ElementMaterial, RunningResults, StepTrace, half_of, operators_half

from tiebreak.contract.structs import LeafOpening, NextRoot

Place = tuple[int, ...]
"""Place of a tree: the disputed leaf of every level above it. The tree at () is the claim itself, the one at (i,)
is over the steps of interval i, the one at (i, j) over all that step j of it computes, the one at (i, j, q) over the
output of operator q."""


Row = tuple[bytes, ...]
"""All nodes of a tree that lie `stride` levels below a node, from the left; of a leaf none."""

LEVELS = 4
"""Levels that a move of a search descends at most: `Bisections.LEVELS` of the contract."""


def moves_in(depth: int) -> int:
    """Moves of both sides together in a search of a tree of this depth."""
    return -(-depth // LEVELS)


def stride(height: int) -> int:
    """Levels from a place at `height` to its row: equal parts of at most `LEVELS`."""
    return -(-height // moves_in(height)) if height else 0


def row(tree: MerkleTree, height: int, index: int) -> Row:
    """The row of node `index` (from the left) at `height`."""
    if not height:
        return ()
    levels = stride(height)
    return tuple(tree.node(height - levels, (index << levels) + i) for i in range(1 << levels))


def next_root_of(tree: MerkleTree) -> NextRoot:
    """A root with its row, tied to the level above by the proof of its last leaf."""
    return NextRoot(root=tree.root, last_leaf_proof=tuple(tree.proof(tree.count - 1)), row=row(tree, tree.depth, 0))


class Leaves:
    """Levels CHECKPOINT and STEP: state roots (32 bytes each) and their Merkle tree.

    Raises ValueError if there are none: every tree of a game has a leaf.
    """

    def __init__(self, payloads: Sequence[bytes]) -> None:
        if not payloads:
            raise ValueError("a tree without leaves cannot be disputed: give at least one payload")
        self.payloads = tuple(payloads)
        self.tree = MerkleTree(self.payloads)

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def root(self) -> bytes:
        return self.tree.root

    def open(self, index: int, agreed_before: bytes) -> LeafOpening:
        """The opening of leaf `index`. `agreed_before` stands before leaf 0."""
        if index == 0:
            return LeafOpening(payload=self.payloads[0], agreed=agreed_before, agreed_proof=())
        proof = tuple(self.tree.proof(index - 1))
        return LeafOpening(payload=self.payloads[index], agreed=self.payloads[index - 1], agreed_proof=proof)

    def as_next_root(self) -> NextRoot:
        """The root, as `next_root_of`."""
        return next_root_of(self.tree)


class Trace:
    """Level OPERATOR: tensor roots of all outputs of a step, and of the state after it."""

    def __init__(self, step: StepTrace) -> None:
        self.step = step
        self.tree = step.tree
        self.state_root = MerkleTree(step.states).root
        self.half = half_of(len(step.operators), len(step.states))

    def as_next_root(self) -> NextRoot:
        """The operators' half: the other one follows from the state root."""
        return NextRoot(root=operators_half(self.tree), last_leaf_proof=(), row=row(self.tree, self.tree.depth, 0))

    def store(self, index: int) -> tuple[bytes, tuple[bytes, ...]]:
        """The tensor root that the store of the slot at leaf `index` keeps, with its proof."""
        operator = len(self.step.operators) - len(self.step.states) + index - self.half
        return self.step.operators[operator], tuple(self.tree.proof(operator))


class Output(Protocol):
    """Levels CHUNK and PARTIAL: the output of one operator of one step."""

    @property
    def descriptor(self) -> Descriptor: ...
    @property
    def encoded(self) -> bytes:
        """The encoded descriptor."""

    @property
    def descriptor_proof(self) -> list[bytes]: ...
    @property
    def tree(self) -> MerkleTree:
        """The tree over the chunks."""

    def chunk(self, index: int) -> bytes: ...
    def wrong_element(self, index: int, posted: bytes) -> int | None:
        """Number of an element to dispute in an opponent's chunk; None if all are right."""

    def material(self, element: int) -> ElementMaterial: ...
    def running(self, element: int, claimed: int) -> RunningResults:
        """Running results of an element. claimed: the trainer's bits of it."""

    def segment(self, element: int, segment: int) -> ElementMaterial: ...


Tree = Leaves | Trace | Output
