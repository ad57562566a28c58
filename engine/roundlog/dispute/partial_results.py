"""The running results of a SUM for a whole element at once: the reference takes 20 microseconds a term, and a sum may
have millions, while a clock runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.adjudicate import Tree, unravel
from roundlog.adjudication.openings import Material, partial_tree
from roundlog.adjudication.openings import running_results as by_reference
from roundlog.adjudication.partial import ExactSum, RunningResult
from roundlog.commitments import MerkleTree
from roundlog.definitions import Family
from roundlog.descriptors.descriptor import Descriptor, Input

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
