"""A second implementation of the game's rules, from `IVerificationGame.sol`, sharing no code with the strategy.

It knows one game only, keeps time by hand, and refuses with `Refused` what the contract refuses. What the contract's
adjudicator computes is computed by the engine's reference, from the opened chunks alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from roundlog.adjudication.adjudicate import (
    Chunk,
    DisputedStep,
    NoAnswer,
    Tree,
    adjudicate,
    decode,
    encode,
    finish,
    run_segment,
    segments,
)
from roundlog.adjudication.partial import RunningResult, decode_partial, start
from roundlog.descriptors import Descriptor, DescriptorError, Family, decode_descriptor
from roundlog.descriptors.descriptor import REDUCTIONS
from roundlog.program import Stored
from tiebreak.contract.enums import Level, Outcome, Phase, Reason, Side
from tiebreak.contract.structs import (
    ChunkOpening,
    ElementProof,
    ElementView,
    LeafOpening,
    NextRoot,
    OperandRoot,
    OperatorOpening,
    OperatorView,
    PartialsOpening,
    SegmentProof,
)

from tests.client.game.model_course import Transitions
from tests.client.game.model_trees import NONE, PAD, Refused, climb, depth, join, leaf, require

CHUNK = 1024


class _Opened:
    """Chunks that were opened, each with its proof; the reference reads nothing else."""

    def __init__(
        self, model: ContractModel, descriptor: Descriptor, roots: list[bytes], opened: Sequence[ChunkOpening]
    ):
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
            elif descriptor.family == Family.DATA and one.input == 0:
                require(spec.data_root, one.data, one.chunk, descriptor.parameters[1], one.proof)
                if one.chunk != descriptor.parameters[0] or len(one.data) != 32:
                    raise Refused("field")
                slot_root = one.data
            elif descriptor.family == Family.DATA:
                assert slot_root is not None
                field, _, items, stride = descriptor.parameters
                size = ((spec.data_rows - 1) * stride + items) * Stored(descriptor.code).width(descriptor.dtype)
                self._tensor(one, slot_root, size)
                self.chunks[Chunk(Tree.FIELD, field, one.chunk)] = one.data
            elif descriptor.family == Family.SCHEDULE:
                self._tensor(one, spec.schedule_root, spec.steps * descriptor.parameters[1] * 4)
                self.chunks[Chunk(Tree.SCHEDULE, 0, one.chunk)] = one.data
            else:
                self._tensor(one, descriptor.root, descriptor.nbytes)
                self.chunks[Chunk(Tree.CONSTANT, 0, one.chunk)] = one.data

    @staticmethod
    def _tensor(one: ChunkOpening, root: bytes, nbytes: int) -> None:
        count = max(1, -(-nbytes // CHUNK))
        if len(one.data) != min(CHUNK, nbytes - one.chunk * CHUNK):
            raise Refused("chunk length")
        require(root, one.data, one.chunk, count, one.proof)

    def payload(self, chunk: Chunk) -> bytes:
        if chunk not in self.chunks:
            raise Refused(f"{chunk} is not opened")
        return self.chunks[chunk]


class ContractModel(Transitions):
    """The course, and what the parties open and prove in it."""

    # The openings.

    def _opened(self, side: Side, root: bytes, row: tuple[bytes, ...]) -> None:
        below = self.level if self.level is Level.PARTIAL else Level(self.level + 1)
        if self.running[side.other]:
            self.show(root, depth(self.count(below)), row)
        self._stop(side)
        self.roots[below][side] = root
        if self.running == [0, 0]:
            self._begin(below, side)

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
            root = climb(leaf(opening.payload), count - 1, count, next.last_leaf_proof)
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
            root = join(next.root, state)
        self._opened(side, root, next.row)
        self.agreed = agreed

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
            operator = OperatorView(
                descriptor_hash=sha256(encoded).digest(),
                width=d.dtype.itemsize,
                elements=d.elements,
                chunks=max(1, -(-d.nbytes // CHUNK)),
                segments=len(segments(d)) if d.family in REDUCTIONS else 0,
            )
        before, self.operator, self.descriptor = (self.operator, self.descriptor), operator, encoded
        try:
            self._opened(side, opening.tensor_root, opening.row)
        except Refused:
            self.operator, self.descriptor = before
            raise

    def open_partials(self, side: Side, opening: PartialsOpening) -> None:
        self._due(Phase.OPENING, Level.PARTIAL)
        d = self._descriptor(opening.descriptor)
        last = b"".join(opening.last.words)
        answer = finish(d, self._partial(d, last), self.spec.f32_format)
        if (answer == self._claimed(d)) != (side is Side.TRAINER):
            raise Refused("last")
        root = climb(leaf(last), self.operator.segments - 1, self.operator.segments, opening.last_leaf_proof)
        if root != opening.root:
            raise Refused("root")
        self._opened(side, root, opening.row)

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
            answer = NoAnswer.UNDECIDED
        if answer is NoAnswer.UNDECIDED:
            self._stop(Side.CHALLENGER)
            self.disputed = ElementView(known=True, element=element, claimed=claimed)
            self.phase, self.referee_deadline = Phase.REFEREE, self.now + self.referee_allowance
            return
        if not isinstance(answer, NoAnswer) and encode(d.dtype, answer) == claimed.to_bytes(d.dtype.itemsize, "little"):
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
        self.disputed = ElementView(known=True, element=element, claimed=claimed)
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
        after = run_segment(d, self.disputed.element, partial, segments(d)[self.index], opened)
        self._stop(Side.CHALLENGER)
        self._verdict(leaf(after.encode()) == self.nodes[Side.TRAINER])

    def _verdict(self, trainer_is_right: bool) -> None:
        self._end(Outcome.TRAINER_WON if trainer_is_right else Outcome.CHALLENGER_WON, Reason.PROOF)

    # Roots that the proofs are held against.

    def _step(self) -> DisputedStep:
        return DisputedStep.of(self.spec, self.path[0] * self.spec.interval + self.path[1])

    def _descriptor(self, encoded: bytes) -> Descriptor:
        if sha256(encoded).digest() != self.operator.descriptor_hash:
            raise Refused("descriptor")
        return decode_descriptor(encoded)

    def _partial(self, d: Descriptor, data: bytes) -> RunningResult:
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
