"""One operator of one step, with everything that a party opens of it.

The running results of a SUM are computed for a whole element at once: the reference takes 20 microseconds a term, and a
sum may have millions, while a clock runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.adjudicate import (
    Answer,
    DisputedStep,
    Tree,
    adjudicate,
    finish,
    run_segment,
    segments,
    unravel,
)
from roundlog.adjudication.openings import Material, OperandOpening, ReadRecorder, openings, partial_tree, prove
from roundlog.adjudication.openings import running_results as by_reference
from roundlog.adjudication.partial import ExactSum, RunningResult, start
from roundlog.commitments import CHUNK_SIZE, MerkleTree, tensor_bytes, tensor_tree
from roundlog.definitions import Family
from roundlog.descriptors import describe, encode_descriptor, program_tree
from roundlog.descriptors.descriptor import Descriptor, Input
from roundlog.dispute.step_trace import claimed_tree, right_bytes
from roundlog.training.fabricated_values import FabricatedValues, Stop
from roundlog.training.job import Job

_BLOCK = 1 << 18
"""Terms that are added up at once, in whole segments."""

_I64 = npt.NDArray[np.int64]


def running_sums(descriptor: Descriptor, element: int, material: Material) -> list[ExactSum] | None:
    """`ExactSum` after every segment; None if the descriptor is no SUM."""
    d = descriptor
    if d.family != Family.SUM or not d.terms:
        return None
    total, special, totals = 0, 0, []
    step = max(_BLOCK // d.segment, 1) * d.segment
    for first in range(0, d.terms, step):
        terms = np.arange(first, min(first + step, d.terms), dtype=np.int64)
        number, shift, patterns = _products(d, element, terms, material)
        specials = _specials(patterns, d.segment)
        for part, found in zip(_by_segment(number, shift, d.segment), specials, strict=True):
            total += part
            if found:
                special = ieee.add(special, found) if special else found
            totals.append(ExactSum(0, special) if special else ExactSum(total))
    return totals


def _products(d: Descriptor, element: int, terms: _I64, material: Material) -> tuple[_I64, _I64, _I64]:
    """(n, s, p): term r is n[r] * 2^s[r] units of a running sum, 0 where it is left out; or it has the pattern p[r],
    which is 0 for what is finite."""
    place = unravel(element, d.iteration)
    axes: list[int | _I64] = []
    rest = terms
    for size in reversed(d.reduction):
        rest, axis = np.divmod(rest, size)
        axes.append(axis)
    index: list[int | _I64] = [*place, *reversed(axes)]
    # A single factor counts as its product with 1, which is 2^149 units of 2^-149.
    number, shift = np.ones(len(terms), np.int64), np.full(len(terms), 149 if len(d.inputs) == 1 else 0, np.int64)
    valid = np.ones(len(terms), bool)
    factors = []
    for item in d.inputs:
        flat, exists = _read(item, index, len(terms))
        valid &= exists
        factors.append((item, flat))
    # A product of FP64 numbers says which infinity it is, or NaN, and cannot overflow.
    product, finite = np.ones(len(terms)), np.ones(len(terms), bool)
    for item, flat in factors:
        format = item.dtype.number_format()
        assert format is not None
        stored = np.frombuffer(material.whole(Tree.VALUE, item.value), f"<u{format.itemsize}")
        words = stored[np.where(valid, flat, 0)].astype(np.int64)
        fraction = words & ((1 << format.fraction_bits) - 1)
        exponent = (words & (format.sign - 1)) >> format.fraction_bits
        special = exponent == format.infinity >> format.fraction_bits
        finite &= ~special
        magnitude = fraction | (exponent > 0).astype(np.int64) << format.fraction_bits
        signed = np.where(words & format.sign != 0, -magnitude, magnitude)
        number *= signed
        with np.errstate(invalid="ignore"):
            product *= np.where(special, np.where(fraction != 0, np.nan, np.copysign(np.inf, signed)), signed)
        # Terms that are not finite count as nothing, and must not ask for a shift of their own.
        shift += np.where(special, 0, np.maximum(exponent, 1) - 1 + format.least_place + 149)
    patterns = np.where(product > 0, ieee.INFINITY, ieee.SIGN | ieee.INFINITY)
    patterns[np.isnan(product)] = ieee.NAN
    patterns[finite | ~valid] = 0
    return np.where(valid & finite, number, 0), shift, patterns


def _read(item: Input, index: list[int | _I64], count: int) -> tuple[_I64, npt.NDArray[np.bool_]]:
    """Reads of many terms, each as `reader.read` does it: (flat index, whether the read is valid)."""
    flat, valid = np.zeros(count, np.int64), np.ones(count, bool)
    for size, row in zip(item.view, item.rows, strict=True):
        numerator = np.full(count, row.offset, np.int64)
        for coefficient, at in zip(row.coefficients, index, strict=True):
            if coefficient:
                numerator += coefficient * at
        coordinate, left = np.divmod(numerator, row.divisor)
        valid &= (left == 0) & (coordinate >= 0) & (coordinate < size)
        flat = flat * size + np.where(valid, coordinate, 0)
    return flat, valid


def _specials(patterns: _I64, segment: int) -> list[int]:
    """Sum of the infinities and NaN of each segment; 0 where there is none."""
    found = [0] * -(-len(patterns) // segment)
    for at in np.flatnonzero(patterns).tolist():
        one, before = int(patterns[at]), found[at // segment]
        found[at // segment] = ieee.add(before, one) if before else one
    return found


def _by_segment(number: _I64, shift: _I64, segment: int) -> list[int]:
    """The exact sum of each segment. A segment has at most 4096 terms below 2^48, so that those of one shift fit."""
    shifts, place = np.unique(shift, return_inverse=True)
    sums = np.zeros((-(-len(number) // segment), len(shifts)), np.int64)
    np.add.at(sums, (np.arange(len(number)) // segment, place), number)
    return [sum(value << s for value, s in zip(row, shifts.tolist(), strict=True)) for row in sums.tolist()]


@dataclass(frozen=True)
class RunningResults:
    """One element's running results after every segment of its terms."""

    partials: list[RunningResult]

    @cached_property
    def tree(self) -> MerkleTree:
        return partial_tree(self.partials)

    def before(self, segment: int) -> bytes:
        """The encoded running result before a segment: 96 zero bytes before the first."""
        return self.partials[segment - 1].encode() if segment else bytes(96)


def running_results(descriptor: Descriptor, element: int, material: Material) -> RunningResults:
    totals = running_sums(descriptor, element, material)
    return RunningResults(by_reference(descriptor, element, material) if totals is None else list(totals))


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
