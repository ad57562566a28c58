"""The strategy of a party in the verification game: trees that it holds at each level, over the payloads that it
believes in; and the one move that is due, from the contract's view of a game and these trees. No chain, no files. A
tree that is not at hand is asked for by its place: nothing is computed before it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from eth_utils.crypto import keccak
from roundlog.adjudication import OperandOpening
from roundlog.adjudication import Tree as Hashed
from roundlog.commitments import CHUNK_SIZE, MerkleTree, leaf_hash
from roundlog.descriptors import Descriptor
from roundlog.dispute import DisputedOperator, RunningResults, StepTrace, half_of, operators_half

from tiebreak.contract.enums import Level, Outcome, Phase, Side
from tiebreak.contract.structs import (
    ChunkOpening,
    Descent,
    ElementProof,
    GameView,
    LeafOpening,
    NextRoot,
    OperandRoot,
    OperatorOpening,
    Partial,
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


Output = DisputedOperator
"""Levels CHUNK and PARTIAL: the output of one operator of one step."""

Tree = Leaves | Trace | Output
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Move:
    """A call that is to be sent now: the contract's function, and its arguments behind the game's number.

    Those of `inTurn` are moves of one side, all or none: the opening of a root and the first move of the search below
    it, or the name of a sum and the opening of its running results."""

    function: str
    arguments: tuple[Any, ...] = ()


FORCED = frozenset(["bisect", "openOperator", "postChunk", "proveElement", "proveSegment", "proveStore"])
"""Moves that anyone may send for a side: hashes leave no choice, or the contract computes what is right. Others hold a
choice, and only the party itself may send them."""

CLAIM_TIMEOUT = Move("claimTimeout")


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
    match move.function, move.arguments:
        case "inTurn", moves:
            return f"{describe_move(game, moves[0])}, and go on below it"
        case "bisect", _:
            return f"bisect {level.name} at height {game.search.height}, from leaf {index}"
        case "openLevel", _:
            return f"open leaf {index} of {level.name} and the level below it"
        case "openOperator", _:
            return f"open the output of operator {index}"
        case "proveStore", _:
            return "prove what a store of the state keeps"
        case "postChunk", _:
            return f"post chunk {index} of the output of operator {game.levels[Level.OPERATOR].index}"
        case "proveElement", (proof,):
            return f"have the contract compute element {proof.position} of chunk {index}"
        case "disputeSum", (_, _, position):
            return f"dispute the sum that is element {position} of chunk {index}"
        case "openPartials", _:
            return f"open the running results of element {game.disputed.element}"
        case "proveSegment", _:
            return f"have the contract compute segment {index} of element {game.disputed.element}"
        case "releaseBond", _:
            return "fetch the bond of a void game back"
    return "claim the timeout of the referee" if game.phase is Phase.REFEREE else "claim the opponent's timeout"


RUNNING = (Phase.BISECTION, Phase.OPENING, Phase.POSTING, Phase.PROVING)
"""Phases in which a party's clock runs."""


@dataclass(slots=True)
class Known:
    """Material that a party has at hand: trees of its own, the chunk that the trainer has posted, and rows that the
    other side may have shown.

    rows: None if nobody has looked for them; they are held against their hash, so any others may be among them."""

    trees: dict[Place, Tree] = field(default_factory=dict)
    chunk: bytes | None = None
    rows: tuple[Row, ...] | None = None


class _Missing(Exception):
    def __init__(self, need: Need | NeedChunk | NeedRow) -> None:
        self.need = need


class _Lost(Exception):
    pass


def next_move(game: GameView, side: Side, known: Known, now: int) -> Decision:
    """Return the decision of the party of `side` at the instant `now` (seconds since 1970, of the next block).

    A party moves for itself as long as it has time, and claims a timeout only when every running clock is out and none
    of them is its own: the contract accepts no earlier claim, and no later one changes the outcome.
    """
    if game.phase is Phase.OVER:
        if game.outcome is Outcome.VOID and game.bond_held and side is Side.CHALLENGER:
            return Move("releaseBond")
        return Over(game.outcome)
    if game.phase is Phase.QUEUED:
        # No clock runs, and the game starts in the transaction that ends an earlier one.
        return Wait(f"the game's turn: {game.ahead} others start before it", None)
    if game.phase is Phase.REFEREE:
        if timeout_is_due(game, now):
            return CLAIM_TIMEOUT
        return Wait("the referee's verdict", game.referee_deadline + 1)
    if game.phase is Phase.NONE:
        raise ValueError("there is no such game: check its number.")

    own = game.deadlines[side]
    if own and now <= own:
        return forced_move(game, side, known)
    if own:
        # Nobody gains by hurrying the end of a game that it has lost.
        return Helpless(f"the {side.name.lower()}'s clock ran out at {own}")
    if timeout_is_due(game, now):
        return CLAIM_TIMEOUT
    return Wait(f"the {side.other.name.lower()}'s move", max(game.deadlines) + 1)


