"""Answers of the adjudicator about tensors that lie in memory, opened as the reference opens them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roundlog.adjudication import openings as opened
from roundlog.adjudication.adjudicate import Answer, Chunk, DisputedStep, NoAnswer, Tree, finish, segments
from roundlog.adjudication.partial import RunningResult, start
from roundlog.commitments import CHUNK_SIZE, MerkleTree
from roundlog.descriptors import Descriptor, encode_descriptor
from roundlog.descriptors.descriptor import REDUCTIONS
from roundlog.program import DType

VALUE, STOPS, UNDECIDED = range(3)

STEPS = 9


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Everything that an operator may read, as bytes. Implements `Chunks`. values: outputs by value number; fields: of
    the data set; schedule: f32[STEPS, columns]; constant: the operator's own literals."""

    values: Mapping[int, bytes] = field(default_factory=dict)
    states: Sequence[bytes] = (b"",)
    fields: Sequence[bytes] = (b"",)
    schedule: bytes = b""
    constant: bytes = b""

    def data(self, chunk: Chunk) -> bytes:
        if chunk.tree == Tree.VALUE:
            return self.values[chunk.tensor]
        if chunk.tree == Tree.STATE:
            return self.states[chunk.tensor]
        if chunk.tree == Tree.FIELD:
            return self.fields[chunk.tensor]
        return self.schedule if chunk.tree == Tree.SCHEDULE else self.constant

    def payload(self, chunk: Chunk) -> bytes:
        return chunks_of(self.data(chunk))[chunk.index]

    def openings(self, descriptor: Descriptor, chunks: Sequence[Chunk]) -> list[tuple[int, int, bytes, list[bytes]]]:
        """The contract's argument."""
        values = [item.value for item in descriptor.inputs]
        arguments = []
        for chunk in chunks:
            place = 0
            if chunk.tree == Tree.VALUE:
                place = values.index(chunk.tensor)
            elif chunk.tree in (Tree.STATE, Tree.FIELD):
                roots = [tree_of(one).root for one in (self.states if chunk.tree == Tree.STATE else self.fields)]
                arguments.append((0, chunk.tensor, roots[chunk.tensor], MerkleTree(roots).proof(chunk.tensor)))
                place = 1
            proof = tree_of(self.data(chunk)).proof(chunk.index)
            arguments.append((place, chunk.index, self.payload(chunk), proof))
        return sorted(arguments, key=lambda argument: argument[:2])


def chunks_of(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK_SIZE] for at in range(0, max(len(data), 1), CHUNK_SIZE)]


def tree_of(data: bytes) -> MerkleTree:
    return MerkleTree(chunks_of(data))


def setting(memory: Memory, step: DisputedStep) -> tuple[Any, ...]:
    """The struct Setting."""
    roots = [tree_of(state).root for state in memory.states]
    data_root = MerkleTree([tree_of(one).root for one in memory.fields]).root
    spec = (
        *(STEPS, 1, b"p" * 32, 1, b"i" * 32, len(memory.states)),
        *(data_root, step.data_rows, step.batch_size, tree_of(memory.schedule).root, step.seed),
        *(CHUNK_SIZE, 0, step.rounding_bits, 4, 1, "0x" + "11" * 20, "0x" + "22" * 20),
    )
    return spec, step.step, MerkleTree(roots).root


def words(partial: RunningResult) -> tuple[list[bytes]]:
    encoded = partial.encode()
    return ([encoded[at : at + 32] for at in (0, 32, 64)],)


def answer_of(finding: int, bits: int, descriptor: Descriptor) -> Answer:
    """The contract's answer as the reference gives it."""
    if finding != VALUE:
        return NoAnswer.NO_VALUE if finding == STOPS else NoAnswer.UNDECIDED
    return bits - (1 << 64) if descriptor.dtype == DType.I64 and bits >> 63 else bits


def compare(adjudicator: Any, descriptor: Descriptor, element: int, step: DisputedStep, memory: Memory) -> Answer:
    """Asks both, the contract with exactly those chunks that the reference has read; every running result of a long
    reduction is compared. Returns the reference's answer."""
    calls = adjudicator.functions
    roots = [tree_of(memory.values[item.value]).root for item in descriptor.inputs]
    question = encode_descriptor(descriptor), roots, element
    told = setting(memory, step)
    if descriptor.family not in REDUCTIONS or len(segments(descriptor)) == 1:
        expected, chunks = opened.openings(descriptor, element, step, memory)
        found = calls.compute(told, question, memory.openings(descriptor, chunks)).call()
        assert answer_of(*found, descriptor) == expected, (descriptor, element, found, expected)
        return expected
    partial = start(descriptor)
    for segment in range(len(segments(descriptor))):
        after, chunks = opened.segment_openings(descriptor, element, partial, segment, memory)
        arguments = memory.openings(descriptor, chunks)
        finding, result = calls.reduceSegment(told, question, segment, words(partial), arguments).call()
        assert (finding, result) == (VALUE, words(after)), (descriptor, element, segment)
        partial = after
    expected = finish(descriptor, partial, step.f32_format)
    found = calls.finish(question[0], words(partial), step.rounding_bits).call()
    assert answer_of(*found, descriptor) == expected, (descriptor, element, found, expected)
    return expected
