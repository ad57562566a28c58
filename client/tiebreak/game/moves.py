"""Trees that a party holds at each level of a game, over the payloads that it believes in; its decisions about the
game, and the arguments of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from roundlog.adjudication import OperandOpening
from roundlog.adjudication import Tree as Hashed
from roundlog.commitments import MerkleTree
from roundlog.descriptors import Descriptor
from roundlog.dispute import ElementMaterial, RunningResults, StepTrace, half_of, operators_half

from tiebreak.contract.enums import Level, Outcome, Phase, Side
from tiebreak.contract.structs import (
    ChunkOpening,
    Descent,
    ElementProof,
    GameView,
    LeafOpening,
    NextRoot,
    OperatorOpening,
    PartialsOpening,
    SegmentProof,
)

Place = tuple[int, ...]
"""Place of a tree: the disputed leaf of every level above it. The tree at () is the claim itself, the one at (i,)
is over the steps of interval i, the one at (i, j) over all that step j of it computes, the one at (i, j, q) over the
output of operator q."""


Row = tuple[bytes, ...]
"""All nodes of a tree that lie `stride` levels below a node, from the left; of a leaf none."""

LEVELS = 4
"""Levels that a move of a search descends at most: `Bisections.LEVELS` of the contract."""


def moves_in(depth: int) -> int:
    """Return moves of both sides together in a search of a tree of this depth."""
    return -(-depth // LEVELS)


def stride(height: int) -> int:
    """Return levels from a place at `height` to its row: equal parts of at most `LEVELS`."""
    return -(-height // moves_in(height)) if height else 0


def row(tree: MerkleTree, height: int, index: int) -> Row:
    """Return the row of node `index` (from the left) at `height`."""
    if not height:
        return ()
    levels = stride(height)
    return tuple(tree.node(height - levels, (index << levels) + i) for i in range(1 << levels))


def next_root_of(tree: MerkleTree) -> NextRoot:
    """Return a root with its row, tied to the level above by the proof of its last leaf."""
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
        """Return the opening of leaf `index`. `agreed_before` stands before leaf 0."""
        if index == 0:
            return LeafOpening(payload=self.payloads[0], agreed=agreed_before, agreed_proof=())
        proof = tuple(self.tree.proof(index - 1))
        return LeafOpening(payload=self.payloads[index], agreed=self.payloads[index - 1], agreed_proof=proof)

    def as_next_root(self) -> NextRoot:
        """Return the root, as `next_root_of`."""
        return next_root_of(self.tree)


class Trace:
    """Level OPERATOR: tensor roots of all outputs of a step, and of the state after it."""

    def __init__(self, step: StepTrace) -> None:
        self.step = step
        self.tree = step.tree
        self.state_root = MerkleTree(step.states).root
        self.half = half_of(len(step.operators), len(step.states))

    def as_next_root(self) -> NextRoot:
        """Return the operators' half: the other one follows from the state root."""
        return NextRoot(root=operators_half(self.tree), last_leaf_proof=(), row=row(self.tree, self.tree.depth, 0))

    def store(self, index: int) -> tuple[bytes, tuple[bytes, ...]]:
        """Return the tensor root that the store of the slot at leaf `index` keeps, with its proof."""
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
        """Return number of an element to dispute in an opponent's chunk; None if all are right."""

    def material(self, element: int) -> ElementMaterial: ...
    def running(self, element: int, claimed: int) -> RunningResults:
        """Return running results of an element. claimed: the trainer's bits of it."""

    def segment(self, element: int, segment: int) -> ElementMaterial: ...


Tree = Leaves | Trace | Output


@dataclass(frozen=True, slots=True)
class Bisect:
    """Show the row at the place reached, and the one below the first node that differs from the other side's."""

    descent: Descent


@dataclass(frozen=True, slots=True)
class OpenLevel:
    """Open the disputed state root and the tree below it. Only the party itself may send this."""

    side: Side
    leaf: LeafOpening
    next: NextRoot


@dataclass(frozen=True, slots=True)
class OpenOperator:
    """Open the disputed operator's output."""

    side: Side
    opening: OperatorOpening


@dataclass(frozen=True, slots=True)
class ProveStore:
    """Show what the store of a state slot keeps, on which both sides agree."""

    payload: bytes
    proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PostChunk:
    """Show the trainer's bytes."""

    chunk: bytes


@dataclass(frozen=True, slots=True)
class ProveElement:
    """Have the contract compute an element of the trainer's chunk."""

    proof: ElementProof


@dataclass(frozen=True, slots=True)
class DisputeSum:
    """Name an element of the trainer's chunk, whose terms are too many for one call. Only the challenger may."""

    descriptor: bytes
    chunk: bytes
    position: int