def timeout_is_due(game: GameView, now: int) -> bool:
    """Return whether `claimTimeout` would be accepted in a block at `now`. Deadlines are inclusive."""
    if game.phase is Phase.REFEREE:
        return now > game.referee_deadline
    if game.phase in RUNNING:
        return all(now > deadline for deadline in game.deadlines if deadline)
    return False


def forced_move(game: GameView, side: Side, known: Known) -> Move | Need | NeedChunk | NeedRow | Helpless:
    """Return the move that is due from `side`, computed from that side's trees by the party or by somebody who helps
    it.

    Call it only while that side's clock runs.
    """
    try:
        return _Turn(game, side, known).move()
    except _Missing as missing:
        return missing.need
    except _Lost as lost:
        return Helpless(str(lost))


def place_of(game: GameView) -> Place:
    """Return place of the tree in which the game is now: the disputed leaf of every level above."""
    return tuple(level.index for level in game.levels[:-1])


def hash_of(shown: Row) -> bytes:
    """Return the hash by which the contract knows a row that was shown."""
    return keccak(b"".join(shown))


def descent(tree: MerkleTree, height: int, index: int, theirs: Row) -> Move:
    """Return the move of a search from a place (`index`: leftmost leaf, `height`) down to the first node that differs
    from `theirs`: all that lies before it is agreed."""
    mine = row(tree, height, index >> height)
    place = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
    below = height - stride(height)
    shown = row(tree, below, (index >> below) + place)
    return Move("bisect", (Descent(mine=mine, theirs=theirs, next=shown),))


_AT_HAND = "states at hand", "states at hand", "step as it was executed", "output at hand", "running results at hand"
"""What the trees of each level are over."""


