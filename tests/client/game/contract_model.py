"""A second implementation of the game's rules, from `IVerificationGame.sol`, sharing no code with the strategy.

It knows one game only, keeps time by hand, and refuses with `Refused` what the contract refuses. What the contract's
adjudicator computes is computed by the engine's reference, from the opened chunks alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from roundlog.adjudication import Descriptor, DescriptorError, Family, decode_descriptor
from roundlog.adjudication.adjudicate import (
    Chunk,
    Step,
    Tree,
    adjudicate,
    decode,
    encode,
    finish,
    run_segment,
    segments,
)
from roundlog.adjudication.adjudicate import Outcome as Answer
from roundlog.adjudication.descriptor import REDUCTIONS
from roundlog.adjudication.partial import NoValueError, Partial, decode_partial, start
from roundlog.spec import TrainingSpec
from tiebreak.chain.records import (
    Children,
    Clock,
    ElementProof,
    ElementState,
    Game,
    LeafOpening,
    Level,
    LevelState,
    NextRoot,
    Opening,
    OperandRoot,
    OperatorOpening,
    OperatorState,
    Outcome,
    PartialsOpening,
    Phase,
    Reason,
    Search,
    SegmentProof,
    Side,
)

NONE = bytes(32)
NO_CHILDREN = Children(left=NONE, right=NONE)
PAD = sha256(b"\x02").digest()
TRAINER, CHALLENGER = "0x" + "11" * 20, "0x" + "22" * 20
CHUNK = 1024


class Refused(Exception):
    pass


def leaf(payload: bytes) -> bytes:
    return sha256(b"\x00" + payload).digest()


def join(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def depth(count: int) -> int:
    height = 0
    while 2**height < count:
        height += 1
    return height


def root_of(payloads: list[bytes]) -> bytes:
    row = [leaf(payload) for payload in payloads]
    row += [PAD] * (2 ** depth(len(row)) - len(row))
    while len(row) > 1:
        row = [join(row[i], row[i + 1]) for i in range(0, len(row), 2)]
    return row[0]


def climb(node: bytes, index: int, count: int, proof: Sequence[bytes]) -> tuple[bytes, Children]:
    if index >= count or len(proof) != depth(count):
        raise Refused("proof")
    children = NO_CHILDREN
    for bit, sibling in enumerate(proof):
        children = Children(left=sibling, right=node) if index >> bit & 1 else Children(left=node, right=sibling)
        node = join(children.left, children.right)
    return node, children


def require(root: bytes, payload: bytes, index: int, count: int, proof: Sequence[bytes]) -> None:
    if climb(leaf(payload), index, count, proof)[0] != root:
        raise Refused("proof")


class _Opened:
    """Chunks that were opened, each with its proof; the reference reads nothing else."""

    def __init__(self, model: ContractModel, descriptor: Descriptor, roots: list[bytes], opened: Sequence[Opening]):
        self.chunks: dict[Chunk, bytes] = {}
        spec, values = model.spec, [item.value for item in descriptor.inputs]
        keys = [(one.input, one.chunk) for one in opened]
        if keys != sorted(set(keys)):
            raise Refused("order")
        slot_root = None
        for one in opened:
            if descriptor.inputs:
                item = descriptor.inputs[one.input]
                if values.index(item.value) != one.input:
                    raise Refused("repeated operand")
                self._tensor(one, roots[one.input], item.nbytes)
                self.chunks[Chunk(Tree.VALUE, item.value, one.chunk)] = one.data
            elif descriptor.family == Family.STATE and one.input == 0:
                require(model.agreed, one.data, one.chunk, spec.state_count, one.proof)
                if one.chunk != descriptor.parameters[0] or len(one.data) != 32:
                    raise Refused("slot")
                slot_root = one.data
            elif descriptor.family == Family.STATE:
                assert slot_root is not None
                self._tensor(one, slot_root, descriptor.nbytes)
                self.chunks[Chunk(Tree.STATE, descriptor.parameters[0], one.chunk)] = one.data
            elif descriptor.family == Family.DATA:
                require(spec.data_root, one.data, one.chunk, spec.data_rows, one.proof)
                self.chunks[Chunk(Tree.ROW, one.chunk, 0)] = one.data
            elif descriptor.family == Family.SCHEDULE:
                self._tensor(one, spec.schedule_root, spec.steps * descriptor.parameters[1] * 4)
                self.chunks[Chunk(Tree.SCHEDULE, 0, one.chunk)] = one.data
            else:
                self._tensor(one, descriptor.root, descriptor.nbytes)
                self.chunks[Chunk(Tree.CONSTANT, 0, one.chunk)] = one.data

    @staticmethod
    def _tensor(one: Opening, root: bytes, nbytes: int) -> None:
        count = max(1, -(-nbytes // CHUNK))
        if len(one.data) != min(CHUNK, nbytes - one.chunk * CHUNK):
            raise Refused("chunk length")
        require(root, one.data, one.chunk, count, one.proof)

    def payload(self, chunk: Chunk) -> bytes:
        if chunk not in self.chunks:
            raise Refused(f"{chunk} is not opened")
        return self.chunks[chunk]


class ContractModel:
    """`roots` of level CHECKPOINT, by side. `trainer_last`: the trainer's payload of the last leaf and its proof, as in
    `commit`. `undecided`: functions are never decided."""

    def __init__(
        self,
        spec: TrainingSpec,
        roots: tuple[bytes, bytes],
        trainer_last: tuple[bytes, Sequence[bytes]],
        *,
        allowance: int = 100,
        referee_allowance: int = 50,
        undecided: bool = False,
    ) -> None:
        assert roots[0] != roots[1]
        self.spec, self.now, self.referee_allowance, self.undecided = spec, 1000, referee_allowance, undecided
        self.remaining, self.running = [allowance, allowance], [0, 0]
        self.phase, self.outcome, self.reason = Phase.NONE, Outcome.NONE, Reason.NONE
        self.agreed, self.referee_deadline, self.moves = spec.initial_state_root, 0, 0
        self.half = 2 ** max(depth(spec.operator_count), depth(spec.state_count))
        self.level = Level.CHECKPOINT
        self.path: list[int] = []
        self.roots: dict[Level, list[bytes]] = {level: [NONE, NONE] for level in Level}
        self.payloads = [NONE, NONE]
        self.operator = OperatorState(descriptor_hash=NONE, width=0, elements=0, chunks=0, segments=0)
        self.descriptor = b""
        self.disputed = ElementState(known=False, element=0, claimed=0)
        self.posted: bytes | None = None
        payload, proof = trainer_last
        computed, self.revealed = climb(
            leaf(payload), self.count(Level.CHECKPOINT) - 1, self.count(Level.CHECKPOINT), proof
        )
        assert computed == roots[0]
        self.roots[Level.CHECKPOINT] = list(roots)
        self._begin(Level.CHECKPOINT)

    def count(self, level: Level) -> int:
        spec = self.spec
        counts = (spec.steps // spec.interval, spec.interval, self.half + spec.state_count)
        return (*counts, self.operator.chunks, self.operator.segments)[level]

    # The course.

    def _begin(self, level: Level) -> None:
        if level > self.level and level is not Level.PARTIAL:
            self.path.append(self.index)
        self.level = level
        self.nodes, self.height, self.index = list(self.roots[level]), depth(self.count(level)), 0
        self.turn = Side.CHALLENGER
        if self.height == 0:
            self._leaf_found()
        else:
            self.phase = Phase.BISECTION
            self.running[Side.CHALLENGER] = self.now

    def _leaf_found(self) -> None:
        gap = self.level is Level.OPERATOR and self.spec.operator_count <= self.index < self.half
        if gap or self.index >= self.count(self.level):
            right = [node == PAD for node in self.nodes]
            self._end(
                Outcome.TRAINER_WON if right[0] else Outcome.CHALLENGER_WON if right[1] else Outcome.BOTH_LOST,
                Reason.PADDING,
            )
        elif self.level is Level.CHUNK:
            self.phase = Phase.POSTING
            self.running[Side.TRAINER] = self.now
        elif self.level is Level.PARTIAL or (self.level is Level.OPERATOR and self.index >= self.half):
            self._prove()
        else:
            self._open()

    def _open(self) -> None:
        self.phase = Phase.OPENING
        self.running = [self.now, self.now]

    def _prove(self) -> None:
        self.phase = Phase.PROVING
        self.running[Side.CHALLENGER] = self.now

    def _stop(self, side: Side) -> None:
        if not self.running[side] or self.now > self.running[side] + self.remaining[side]:
            raise Refused("clock")
        self.remaining[side] -= self.now - self.running[side]
        self.running[side] = 0
        self.moves += 1

    def _due(self, phase: Phase, *levels: Level) -> None:
        if self.phase is not phase or (levels and self.level not in levels):
            raise Refused("phase")

    def bisect(self, opened: Children, next: Children) -> None:
        self._due(Phase.BISECTION)
        mover = self.turn
        if join(opened.left, opened.right) != self.nodes[mover]:
            raise Refused("children")
        left = opened.left != self.revealed.left
        mine, theirs = (opened.left, self.revealed.left) if left else (opened.right, self.revealed.right)
        if self.height > 1 and join(next.left, next.right) != mine:
            raise Refused("children")
        if self.height == 1 and next != NO_CHILDREN:
            raise Refused("leaf")
        self._stop(mover)
        self.height -= 1
        self.index += 0 if left else 2**self.height
        self.nodes[mover], self.nodes[1 - mover] = mine, theirs
        self.revealed, self.turn = next, Side(1 - mover)
        if self.height == 0:
            self._leaf_found()
        else:
            self.running[self.turn] = self.now

    # The openings.

    def _opened(self, side: Side, root: bytes, children: Children) -> None:
        below = self.level if self.level is Level.PARTIAL else Level(self.level + 1)
        self.roots[below][side] = root
        if side is Side.TRAINER:
            self.revealed = children
        if self.running == [0, 0]:
            self._begin(below)

    def open_level(self, side: Side, opening: LeafOpening, next: NextRoot) -> None:
        self._due(Phase.OPENING, Level.CHECKPOINT, Level.STEP)
        if leaf(opening.payload) != self.nodes[side]:
            raise Refused("payload")
        agreed = opening.agreed
        if self.index == 0:
            if agreed != self.agreed or opening.agreed_proof:
                raise Refused("agreed")
        else:
            require(self.roots[self.level][side], agreed, self.index - 1, self.count(self.level), opening.agreed_proof)
        if self.level is Level.CHECKPOINT:
            count = self.spec.interval
            root, children = climb(leaf(opening.payload), count - 1, count, next.last_leaf_proof)
            if root != next.root:
                raise Refused("next root")
        else:
            if next.last_leaf_proof:
                raise Refused("next root")
            state, padding = opening.payload, PAD
            for height in range(depth(self.half)):
                if height >= depth(self.spec.state_count):
                    state = join(state, padding)
                padding = join(padding, padding)
            children = Children(left=next.root, right=state)
            root = join(next.root, state)
        self._stop(side)
        self.agreed = agreed
        self._opened(side, root, children)

    def open_operator(self, side: Side, opening: OperatorOpening) -> None:
        self._due(Phase.OPENING, Level.OPERATOR)
        if leaf(opening.tensor_root) != self.nodes[side]:
            raise Refused("payload")
        operator, encoded = self.operator, self.descriptor
        if self.running[side.other]:
            encoded = opening.descriptor
            require(self.spec.program_root, encoded, self.index, self.spec.operator_count, opening.descriptor_proof)
            try:
                d = decode_descriptor(encoded)
            except DescriptorError as error:
                raise Refused("descriptor") from error
            operator = OperatorState(
                descriptor_hash=sha256(encoded).digest(),
                width=d.dtype.itemsize,
                elements=d.elements,
                chunks=max(1, -(-d.nbytes // CHUNK)),
                segments=len(segments(d)) if d.family in REDUCTIONS else 0,
            )
        if operator.chunks == 1:
            if opening.children != NO_CHILDREN:
                raise Refused("children")
        elif join(opening.children.left, opening.children.right) != opening.tensor_root:
            raise Refused("children")
        self._stop(side)
        self.operator, self.descriptor = operator, encoded
        self._opened(side, opening.tensor_root, opening.children)

    def open_partials(self, side: Side, opening: PartialsOpening) -> None:
        self._due(Phase.OPENING, Level.PARTIAL)
        d = self._descriptor(opening.descriptor)
        last = b"".join(opening.last.words)
        answer = finish(d, self._partial(d, last), self.spec.rounding_bits)
        if (answer == self._claimed(d)) != (side is Side.TRAINER):
            raise Refused("last")
        root, children = climb(leaf(last), self.operator.segments - 1, self.operator.segments, opening.last_leaf_proof)
        if root != opening.root:
            raise Refused("root")
        self._stop(side)
        self._opened(side, root, children)

    # The proofs.

    def prove_store(self, payload: bytes, proof: Sequence[bytes]) -> None:
        self._due(Phase.PROVING, Level.OPERATOR)
        store = self.spec.operator_count - self.spec.state_count + self.index - self.half
        require(self.roots[Level.OPERATOR][Side.CHALLENGER], payload, store, self.count(Level.OPERATOR), proof)
        self._stop(Side.CHALLENGER)
        self._verdict(leaf(payload) == self.nodes[Side.TRAINER])

    def post_chunk(self, chunk: bytes) -> None:
        self._due(Phase.POSTING)
        self._require_chunk(chunk)
        self._stop(Side.TRAINER)
        self.posted = chunk
        self._prove()

    def prove_element(self, proof: ElementProof) -> None:
        self._due(Phase.PROVING, Level.CHUNK)
        if self.operator.segments > 1:
            raise Refused("segments")
        d = self._descriptor(proof.descriptor)
        element, claimed = self._element_in(proof.chunk, proof.position)
        opened = _Opened(self, d, self._operand_roots(d, proof.operands), proof.openings)
        answer = adjudicate(d, element, self._step(), opened)
        if self.undecided and d.family == Family.FUNCTION:
            answer = Answer.UNDECIDED
        if answer is Answer.UNDECIDED:
            self._stop(Side.CHALLENGER)
            self.disputed = ElementState(known=True, element=element, claimed=claimed)
            self.phase, self.referee_deadline = Phase.REFEREE, self.now + self.referee_allowance
            return
        if not isinstance(answer, Answer) and encode(d.dtype, answer) == claimed.to_bytes(d.dtype.itemsize, "little"):
            raise Refused("the element is right")
        self._stop(Side.CHALLENGER)
        self._verdict(False)

    def dispute_sum(self, descriptor: bytes, chunk: bytes, position: int) -> None:
        self._due(Phase.PROVING, Level.CHUNK)
        if self.operator.segments < 2:
            raise Refused("segments")
        self._descriptor(descriptor)
        element, claimed = self._element_in(chunk, position)
        self._stop(Side.CHALLENGER)
        self.disputed = ElementState(known=True, element=element, claimed=claimed)
        self.path.append(self.index)
        self.level = Level.PARTIAL
        self._open()

    def prove_segment(self, proof: SegmentProof) -> None:
        self._due(Phase.PROVING, Level.PARTIAL)
        d, before = self._descriptor(proof.descriptor), b"".join(proof.before.words)
        if self.index == 0:
            if before != bytes(96) or proof.before_proof:
                raise Refused("before")
            partial = start(d)
        else:
            count = self.operator.segments
            require(self.roots[Level.PARTIAL][Side.CHALLENGER], before, self.index - 1, count, proof.before_proof)
            partial = self._partial(d, before)
        opened = _Opened(self, d, self._operand_roots(d, proof.operands), proof.openings)
        try:
            after = run_segment(d, self.disputed.element, partial, segments(d)[self.index], opened)
            right = leaf(after.encode()) == self.nodes[Side.TRAINER]
        except NoValueError:
            right = False
        self._stop(Side.CHALLENGER)
        self._verdict(right)

    def adjudicate(self, bits: int) -> None:
        if self.phase is not Phase.REFEREE or self.now > self.referee_deadline:
            raise Refused("phase")
        right = bits == self.disputed.claimed
        self._end(Outcome.TRAINER_WON if right else Outcome.CHALLENGER_WON, Reason.VERDICT)

    def claim_timeout(self) -> None:
        if self.phase is Phase.REFEREE:
            if self.now <= self.referee_deadline:
                raise Refused("early")
            self._end(Outcome.UNDECIDED, Reason.TIMEOUT)
        elif self.phase is Phase.OVER:
            raise Refused("phase")
        else:
            if any(self.running[s] and self.now <= self.running[s] + self.remaining[s] for s in Side):
                raise Refused("early")
            waiting = [not self.running[s] for s in Side]
            self._end(
                Outcome.TRAINER_WON if waiting[0] else Outcome.CHALLENGER_WON if waiting[1] else Outcome.BOTH_LOST,
                Reason.TIMEOUT,
            )

    # What the proofs are held against.

    def _step(self) -> Step:
        return Step.of(self.spec, self.path[0] * self.spec.interval + self.path[1])

    def _descriptor(self, encoded: bytes) -> Descriptor:
        if sha256(encoded).digest() != self.operator.descriptor_hash:
            raise Refused("descriptor")
        return decode_descriptor(encoded)

    def _partial(self, d: Descriptor, data: bytes) -> Partial:
        try:
            return decode_partial(d, data)
        except DescriptorError as error:
            raise Refused("partial") from error

    def _claimed(self, d: Descriptor) -> int:
        return decode(d.dtype, self.disputed.claimed.to_bytes(d.dtype.itemsize, "little"))

    def _require_chunk(self, chunk: bytes) -> None:
        nbytes = self.operator.elements * self.operator.width
        if len(chunk) != min(CHUNK, nbytes - self.index * CHUNK) or leaf(chunk) != self.nodes[Side.TRAINER]:
            raise Refused("chunk")

    def _element_in(self, chunk: bytes, position: int) -> tuple[int, int]:
        self._require_chunk(chunk)
        width = self.operator.width
        if not 0 <= position < len(chunk) // width:
            raise Refused("position")
        bits = int.from_bytes(chunk[position * width : (position + 1) * width], "little")
        return self.index * CHUNK // width + position, bits

    def _operand_roots(self, d: Descriptor, given: Sequence[OperandRoot]) -> list[bytes]:
        if len(given) != len(d.inputs):
            raise Refused("operands")
        for item, one in zip(d.inputs, given, strict=True):
            if item.value >= self.path[2]:
                raise Refused("not before")
            if one.root != NONE or one.proof:
                trace = self.roots[Level.OPERATOR][Side.CHALLENGER]
                require(trace, one.root, item.value, self.count(Level.OPERATOR), one.proof)
        return [one.root for one in given]

    def _verdict(self, trainer_is_right: bool) -> None:
        self._end(Outcome.TRAINER_WON if trainer_is_right else Outcome.CHALLENGER_WON, Reason.PROOF)

    def _end(self, outcome: Outcome, reason: Reason) -> None:
        self.phase, self.outcome, self.reason, self.running = Phase.OVER, outcome, reason, [0, 0]

    def view(self) -> Game:
        deadlines = [self.running[s] + self.remaining[s] if self.running[s] else 0 for s in Side]
        search = Search(
            nodes=(self.nodes[0], self.nodes[1]),
            revealed=self.revealed if self.height else NO_CHILDREN,
            index=self.index,
            height=self.height,
            turn=self.turn,
        )
        if self.level is Level.PARTIAL and self.phase is Phase.OPENING:
            search = Search(nodes=(NONE, NONE), revealed=NO_CHILDREN, index=0, height=0, turn=Side.TRAINER)
        return Game(
            job=1,
            trainer=TRAINER,  # type: ignore[arg-type]
            challenger=CHALLENGER,  # type: ignore[arg-type]
            phase=self.phase,
            outcome=self.outcome,
            reason=self.reason,
            trainer_bond=1,
            challenger_bond=1,
            bond_held=self.phase is not Phase.OVER,
            clocks=(
                Clock(remaining=self.remaining[0], started_at=self.running[0]),
                Clock(remaining=self.remaining[1], started_at=self.running[1]),
            ),
            deadlines=(deadlines[0], deadlines[1]),
            referee_deadline=self.referee_deadline,
            started_at=1000,
            agreed=self.agreed,
            search=search,
            levels=tuple(
                LevelState(
                    level=level,
                    leaf_count=self.count(level),
                    roots=(self.roots[level][0], self.roots[level][1]),
                    index=search.index if level is self.level else self.path[level],
                )
                for level in Level
                if level <= self.level
            ),
            operator=self.operator,
            disputed=self.disputed,
        )
