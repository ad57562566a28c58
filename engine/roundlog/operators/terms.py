"""Sums of many terms: what FP64 may err by, and how long ones are cut so that it errs less."""

from __future__ import annotations

from collections.abc import Sequence

from roundlog.arithmetic.formats import UNIT_F64
from roundlog.program import ProgramError

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


def blocked_gamma(terms: int, more: int = 0) -> float:
    """Blocked-sum gamma, with `more` additional additions per term. It includes SLACK, for bounds made of norms."""
    return gamma(chain(terms) + more) * SLACK


def parts_keep_chain(parts: Sequence[int]) -> bool:
    """Whether no term goes through more additions if a sum is taken in parts of so many terms, block by block, than if
    it is taken as a whole."""
    return max(map(chain, parts)) + len(parts) - 1 <= chain(sum(parts))


def sum_depth(terms: int) -> int:
    """Depth of a sum: the most additions that a term goes through. Terms are added up in blocks of BLOCK_TERMS, each in
    any order, the blocks' sums likewise, and at last the sums of BLOCK_TERMS blocks one after the other."""
    blocks_of_terms = -(-terms // BLOCK_TERMS)
    blocks_of_blocks = -(-blocks_of_terms // BLOCK_TERMS)
    return sum(max(min(count, BLOCK_TERMS) - 1, 0) for count in (terms, blocks_of_terms)) + max(blocks_of_blocks - 1, 0)


def sum_gamma(terms: int) -> float:
    """`gamma` of a sum whose terms go through `sum_depth(terms)` additions."""
    return gamma(sum_depth(terms) + 1)


def sum_parts_keep_depth(parts: Sequence[int]) -> bool:
    """Whether no term goes through more additions if a sum is taken in parts of so many terms than if it is taken as a
    whole."""
    return max(map(sum_depth, parts)) + len(parts) - 1 <= sum_depth(sum(parts))


EXACT_TERMS = 1 << 19
"""Terms that are written out at once to evaluate sums exactly; a single sum can have more."""


def block_of(terms: int) -> int:
    """Sums of so many terms that are evaluated exactly at once."""
    return max(1, EXACT_TERMS // max(terms, 1))


def exact_bytes(outputs: int, terms: int, bytes_a_term: int) -> int:
    """Bytes that the exact evaluation of sums takes at its worst, whichever of the `outputs` are ambiguous."""
    return bytes_a_term * terms * min(outputs, block_of(terms))
