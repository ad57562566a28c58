"""Openings: the chunks that an element depends on, and the proofs that lead from them to agreed roots; and the most
bytes of a proof, since one that does not fit a transaction cannot be shown to a contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from roundlog.adjudication.adjudicate import (
    Answer,
    Chunk,
    Chunks,
    DisputedStep,
    Tree,
    adjudicate,
    run_segment,
    segments,
)
from roundlog.adjudication.partial import RunningResult, start
from roundlog.commitments import (
    CHUNK_SIZE,
    MerkleTree,
    depth_of,
    state_tree,
    tensor_bytes,
    tensor_tree,
    verify,
)
from roundlog.commitments.tensor_roots import Tensor
from roundlog.data import Field, data_tree, summarised
from roundlog.definitions import Family
from roundlog.descriptors.describe import chunks_read, describe, leaves
from roundlog.descriptors.descriptor import REDUCTIONS, Descriptor, encode_descriptor
from roundlog.descriptors.descriptor_rules import literal_array
from roundlog.program import DType, Program, Stored
from roundlog.spec import TrainingSpec


def needed(program: Program, q: int) -> set[int]:
    """The values whose tensors are needed to dispute operator q: its inputs and its own."""
    return {q, *program.nodes[q].inputs}


@dataclass(kw_only=True, slots=True)
class Material:
    """Tensors that the openings of one operator are cut from. Implements `Chunks`.

    values: outputs by value number, at least the operator's inputs. states: state before the step, in program order.
    dataset: fields in program order. schedule: f32[steps, columns]. literals: of a CONSTANT operator."""

    values: Mapping[int, torch.Tensor]
    states: Sequence[torch.Tensor]
    dataset: Sequence[Field]
    schedule: torch.Tensor
    literals: tuple[DType, tuple[int, ...]] | None = None
    _bytes: dict[tuple[Tree, int], memoryview] = field(default_factory=dict, init=False)
    """Bytes of the tensors that were read, so that each is looked at as a whole only once."""

    @staticmethod
    def of(
        program: Program,
        q: int,
        *,
        values: Mapping[int, torch.Tensor],
        states: Sequence[torch.Tensor],
        dataset: Sequence[Field],
        schedule: torch.Tensor,
    ) -> Material:
        """The material for operator q of a program."""
        node = program.nodes[q]
        bits = node.attributes.get("bits")
        literals = (node.type.dtype, bits) if isinstance(bits, tuple) else None
        return Material(values=values, states=states, dataset=dataset, schedule=schedule, literals=literals)

    def payload(self, chunk: Chunk) -> bytes:
        """Raises KeyError for a value that is not at hand, IndexError for a chunk that there is not, StorageError for
        data that cannot be read or have changed."""
        first = chunk.index * CHUNK_SIZE
        if chunk.tree == Tree.FIELD:
            own = self.dataset[chunk.tensor]
            if not first < max(own.nbytes, 1):
                raise IndexError(f"a field of {own.nbytes} bytes has no chunk {chunk.index}")
            return bytes(own.part(first, min(CHUNK_SIZE, own.nbytes - first)))
        data = self.whole(chunk.tree, chunk.tensor)
        if not first < max(len(data), 1):
            raise IndexError(f"a tensor of {len(data)} bytes has no chunk {chunk.index}")
        return bytes(data[first : first + CHUNK_SIZE])

    def whole(self, tree: Tree, tensor: int) -> memoryview:
        """All bytes of a tensor (of any tree but FIELD). Raises KeyError for a value that is not at hand."""
        if (tree, tensor) not in self._bytes:
            self._bytes[tree, tensor] = tensor_bytes(self.tensor(Chunk(tree, tensor, 0)))
        return self._bytes[tree, tensor]

    def tensor(self, chunk: Chunk) -> Tensor:
        """The tensor that a chunk (of any tree but FIELD) belongs to."""
        if chunk.tree == Tree.VALUE:
            return self.values[chunk.tensor]
        if chunk.tree == Tree.STATE:
            return self.states[chunk.tensor]
        if chunk.tree == Tree.SCHEDULE:
            return self.schedule
        assert self.literals is not None
        return literal_array(*self.literals)


@dataclass(slots=True)
class ReadRecorder:
    """Passes chunks on and notes which."""

    chunks: Chunks
    seen: set[Chunk] = field(default_factory=set)

    def payload(self, chunk: Chunk) -> bytes:
        self.seen.add(chunk)
        return self.chunks.payload(chunk)


def openings(descriptor: Descriptor, element: int, step: DisputedStep, material: Chunks) -> tuple[Answer, list[Chunk]]:
    """(the element, the chunks that it depends on in ascending order). Raises as `adjudicate`."""
    recorder = ReadRecorder(material)
    return adjudicate(descriptor, element, step, recorder), sorted(recorder.seen)


def segment_openings(
    descriptor: Descriptor, element: int, partial: RunningResult, segment: int, material: Chunks
) -> tuple[RunningResult, list[Chunk]]:
    """(the running result after a segment, the chunks that it depends on). Raises as `run_segment`."""
    recorder, terms = ReadRecorder(material), segments(descriptor)[segment]
    return run_segment(descriptor, element, partial, terms, recorder), sorted(recorder.seen)


def running_results(descriptor: Descriptor, element: int, material: Chunks) -> list[RunningResult]:
    """The running result after every segment of an element's reduction. Raises as `run_segment`."""
    assert descriptor.family in REDUCTIONS
    results = []
    partial = start(descriptor)
    for terms in segments(descriptor):
        partial = run_segment(descriptor, element, partial, terms, material)
        results.append(partial)
    return results