@dataclass(frozen=True, slots=True)
class OpenPartials:
    """Open the tree over the running results of the disputed element. Only the party itself may send this."""

    side: Side
    opening: PartialsOpening


@dataclass(frozen=True, slots=True)
class ProveSegment:
    """Have the contract compute the disputed segment."""

    proof: SegmentProof


@dataclass(frozen=True, slots=True)
class ClaimTimeout:
    """Claim that a clock has run out."""


@dataclass(frozen=True, slots=True)
class ReleaseBond:
    """Fetch the bond back, because another game rejected the claim first."""


@dataclass(frozen=True, slots=True)
class InTurn:
    """Several moves of one side, all or none: the opening of a root and the first move of the search below it, or the
    name of a sum and the opening of its running results."""

    moves: tuple[PartysMove | ForcedMove, ...]


PartysMove = OpenLevel | DisputeSum | OpenPartials
"""Only the party itself may send these: they hold a choice."""

ForcedMove = Bisect | OpenOperator | ProveStore | PostChunk | ProveElement | ProveSegment
"""Anyone may send these for a side: hashes leave no choice, or the contract computes what is right."""

Move = PartysMove | ForcedMove | InTurn | ClaimTimeout | ReleaseBond
"""A call that is to be sent now."""


@dataclass(frozen=True, slots=True)
class Need:
    """Request for the tree at `place`, without which no move can be made."""

    place: Place


@dataclass(frozen=True, slots=True)
class NeedChunk:
    """Request for the chunk that the trainer has posted, without which no move can be made."""


@dataclass(frozen=True, slots=True)
class NeedRow:
    """Request for the row that the other side has shown, without which no move can be made."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait until somebody else moves, or until the instant `until`.

    `until`: seconds since 1970; None where no instant changes anything."""

    what: str
    until: int | None


@dataclass(frozen=True, slots=True)
class Helpless:
    """No move can save this game: `why` says what is wrong."""

    why: str


@dataclass(frozen=True, slots=True)
class Over:
    """The game has ended."""

    outcome: Outcome


Decision = Move | Need | NeedChunk | NeedRow | Wait | Helpless | Over


def opening_arguments(descriptor: Descriptor, openings: Sequence[OperandOpening]) -> tuple[ChunkOpening, ...]:
    """Return the openings of one element (`roundlog.adjudication.openings.prove`), in the order of the
    contract (contracts/src/adjudication/Openings.sol).

    An operand's chunk names the first input that is this value. A chunk of a state or of a field of data follows the
    opening of the tensor root of its slot or field.
    """
    values = [item.value for item in descriptor.inputs]
    arguments: list[ChunkOpening] = []

    def add(place: int, chunk: int, data: bytes, proof: Sequence[bytes]) -> None:
        arguments.append(ChunkOpening(input=place, chunk=chunk, data=data, proof=tuple(proof)))

    for opening in openings:
        chunk = opening.chunk
        if chunk.tree == Hashed.VALUE:
            add(values.index(chunk.tensor), chunk.index, opening.payload, opening.siblings)
        elif chunk.tree in (Hashed.STATE, Hashed.FIELD):
            add(0, chunk.tensor, opening.tensor_root, opening.above)
            add(1, chunk.index, opening.payload, opening.siblings)
        else:
            add(0, chunk.index, opening.payload, opening.siblings)
    return tuple(sorted(arguments, key=lambda argument: (argument.input, argument.chunk)))


def describe_move(game: GameView, move: Move) -> str:
    """Return a move in words."""
    level, index = game.current.level, game.search.index
    match move:
        case InTurn(moves):
            return f"{describe_move(game, moves[0])}, and go on below it"
        case Bisect():
            return f"bisect {level.name} at height {game.search.height}, from leaf {index}"
        case OpenLevel():
            return f"open leaf {index} of {level.name} and the level below it"
        case OpenOperator():
            return f"open the output of operator {index}"
        case ProveStore():
            return "prove what a store of the state keeps"
        case PostChunk():
            return f"post chunk {index} of the output of operator {game.levels[Level.OPERATOR].index}"
        case ProveElement(proof):
            return f"have the contract compute element {proof.position} of chunk {index}"
        case DisputeSum(_, _, position):
            return f"dispute the sum that is element {position} of chunk {index}"
        case OpenPartials():
            return f"open the running results of element {game.disputed.element}"
        case ProveSegment():
            return f"have the contract compute segment {index} of element {game.disputed.element}"
        case ClaimTimeout():
            return "claim the timeout of the referee" if game.phase is Phase.REFEREE else "claim the opponent's timeout"
        case ReleaseBond():
            return "fetch the bond of a void game back"