class _Turn:
    """One look at a game by one side."""

    def __init__(self, game: GameView, side: Side, known: Known) -> None:
        self.game, self.side, self.known = game, side, known
        self.level = game.current.level
        self.place = place_of(game)

    def move(self) -> Move:
        match self.game.phase, self.level:
            case Phase.BISECTION, _:
                return self.bisect()
            case Phase.OPENING, Level.CHECKPOINT | Level.STEP:
                return self.open_level()
            case Phase.OPENING, Level.OPERATOR:
                return self.open_operator()
            case Phase.OPENING, Level.PARTIAL:
                return self.open_partials()
            case Phase.POSTING, Level.CHUNK:
                return Move("postChunk", (self.own(Output).chunk(self.game.search.index),))
            case Phase.PROVING, Level.OPERATOR:
                return Move("proveStore", self.own(Trace).store(self.game.search.index))
            case Phase.PROVING, Level.CHUNK:
                return self.prove_element()
            case Phase.PROVING, Level.PARTIAL:
                return self.prove_segment()
        raise AssertionError(f"nobody is due in phase {self.game.phase.name} at level {self.level.name}")

    # The searches.

    def bisect(self) -> Move:
        search, tree = self.game.search, self.own_tree()
        node = tree.node(search.height, search.index >> search.height)
        shown = next((one for one in self.known.rows or () if keccak(node + hash_of(one)) == search.due), None)
        if shown is None:
            raise _Missing(NeedRow())
        return descent(tree, search.height, search.index, shown)

    def open_and_bisect(self, opening: Move, tree: MerkleTree) -> Move:
        """Return an opening of the root of `tree`, with the first move of the search below if the other side has opened
        before: the side that opens last moves first. The move is left for later if that side's row cannot be had."""
        if self.game.deadlines[self.side.other] or not tree.depth:
            return opening
        if self.known.rows is None:
            raise _Missing(NeedRow())
        wanted = self.game.search.nodes[self.side.other]
        shown = next((one for one in self.known.rows if hash_of(one) == wanted), None)
        return opening if shown is None else Move("inTurn", (opening, descent(tree, tree.depth, 0, shown)))

    def row_of(self, tree: MerkleTree) -> Row:
        """Return the row of a root that is opened; only the first of the two sides shows it."""
        return row(tree, tree.depth, 0) if self.game.deadlines[self.side.other] else ()

    # The openings.

    def open_level(self) -> Move:
        index = self.game.search.index
        leaf = self.own(Leaves).open(index, self.game.agreed)
        place, is_step = (*self.place, index), self.level is Level.STEP
        below: Leaves | Trace = self.at(place, Trace) if is_step else self.at(place, Leaves)
        leads_to = below.payloads[-1] if isinstance(below, Leaves) else below.state_root
        if leads_to != leaf.payload:
            raise _Lost(f"leaf {index} at level {self.level.name} does not follow from what is below it")
        opened = replace(below.as_next_root(), row=self.row_of(below.tree))
        return self.open_and_bisect(Move("openLevel", (self.side, leaf, opened)), below.tree)

    def open_operator(self) -> Move:
        index = self.game.search.index
        output = self.at((*self.place, index), Output)
        opening = OperatorOpening(
            descriptor=output.encoded,
            descriptor_proof=tuple(output.descriptor_proof),
            tensor_root=output.tree.root,
            row=self.row_of(output.tree),
        )
        if leaf_hash(opening.tensor_root) != self.game.search.nodes[self.side]:
            raise _Lost(f"the output of operator {index} is not the one that is claimed")
        return self.open_and_bisect(Move("openOperator", (self.side, opening)), output.tree)

    def open_partials(self) -> Move:
        output, disputed = self.at(self.place[:3], Output), self.game.disputed
        running = output.running(disputed.element, disputed.claimed)
        opening = _partials_opening(output, running, self.row_of(running.tree))
        return self.open_and_bisect(Move("openPartials", (self.side, opening)), running.tree)

    # The proofs.

    def prove_element(self) -> Move:
        output, search = self.own(Output), self.game.search
        chunk = self.known.chunk
        if chunk is None or leaf_hash(chunk) != search.nodes[Side.TRAINER]:
            raise _Missing(NeedChunk())
        element = output.wrong_element(search.index, chunk)
        if element is None:
            raise _Lost(f"nothing in the trainer's chunk {search.index} can be proven wrong")
        position = element - search.index * CHUNK_SIZE // output.descriptor.dtype.itemsize
        if self.game.operator.segments > 1:
            return self.dispute_sum(output, element, chunk, position)
        material = output.material(element)
        proof = ElementProof(
            descriptor=output.encoded,
            chunk=chunk,
            position=position,
            operands=self.operands(output, material.roots),
            openings=opening_arguments(output.descriptor, material.openings),
        )
        return Move("proveElement", (proof,))

    def dispute_sum(self, output: Output, element: int, chunk: bytes, position: int) -> Move:
        """Name a sum, and open its running results at once: nobody else can know yet which element it is."""
        width = output.descriptor.dtype.itemsize
        claimed = int.from_bytes(chunk[position * width : (position + 1) * width], "little")
        running = output.running(element, claimed)
        opening = _partials_opening(output, running, row(running.tree, running.tree.depth, 0))
        named = Move("disputeSum", (output.encoded, chunk, position))
        return Move("inTurn", (named, Move("openPartials", (self.side, opening))))

    def prove_segment(self) -> Move:
        index, disputed = self.game.search.index, self.game.disputed
        tree, output = self.own_tree(), self.at(self.place[:3], Output)
        running = output.running(disputed.element, disputed.claimed)
        material = output.segment(disputed.element, index)
        proof = SegmentProof(
            descriptor=output.encoded,
            before=_partial(running.before(index)),
            before_proof=tuple(tree.proof(index - 1)) if index else (),
            operands=self.operands(output, material.roots),
            openings=opening_arguments(output.descriptor, material.openings),
        )
        return Move("proveSegment", (proof,))

    def operands(self, output: Output, roots: Mapping[int, bytes]) -> tuple[OperandRoot, ...]:
        """Return each operand's tensor root as an agreed leaf of the trace; once, and only if something of it is
        opened."""
        trace = self.at(self.place[:2], Trace)
        done: set[int] = set()
        found = []
        for item in output.descriptor.inputs:
            if item.value in roots and item.value not in done:
                done.add(item.value)
                found.append(OperandRoot(root=roots[item.value], proof=tuple(trace.tree.proof(item.value))))
            else:
                found.append(OperandRoot(root=bytes(32), proof=()))
        return tuple(found)

    # This side's trees, held against what it has claimed.

    def at(self, place: Place, kind: type[T]) -> T:
        """Return the tree at a place, at whose level they are of this kind."""
        if (tree := self.known.trees.get(place)) is None:
            raise _Missing(Need(place))
        return cast(T, tree)

    def own_tree(self) -> MerkleTree:
        """Return the tree that this side claims at the present level."""
        disputed, claimed = self.game.disputed, self.game.current
        if self.level is Level.PARTIAL:
            tree = self.at(self.place[:3], Output).running(disputed.element, disputed.claimed).tree
        else:
            tree = self.at(self.place, Trace).tree  # or of another kind, each of which has one
        if tree.count != claimed.leaf_count or tree.root != claimed.roots[self.side]:
            what = _AT_HAND[self.level]
            raise _Lost(f"the {self.side.name.lower()}'s root at level {self.level.name} is not over the {what}")
        return tree

    def own(self, kind: type[T]) -> T:
        """Return what this side claims at the present level, whose tree is of this kind."""
        self.own_tree()
        return self.at(self.place, kind)


def _partials_opening(output: Output, running: RunningResults, shown: Row) -> PartialsOpening:
    return PartialsOpening(
        descriptor=output.encoded,
        root=running.tree.root,
        last=_partial(running.partials[-1].encode()),
        last_leaf_proof=tuple(running.tree.proof(running.tree.count - 1)),
        row=shown,
    )


def _partial(encoded: bytes) -> Partial:
    """Return a running result from the 96 bytes that are a leaf of level PARTIAL."""
    return Partial(words=(encoded[:32], encoded[32:64], encoded[64:]))