def partial_tree(results: Sequence[RunningResult]) -> MerkleTree:
    """The tree of a long reduction, made only when it is disputed: leaf j is the running result after segment j."""
    return MerkleTree(result.encode() for result in results)


@dataclass(frozen=True, slots=True)
class OperandOpening:
    """A chunk with its way up: siblings to its tensor root, and from that of a STATE or a FIELD to the state root or
    the data root. That an operand's tensor root is in the trace is proven once for the operand, not for its chunks."""

    chunk: Chunk
    payload: bytes
    siblings: list[bytes]
    tensor_root: bytes
    above: list[bytes]

    def holds(self, *, root: bytes, leaves: int, tensors: int = 0) -> bool:
        """Whether it leads to `root` by a tree of `leaves` chunks; a STATE or a FIELD to the root over `tensors` slots
        or fields."""
        if not verify(self.tensor_root, self.payload, self.chunk.index, leaves, self.siblings):
            return False
        if self.chunk.tree in (Tree.STATE, Tree.FIELD):
            return verify(root, self.tensor_root, self.chunk.tensor, tensors, self.above)
        return self.tensor_root == root and not self.above


def prove(chunks: Sequence[Chunk], material: Material) -> list[OperandOpening]:
    """Openings with proofs. Every tensor is hashed once; of a field, the block that a chunk lies in. Raises as
    `Material.payload`."""
    trees: dict[tuple[Tree, int], MerkleTree] = {}
    states: MerkleTree | None = None
    result = []
    for chunk in chunks:
        if chunk.tree == Tree.FIELD:
            own = material.dataset[chunk.tensor]
            tree_of_field = summarised(own).tree
            siblings = tree_of_field.proof(chunk.index, own.part)
            up = data_tree(material.dataset).proof(chunk.tensor)
            result.append(OperandOpening(chunk, material.payload(chunk), siblings, tree_of_field.root, up))
            continue
        key = (chunk.tree, chunk.tensor)
        if key not in trees:
            trees[key] = tensor_tree(material.tensor(chunk))
        tree = trees[key]
        above: list[bytes] = []
        if chunk.tree == Tree.STATE:
            states = states or state_tree(material.states)
            above = states.proof(chunk.tensor)
        result.append(OperandOpening(chunk, material.payload(chunk), tree.proof(chunk.index), tree.root, above))
    return result


_WORD = 32
_OPENING_WORDS = 8
"""Bytes of an opening beside its data and its siblings: its numbers, and the lengths of its lists."""
_FIXED_BYTES = 2 * CHUNK_SIZE
"""The trainer's chunk, and the numbers around it."""


def largest_proof(program: Program, spec: TrainingSpec) -> tuple[int, int]:
    """(bytes, operator): an upper bound of the call data with which any element of any operator, or one segment of its
    terms, is proven, and the operator that takes so much."""
    return max((_proof(describe(program, q), spec), q) for q in range(len(program.nodes)))


def _proof(descriptor: Descriptor, spec: TrainingSpec) -> int:
    trace = depth_of(spec.operator_count) + depth_of(spec.state_count) + 1
    operands = len(descriptor.inputs) * (4 + trace) * _WORD
    return _FIXED_BYTES + len(encode_descriptor(descriptor)) + operands + _openings(descriptor, spec)


def _openings(descriptor: Descriptor, spec: TrainingSpec) -> int:
    d = descriptor
    if d.family == Family.DATA:
        _, fields, items, stride = d.parameters
        size = ((spec.data_rows - 1) * stride + items) * Stored(d.code).width(d.dtype)
        return _opening(CHUNK_SIZE, size // CHUNK_SIZE + 1) + _opening(_WORD, fields)
    if not d.inputs:
        schedule = spec.steps * (d.parameters[1] * 4 if d.family == Family.SCHEDULE else 0)
        chunks = max(d.nbytes, schedule) // CHUNK_SIZE + 1
        return _opening(CHUNK_SIZE, chunks) + _opening(_WORD, spec.state_count)
    terms = min(d.terms, d.segment) if d.family in REDUCTIONS else 1
    return sum(chunks_read(d, item, terms) * _opening(CHUNK_SIZE, leaves(item)) for item in d.inputs)


def _opening(data: int, count: int) -> int:
    """A leaf of that many bytes of a tree of `count` leaves."""
    return data + (_OPENING_WORDS + depth_of(count)) * _WORD
