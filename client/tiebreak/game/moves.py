"""Decisions of a party about a game, and the arguments of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundlog.adjudication import OperandOpening, Tree
from roundlog.descriptors import Descriptor

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
from tiebreak.game.trees import Place


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
    """The openings of one element (`roundlog.adjudication.openings.prove`), in the order of the
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
        if chunk.tree == Tree.VALUE:
            add(values.index(chunk.tensor), chunk.index, opening.payload, opening.siblings)
        elif chunk.tree in (Tree.STATE, Tree.FIELD):
            add(0, chunk.tensor, opening.tensor_root, opening.above)
            add(1, chunk.index, opening.payload, opening.siblings)
        else:
            add(0, chunk.index, opening.payload, opening.siblings)
    return tuple(sorted(arguments, key=lambda argument: (argument.input, argument.chunk)))


def describe_move(game: GameView, move: Move) -> str:
    """A move in words."""
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
