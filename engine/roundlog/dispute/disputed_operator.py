"""One operator of one step, with everything that a party opens of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from roundlog.adjudication.adjudicate import (
    Answer,
    DisputedStep,
    Tree,
    adjudicate,
    finish,
    run_segment,
    segments,
)
from roundlog.adjudication.openings import Material, OperandOpening, ReadRecorder, openings, prove
from roundlog.adjudication.partial import start
from roundlog.commitments import CHUNK_SIZE, MerkleTree, tensor_bytes, tensor_tree
from roundlog.descriptors import Family, describe, encode_descriptor, program_tree
from roundlog.dispute.partial_results import RunningResults, running_results, running_sums
from roundlog.dispute.step_trace import claimed_tree, right_bytes
from roundlog.training.fabricated_values import FabricatedValues, Stop
from roundlog.training.job import Job


@dataclass(frozen=True, slots=True)
class ElementMaterial:
    """Openings that decide one element, or one segment of its terms."""

    openings: list[OperandOpening]
    """Openings with proofs up to the tensor roots; of loads, up to the roots in the spec or the agreed state."""
    answer: Answer | None = None
    """Value of the element; None for a segment."""

    @property
    def roots(self) -> dict[int, bytes]:
        """Tensor roots of the operands that have something opened, by value number."""
        return {o.chunk.tensor: o.tensor_root for o in self.openings if o.chunk.tree == Tree.VALUE}


class DisputedOperator:
    """Operator q of a step, as a party claims it."""

    def __init__(
        self,
        job: Job,
        step: int,
        q: int,
        *,
        values: Mapping[int, torch.Tensor],
        states: list[torch.Tensor],
        fabricated: FabricatedValues,
        stop: Stop | None = None,
    ) -> None:
        """values: what is claimed of operator q and of its inputs (`roundlog.adjudication.openings.needed`). states:
        before the step. stop: where the step has no value, if it has none."""
        self.q = q
        self.descriptor = describe(job.program, q)
        self.encoded = encode_descriptor(self.descriptor)
        self._job = job
        self._step = DisputedStep.of(job.spec, step)
        self._fabricated = fabricated
        self._stop = stop
        self._values = values
        self._running: dict[int, RunningResults] = {}
        """The last one only."""
        self._material = Material.of(
            job.program,
            q,
            values=values,
            states=[state.cpu() for state in states],
            dataset=list(job.dataset.values()),
            schedule=job.schedule,
        )

    @cached_property
    def descriptor_proof(self) -> list[bytes]:
        """Proof that the descriptor is leaf q under the program root."""
        return program_tree(self._job.program).proof(self.q)

    @cached_property
    def tree(self) -> MerkleTree:
        """Merkle tree over the chunks of the output."""
        output = self._values[self.q]
        if self._stopped_here is None:
            return tensor_tree(output)
        f32_format = self._step.f32_format
        return claimed_tree(
            self._job.program, f32_format, self._step.step, self._stopped_here, output, self._fabricated
        )

    @property
    def _stopped_here(self) -> Stop | None:
        return self._stop if self._stop is not None and self._stop.operator == self.q else None

    @cached_property
    def _right(self) -> memoryview:
        output, stop = self._values[self.q], self._stopped_here
        return tensor_bytes(output) if stop is None else right_bytes(stop, output)

    def chunk(self, index: int) -> bytes:
        """The bytes of a chunk; of an operator that stops, those that are known."""
        return bytes(self._right[index * CHUNK_SIZE : (index + 1) * CHUNK_SIZE])

    def wrong_element(self, index: int, posted: bytes) -> int | None:
        """The lowest element of chunk `index` in which an opponent's bytes (of the right number) are wrong, as its
        number in the output. None if nothing in it can be proven wrong."""
        own, size = self.chunk(index), self.descriptor.dtype.itemsize
        first = index * CHUNK_SIZE // size
        if self._stop is not None and self._stop.operator < self.q:
            return None
        for number in range(len(own) // size):
            if own[number * size :][:size] != posted[number * size :][:size]:
                return first + number
        stop = self._stopped_here
        # No run has a value there, so any claim of one is wrong.
        return stop.element if stop is not None and stop.element == first + len(own) // size else None

    def material(self, element: int) -> ElementMaterial:
        """Openings that decide an element which needs one segment only."""
        answer, chunks = openings(self.descriptor, element, self._step, self._material)
        return ElementMaterial(prove(chunks, self._material), answer)

    def answer(self, element: int) -> Answer:
        """Answer of the adjudicator for an element, of a long reduction, too: by `roundlog.adjudication`, which
        computes as the contract does and shares nothing with the kernels."""
        d = self.descriptor
        if d.family is Family.SUM and d.terms:
            totals = running_sums(d, element, self._material)
            assert totals is not None
            return finish(d, totals[-1], self._step.f32_format)
        return adjudicate(d, element, self._step, self._material)

    def running(self, element: int, claimed: int) -> RunningResults:
        """The running results of an element. claimed: the trainer's bits, on which they do not depend."""
        if element not in self._running:
            self._running = {element: running_results(self.descriptor, element, self._material)}
        return self._running[element]

    def segment(self, element: int, segment: int) -> ElementMaterial:
        """Openings that decide one segment of an element's terms; they do not depend on earlier segments."""
        recorder = ReadRecorder(self._material)
        run_segment(self.descriptor, element, start(self.descriptor), segments(self.descriptor)[segment], recorder)
        return ElementMaterial(prove(sorted(recorder.seen), self._material))
