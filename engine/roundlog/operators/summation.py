"""Sums that can be taken part by part: over the samples of a batch, a few at a time (docs/numerics.md).

The terms of a sum are shared out among parts. A part's FP64 sum comes from the operator's own kernel, and so do the
*measures* that its bound is made of, sums themselves; those of all parts are added up. The bound is that of the whole
sum, whatever the parts. What it leaves in doubt is decided by superaccumulators over all parts.

How long sums are cut so that FP64 errs less, and the measures of their terms (magnitudes, last places), stand here,
too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from roundlog.arithmetic.formats import UNIT_F64
from roundlog.kernels import superaccumulator
from roundlog.kernels.reducing import NO_TERM, bound_sums
from roundlog.number_format import FLOAT32, Format
from roundlog.operators.bounds import Bound
from roundlog.operators.registry import Attributes, Inexact, Tensors, Types, operands
from roundlog.program import ProgramError, TensorType

MAX_TERMS = 2**30
"""The longest sum that the bounds are proven for."""

SLACK = 1.0 + 2.0**-20
"""Bounds are themselves computed in FP64, by sums of at most MAX_TERMS terms: this covers their rounding."""

BLOCK_TERMS = 256
"""Contractions are summed in blocks of at most so many terms: shorter ones would make tighter bounds, but each block is
another pass over the output."""


def check_terms(terms: int) -> None:
    """Raises ProgramError for a sum that is longer than its bound is proven for."""
    if terms > MAX_TERMS:
        raise ProgramError(f"sums {terms} terms, more than the {MAX_TERMS} that its error bound is proven for")


def gamma(terms: int) -> float:
    """gamma_n = n u / (1 - n u) for a sum of `terms` exact FP64 terms in any order: at most terms - 1 additions,
    each erring by u relatively (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2)."""
    n = max(terms - 1, 0) * UNIT_F64
    return n / (1 - n) * SLACK


def blocks(terms: int) -> list[tuple[int, int]]:
    """Ranges of nearly equal length, at most BLOCK_TERMS, that cover range(terms); one empty range for no terms."""
    count = max(1, -(-terms // BLOCK_TERMS))
    return [(terms * i // count, terms * (i + 1) // count) for i in range(count)]


def longest_block(terms: int) -> int:
    """Terms of the longest of `blocks`: if all but the last are as long, there are as many."""
    return -(-terms // max(1, -(-terms // BLOCK_TERMS)))


def block_within(terms: int, additions: int) -> int:
    """Most terms of a block, if no term may go through more than so many additions: those of its block, and one for
    every further block. 0 if no length will do."""
    fitting = (size for size in range(min(terms, BLOCK_TERMS), 0, -1) if size - 1 + -(-terms // size) - 1 <= additions)
    return next(fitting, 0)


def chain(terms: int) -> int:
    """Blocked-sum chain length: one more than the additions that a term can go through. Blocks are summed in any order,
    and their sums one after the other, so these are the additions of a block, and one for every further block."""
    count = max(1, -(-terms // BLOCK_TERMS))
    return -(-terms // count) + count - 1


def blocked_gamma(terms: int) -> float:
    """`gamma` of a blocked sum. It includes SLACK, for bounds made of norms."""
    return gamma(chain(terms)) * SLACK


def additions_of_taps(outputs: int, taps: int) -> int:
    """Additions that a product of the gradient of a convolution's input may go through: those over the outputs, and
    then over the taps; or, of so many outputs that no blocks of all terms keep to that, those of blocks."""
    additions = chain(outputs) + taps - 1
    return additions if block_within(outputs * taps, additions) else chain(outputs * taps) - 1


def parts_keep_chain(parts: Sequence[int], length: Callable[[int], int] = chain) -> bool:
    """Whether no term goes through more additions if a sum is taken in parts of so many terms than if it is taken as a
    whole. length: of blocked sums, `chain`, or `sum_depth`."""
    return max(map(length, parts)) + len(parts) - 1 <= length(sum(parts))


def sum_depth(terms: int) -> int:
    """Depth of a sum: the most additions that a term goes through. Terms are added up in blocks of BLOCK_TERMS, each in
    any order, the blocks' sums likewise, and at last the sums of BLOCK_TERMS blocks one after the other."""
    blocks_of_terms = -(-terms // BLOCK_TERMS)
    blocks_of_blocks = -(-blocks_of_terms // BLOCK_TERMS)
    return sum(max(min(count, BLOCK_TERMS) - 1, 0) for count in (terms, blocks_of_terms)) + max(blocks_of_blocks - 1, 0)


def sum_gamma(terms: int) -> float:
    """`gamma` of a sum whose terms go through `sum_depth(terms)` additions."""
    return gamma(sum_depth(terms) + 1)


EXACT_TERMS = 1 << 19
"""Terms that are written out at once to evaluate sums exactly; a single sum can have more."""


def block_of(terms: int) -> int:
    """Sums of so many terms that are evaluated exactly at once."""
    return max(1, EXACT_TERMS // max(terms, 1))


def exact_bytes(outputs: int, terms: int, bytes_a_term: int) -> int:
    """Bytes that the exact evaluation of sums takes at its worst, whichever of the `outputs` are ambiguous."""
    return bytes_a_term * terms * min(outputs, block_of(terms))


Index = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]
Measures = tuple[torch.Tensor, ...]
Shapes = Sequence[tuple[int, ...]]
ReadPart = Callable[[int], list[torch.Tensor]]
"""Reads the inputs of a part, by its number. Called anew for every use, so that one part is in memory at a time."""


class Summation(Inexact):
    """An operator whose every output is a sum, and whose inputs can be cut along an axis over which it runs. Applied to
    a part of its inputs, it gives the sum of that part of the terms."""

    least: ClassVar[frozenset[int]] = frozenset()
    """Positions of the measures that count by the least of all parts; the others add up."""
    by_element: ClassVar[bool] = False
    """Whether the measures are those of single elements: of the output's shape, or one that broadcasts to it."""

    @abstractmethod
    def terms(self, shapes: Shapes, attributes: Attributes) -> int:
        """The length of the sum, padding included."""

    @abstractmethod
    def measures(self, inputs: Tensors, attributes: Attributes) -> Measures:
        """What the bound is made of, FP64, in memory of its own."""

    def part(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Measures]:
        """(the approximation, the measures)."""
        return self.approximate(inputs, attributes), self.measures(inputs, attributes)

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        terms = self.terms([tuple(x.shape) for x in inputs], attributes)
        return self.bound_of(self.measures(inputs, attributes), terms)

    @abstractmethod
    def bound_of(self, measures: Measures, terms: int) -> Bound:
        """The bound of a sum of so many terms, by its measures."""

    def join(self, measures: Measures, more: Measures) -> None:
        """Make the measures of a part those of it and of more terms, in place."""
        for position, (of_all, measure) in enumerate(zip(measures, more, strict=True)):
            if position in self.least:
                torch.minimum(of_all, measure, out=of_all)
            else:
                of_all.add_(measure)

    def add_parts(self, read: ReadPart, count: int, attributes: Attributes) -> tuple[torch.Tensor, Measures]:
        """`part` of all parts together, added up one after the other."""
        total, measures = self.part(read(0), attributes)
        for number in range(1, count):
            y, more = self.part(read(number), attributes)
            total.add_(y)
            self.join(measures, more)
        return total, measures

    def exact_of_parts(self, read: ReadPart, count: int, attributes: Attributes, elements: Index) -> Index:
        """The chosen elements of the output as sums of `roundlog.kernels.superaccumulator`; inputs on the CPU."""
        exact = superaccumulator.new_sums(len(elements))
        for number in range(count):
            self.accumulate(read(number), attributes, elements, exact)
        return exact

    def keeps_bound(self, parts: Sequence[int]) -> bool:
        """Whether approximations of parts of so many terms, added up one after the other, come within the bound of the
        whole: always, where that holds for any order."""
        return True

    @abstractmethod
    def listed(self, inputs: Tensors, attributes: Attributes, elements: Index) -> F64:
        """float64[n, K]: the terms of the chosen elements, exactly; inputs on the CPU."""

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, format: Format = FLOAT32
    ) -> torch.Tensor:
        """Exact values: where the terms lie in the CPU's memory, and of terms that are written out elsewhere."""
        chosen = elements.numpy()
        sums = superaccumulator.new_sums(len(chosen))
        if inputs[0].device.type == "cpu":
            self.accumulate(inputs, attributes, chosen, sums)
        else:
            self._accumulate_listed(inputs, attributes, chosen, sums)
        return torch.from_numpy(superaccumulator.rounded(sums, format))

    def accumulate(self, inputs: Tensors, attributes: Attributes, elements: Index, sums: Index) -> None:
        """Add the terms of the chosen elements to these sums of `roundlog.kernels.superaccumulator`; inputs on the
        CPU."""
        self._accumulate_listed(inputs, attributes, elements, sums)

    def _accumulate_listed(self, inputs: Tensors, attributes: Attributes, elements: Index, sums: Index) -> None:
        """`accumulate`, on any device, of terms that are written out."""
        done = 0
        for listed in self._blocks_listed(inputs, attributes, elements):
            superaccumulator.add_terms(sums[done : done + len(listed)], listed)
            done += len(listed)

    def _blocks_listed(self, inputs: Tensors, attributes: Attributes, elements: Index) -> Iterator[F64]:
        """`listed`, so many elements at a time that they need little memory."""
        block = block_of(self.terms([tuple(x.shape) for x in inputs], attributes))
        for start in range(0, len(elements), block):
            yield self.listed(inputs, attributes, elements[start : start + block])

    @abstractmethod
    def measured(self, part: Types, output: TensorType) -> int:
        """Number of numbers that the measures are."""

    def part_workspace(self, part: Types, attributes: Attributes, output: TensorType) -> int:
        """Bytes that a sum part by part needs beside one part of its inputs (the largest) and its output: what a part
        needs, and the sums of all."""
        return self.workspace(part, attributes, output) + 8 * (output.numel + 2 * self.measured(part, output))


class InParts(Inexact):
    """A summation whose inputs are read part by part, as one operator without inputs."""

    name = "in parts"

    def __init__(self, operator: Summation, terms: int, count: int, read: ReadPart) -> None:
        """terms: of the whole sum. count: of the parts. read: the inputs of one part; called again and again, so that
        no more than one part is in memory at any time."""
        self._operator, self._terms, self._count = operator, terms, count
        self._read: ReadPart = lambda number: operands(operator, read(number))

    def approximate(self, inputs: Tensors, attributes: Attributes) -> torch.Tensor:
        return self.evaluate(inputs, attributes)[0]

    def bound(self, inputs: Tensors, attributes: Attributes, y: torch.Tensor) -> Bound:
        return self.evaluate(inputs, attributes)[1]

    def evaluate(self, inputs: Tensors, attributes: Attributes) -> tuple[torch.Tensor, Bound]:
        total, measures = self._operator.add_parts(self._read, self._count, attributes)
        return total, self._operator.bound_of(measures, self._terms)

    def exact(
        self, inputs: Tensors, attributes: Attributes, elements: torch.Tensor, format: Format = FLOAT32
    ) -> torch.Tensor:
        exact = self._operator.exact_of_parts(self._on_cpu, self._count, attributes, elements.numpy())
        return torch.from_numpy(superaccumulator.rounded(exact, format))

    def _on_cpu(self, number: int) -> list[torch.Tensor]:
        return [x.cpu() for x in self._read(number)]


def reduced(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if dim in dims else size for dim, size in enumerate(shape))


NO_ZERO = 0x7FFFFFFF


def last_place(bits: torch.Tensor) -> torch.Tensor:
    """Integers -> integers: the last place that a significand with this fraction (23 bits) uses, 1 to 2^23."""
    fraction = (bits & 0x7FFFFF) | 0x800000
    return fraction & -fraction


def magnitude_bits(x: torch.Tensor) -> torch.Tensor:
    """int32 of x's shape: magnitudes as bits; the largest number for a zero."""
    bits = x.contiguous().view(torch.int32) & NO_ZERO
    return bits.masked_fill_(bits == 0, NO_ZERO)


def less_one(bits: torch.Tensor) -> torch.Tensor:
    """int32 -> int64: the least of `magnitude_bits` as `roundlog.kernels.reducing` has it."""
    return torch.where(bits == NO_ZERO, NO_TERM, bits.to(torch.int64) - 1)


def sum_by_torch(x: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, Measures]:
    """The sum and its measures on any device and over any axes, which are kept."""
    shape, kept = reduced(tuple(x.shape), dims), [dim for dim in range(x.ndim) if dim not in dims]
    lines = x.permute((*kept, *dims)).reshape(prod(shape), prod(x.shape[dim] for dim in dims))
    wide = lines.to(torch.float64)
    total, magnitude = _in_blocks(wide), _in_blocks(wide.abs())
    if lines.shape[1]:
        least = less_one(magnitude_bits(lines).amin(1))
        finest = last_place(lines.contiguous().view(torch.int32)).amin(1).to(torch.int64)
    else:
        # The largest of their kind: several parts' measures are joined by their minimum.
        least, finest = (torch.full_like(total, none, dtype=torch.int64) for none in (NO_TERM, 2**23))
    return total.reshape(shape), tuple(one.reshape(shape) for one in (magnitude, least, finest))


def _in_blocks(wide: torch.Tensor) -> torch.Tensor:
    """f64[R, K] -> f64[R]: sums in blocks, whose sums are taken in blocks again (`sum_depth`)."""
    for _ in range(2):
        if wide.shape[1] <= BLOCK_TERMS:
            break
        # Not by reshape(R, -1, ...): how many blocks there are cannot be told from no elements at all.
        wide = F.pad(wide, (0, -wide.shape[1] % BLOCK_TERMS)).unflatten(1, (-1, BLOCK_TERMS)).sum(2)
    return wide.sum(1)


def last_exponents(measures: Measures) -> torch.Tensor:
    """int64: the k for which all terms of a sum are multiples of 2^k, as its measures tell."""
    _, least, finest = measures
    return ((least + 1) >> 23).clamp(min=1) - 150 + torch.frexp(finest.to(torch.float64)).exponent - 1


def bound_of_sums(measures: Measures, factor: float | torch.Tensor) -> torch.Tensor:
    """f64[n]: `roundlog.kernels.reducing.bound_sums`, on any device."""
    flat = magnitude, least, finest = tuple(one.reshape(-1) for one in measures)
    if magnitude.device.type == "cpu" and not isinstance(factor, torch.Tensor):
        sizes, bits, places = (one.contiguous().numpy() for one in (magnitude, least, finest))
        return torch.from_numpy(bound_sums(sizes, bits, places, factor))
    # A number is below 2^k if its exponent, of a fraction below 1, is at most k.
    exact = (torch.frexp(magnitude).exponent <= last_exponents(flat) + 53) & magnitude.isfinite()
    return torch.where(exact | (least == NO_TERM), 0.0, magnitude * factor)
