"""The strategy of a party: the move that is due, from the contract's view of a game and the party's own trees.

No chain, no files. A tree that is not at hand is asked for by its place: nothing is computed before it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eth_utils.crypto import keccak
from roundlog.commitments import CHUNK_SIZE, MerkleTree, leaf_hash
from roundlog.dispute import RunningResults

from tiebreak.contract.enums import Level, Outcome, Phase, Side
from tiebreak.contract.structs import (
    Descent,
    ElementProof,
    GameView,
    OperandRoot,
    OperatorOpening,
    Partial,
    PartialsOpening,
    SegmentProof,
)
from tiebreak.game.moves import (
    Bisect,
    ClaimTimeout,
    Decision,
    DisputeSum,
    ForcedMove,
    Helpless,
    InTurn,
    Leaves,
    Need,
    NeedChunk,
    NeedRow,
    OpenLevel,
    OpenOperator,
    OpenPartials,
    Output,
    Over,
    PartysMove,
    Place,
    PostChunk,
    ProveElement,
    ProveSegment,
    ProveStore,
    ReleaseBond,
    Row,
    Trace,
    Tree,
    Wait,
    opening_arguments,
    row,
    stride,
)

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
            return ReleaseBond()
        return Over(game.outcome)
    if game.phase is Phase.QUEUED:
        # No clock runs, and the game starts in the transaction that ends an earlier one.
        return Wait(f"the game's turn: {game.ahead} others start before it", None)
    if game.phase is Phase.REFEREE:
        if timeout_is_due(game, now):
            return ClaimTimeout()
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
        return ClaimTimeout()
    return Wait(f"the {side.other.name.lower()}'s move", max(game.deadlines) + 1)


def timeout_is_due(game: GameView, now: int) -> bool:
    """Return whether `claimTimeout` would be accepted in a block at `now`. Deadlines are inclusive."""
    if game.phase is Phase.REFEREE:
        return now > game.referee_deadline
    if game.phase in RUNNING:
        return all(now > deadline for deadline in game.deadlines if deadline)
    return False


def forced_move(
    game: GameView, side: Side, known: Known
) -> PartysMove | ForcedMove | InTurn | Need | NeedChunk | NeedRow | Helpless:
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


def descent(tree: MerkleTree, height: int, index: int, theirs: Row) -> Bisect:
    """Return the move from the place (`index`: leftmost leaf, `height`) down to the first node that differs from
    `theirs`: all that lies before it is agreed."""
    mine = row(tree, height, index >> height)
    place = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
    below = height - stride(height)
    return Bisect(Descent(mine=mine, theirs=theirs, next=row(tree, below, (index >> below) + place)))


Opening = OpenLevel | OpenOperator | OpenPartials


class _Turn:
    """One look at a game by one side."""

    def __init__(self, game: GameView, side: Side, known: Known) -> None:
        self.game, self.side, self.known = game, side, known
        self.level = game.current.level
        self.place = place_of(game)

    def move(self) -> PartysMove | ForcedMove | InTurn:
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
                return PostChunk(self.own_output().chunk(self.game.search.index))
            case Phase.PROVING, Level.OPERATOR:
                return ProveStore(*self.own_trace().store(self.game.search.index))
            case Phase.PROVING, Level.CHUNK:
                return self.prove_element()
            case Phase.PROVING, Level.PARTIAL:
                return self.prove_segment()
        raise AssertionError(f"nobody is due in phase {self.game.phase.name} at level {self.level.name}")

    # The searches.

    def bisect(self) -> Bisect:
        search, tree = self.game.search, self.own_tree()
        node = tree.node(search.height, search.index >> search.height)
        shown = next((one for one in self.known.rows or () if keccak(node + hash_of(one)) == search.due), None)
        if shown is None:
            raise _Missing(NeedRow())
        return descent(tree, search.height, search.index, shown)

    def open_and_bisect(self, opening: OpenLevel | OpenOperator | OpenPartials, tree: MerkleTree) -> Opening | InTurn:
        """Return an opening of the root of `tree`, with the first move of the search below if the other side has opened
        before: the side that opens last moves first. The move is left for later if that side's row cannot be had."""
        if self.game.deadlines[self.side.other] or not tree.depth:
            return opening
        if self.known.rows is None:
            raise _Missing(NeedRow())
        wanted = self.game.search.nodes[self.side.other]
        shown = next((one for one in self.known.rows if hash_of(one) == wanted), None)
        return opening if shown is None else InTurn((opening, descent(tree, tree.depth, 0, shown)))

    def row_of(self, tree: MerkleTree) -> Row:
        """Return the row of a root that is opened; only the first of the two sides shows it."""
        return row(tree, tree.depth, 0) if self.game.deadlines[self.side.other] else ()

    def own_tree(self) -> MerkleTree:
        """Return the tree that this side claims at the present level."""
        if self.level in (Level.CHECKPOINT, Level.STEP):
            return self.own_leaves().tree
        if self.level is Level.OPERATOR:
            return self.own_trace().tree
        return self.own_output().tree if self.level is Level.CHUNK else self.own_partials_tree()

    # The openings.

    def open_level(self) -> Opening | InTurn:
        index = self.game.search.index
        leaf = self.own_leaves().open(index, self.game.agreed)
        below = self.at((*self.place, index))
        assert isinstance(below, Leaves | Trace)
        leads_to = below.payloads[-1] if isinstance(below, Leaves) else below.state_root
        if leads_to != leaf.payload:
            raise _Lost(f"leaf {index} at level {self.level.name} does not follow from what is below it")
        opened = replace(below.as_next_root(), row=self.row_of(below.tree))
        return self.open_and_bisect(OpenLevel(self.side, leaf, opened), below.tree)

    def open_operator(self) -> Opening | InTurn:
        index = self.game.search.index
        output = self.output_at((*self.place, index))
        opening = OperatorOpening(
            descriptor=output.encoded,
            descriptor_proof=tuple(output.descriptor_proof),
            tensor_root=output.tree.root,
            row=self.row_of(output.tree),
        )
        if leaf_hash(opening.tensor_root) != self.game.search.nodes[self.side]:
            raise _Lost(f"the output of operator {index} is not the one that is claimed")
        return self.open_and_bisect(OpenOperator(self.side, opening), output.tree)

    def open_partials(self) -> Opening | InTurn:
        output, disputed = self.output_at(self.place[:3]), self.game.disputed
        running = output.running(disputed.element, disputed.claimed)
        opening = _partials_opening(output, running, self.row_of(running.tree))
        return self.open_and_bisect(OpenPartials(self.side, opening), running.tree)

    # The proofs.

    def prove_element(self) -> ProveElement | InTurn:
        output, search = self.own_output(), self.game.search
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
        return ProveElement(
            ElementProof(
                descriptor=output.encoded,
                chunk=chunk,
                position=position,
                operands=self.operands(output, material.roots),
                openings=opening_arguments(output.descriptor, material.openings),
            )
        )

    def dispute_sum(self, output: Output, element: int, chunk: bytes, position: int) -> InTurn:
        """Name a sum, and open its running results at once: nobody else can know yet which element it is."""
        width = output.descriptor.dtype.itemsize
        claimed = int.from_bytes(chunk[position * width : (position + 1) * width], "little")
        running = output.running(element, claimed)
        opening = _partials_opening(output, running, row(running.tree, running.tree.depth, 0))
        return InTurn((DisputeSum(output.encoded, chunk, position), OpenPartials(self.side, opening)))

    def prove_segment(self) -> ProveSegment:
        index, disputed = self.game.search.index, self.game.disputed
        tree = self.own_partials_tree()
        output = self.output_at(self.place[:3])
        running = output.running(disputed.element, disputed.claimed)
        material = output.segment(disputed.element, index)
        return ProveSegment(
            SegmentProof(
                descriptor=output.encoded,
                before=_partial(running.before(index)),
                before_proof=tuple(tree.proof(index - 1)) if index else (),
                operands=self.operands(output, material.roots),
                openings=opening_arguments(output.descriptor, material.openings),
            )
        )

    def operands(self, output: Output, roots: Mapping[int, bytes]) -> tuple[OperandRoot, ...]:
        """Return each operand's tensor root as an agreed leaf of the trace; once, and only if something of it is
        opened."""
        trace = self.trace_at(self.place[:2])
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

    def at(self, place: Place) -> Tree:
        tree = self.known.trees.get(place)
        if tree is None:
            raise _Missing(Need(place))
        return tree

    def own_leaves(self) -> Leaves:
        leaves = self.at(self.place)
        assert isinstance(leaves, Leaves)
        self.require_root(leaves.tree, "states at hand")
        return leaves

    def trace_at(self, place: Place) -> Trace:
        trace = self.at(place)
        assert isinstance(trace, Trace)
        return trace

    def own_trace(self) -> Trace:
        trace = self.trace_at(self.place)
        self.require_root(trace.tree, "step as it was executed")
        return trace

    def output_at(self, place: Place) -> Output:
        output = self.at(place)
        assert not isinstance(output, Leaves | Trace)
        return output

    def own_output(self) -> Output:
        output = self.output_at(self.place)
        self.require_root(output.tree, "output at hand")
        return output

    def own_partials_tree(self) -> MerkleTree:
        disputed = self.game.disputed
        tree = self.output_at(self.place[:3]).running(disputed.element, disputed.claimed).tree
        self.require_root(tree, "running results at hand")
        return tree

    def require_root(self, tree: MerkleTree, what: str) -> None:
        claimed = self.game.current
        if tree.count != claimed.leaf_count or tree.root != claimed.roots[self.side]:
            raise _Lost(f"the {self.side.name.lower()}'s root at level {self.level.name} is not over the {what}")


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
