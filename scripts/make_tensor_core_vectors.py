"""Writes tests/vectors/tensor_core.json: groups of tensor cores, by the reference, for every other implementation.

    python scripts/make_tensor_core_vectors.py          writes the file
    python scripts/make_tensor_core_vectors.py --check  exits with 1 if the file on disk is not what would be written

2,000 groups of every arithmetic (docs/arithmetic.md), shared out among its formats. ARITHMETIC_FORMAT ->

    fraction_bits, terms   of the arithmetic: F, products of a group
    least_normal           biased exponent, as FP32 has it, of the least normal operand
    subnormals             1 if subnormal operands have a value, else 0
    cases                  hex of the groups one after another: c, a, b, result, four bytes each, big-endian; NaN
                           (0x7fc00000) as the result of a group without a value

Groups follow rules, drawn by a hash, so that the file never changes without a reason: exponents near each other and
anywhere, cancellation, bits beside the last that is kept, zeros and subnormal numbers with large partners, both ends
of the range, infinities and NaN.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from generated import write_or_check
from make_arithmetic_vectors import hexed, packed
from roundlog.adjudication import NoTensorCoreValueError, binary32
from roundlog.adjudication.tensor_core_groups import group
from roundlog.definitions.tensor_core import ARITHMETICS, OPERAND_FORMATS, TensorCoreArithmetic
from roundlog.number_format import FLOAT32, Format

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"
GROUPS = 2000
"""Number of them, of each arithmetic."""

Group = tuple[int, list[int], list[int]]


class Draws:
    """Integers drawn by a hash."""

    def __init__(self, what: str) -> None:
        self._what, self._count = what, 0

    def below(self, limit: int) -> int:
        self._count += 1
        return int.from_bytes(sha256(f"tiebreak/{self._what}/{self._count}".encode()).digest(), "big") % limit

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def sign(self) -> int:
        return binary32.SIGN * self.below(2)


def number(draws: Draws, exponent: int, format: Format) -> int:
    """FP32 pattern of a normal number of the format with an exponent, as near as it has; half of them with few bits."""
    fraction = draws.below(1 << format.fraction_bits)
    if draws.below(2):
        fraction = (1 << draws.below(format.fraction_bits)) * draws.below(2)
    exponent = min(max(exponent, format.least_exponent), format.largest_exponent)
    biased = exponent + FLOAT32.largest_exponent
    return draws.sign() | biased << 23 | fraction << (23 - format.fraction_bits)


def subnormal(draws: Draws, format: Format) -> int:
    return draws.sign() | format.in_float32(draws.between(1, (1 << format.fraction_bits) - 1))


def near(draws: Draws, format: Format, terms: int, centre: int, spread: int) -> Group:
    """Products with exponents around 2 * centre."""
    a = [number(draws, centre + draws.between(-spread, spread), format) for _ in range(terms)]
    b = [number(draws, centre + draws.between(-spread, spread), format) for _ in range(terms)]
    return number(draws, 2 * centre + draws.between(-spread, spread), FLOAT32), a, b


def ordinary(draws: Draws, format: Format, terms: int, kept: int) -> Group:
    return near(draws, format, terms, draws.between(-4, 4), draws.between(1, 9))


def anywhere(draws: Draws, format: Format, terms: int, kept: int) -> Group:
    return near(draws, format, terms, 0, format.largest_exponent // draws.between(2, 4))


def cancelling(draws: Draws, format: Format, terms: int, kept: int) -> Group:
    """The first product is taken back by the second, or by c, but for a bit; the others are far below."""
    c, a, b = near(draws, format, terms, draws.between(-8, 3), 1)
    a[1], b[1] = a[0] ^ binary32.SIGN, b[0]
    lower = kept // 2 - draws.between(0, 3)
    for i in range(2, terms):
        a[i] = number(draws, (a[0] >> 23 & 0xFF) - 127 - lower, format)
    if draws.below(2):
        c = binary32.multiply(a[0], b[0]) ^ draws.below(4)
        a[0] = 0 if draws.below(2) else a[0]
    return c if draws.below(3) else 0, a, b


def at_the_cut(draws: Draws, format: Format, terms: int, kept: int) -> Group:
    """Bits of products, and of c, just above and just below the last that is kept."""
    c, a, b = near(draws, format, terms, draws.between(0, 6), 0)
    for i in range(1, terms):
        a[i] = number(draws, (a[0] >> 23 & 0xFF) - 127 - kept + draws.between(-2, 3), format)
    return c if draws.below(2) else number(draws, -kept + draws.between(-2, 12), FLOAT32), a, b


def zeros(draws: Draws, format: Format, terms: int, kept: int) -> Group:
    """Few products that are not zero, or none; partners of zeros may be large."""
    c, a, b = near(draws, format, terms, draws.between(format.least_exponent // 3, 2), 6)
    for i in range(draws.below(2), terms):
        a[i] = draws.sign() if draws.below(4) else a[i]
        b[i] = b[i] if draws.below(6) else number(draws, draws.between(0, format.largest_exponent), format)
    return (draws.sign(), c, c & ~0xFFFFF)[draws.below(3)], a, b


def subnormals(draws: Draws, format: Format, terms: int, kept: int) -> Group:
    centre = (format.least_exponent + draws.between(0, kept)) // 2
    c, a, b = near(draws, format, terms, centre, 5)
    for i in range(draws.below(2), terms):
        if draws.below(3) == 0:
            a[i] = subnormal(draws, format)
            b[i] = number(draws, draws.between(-8, 2 - 2 * centre if draws.below(2) else 8), format)
    return (0, c, c, subnormal(draws, FLOAT32))[draws.below(4)], a, b


def ends(draws: Draws, format: Format, terms: int, kept: int) -> Group:
    """Around the largest exponent that has a value, and the least result."""
    if draws.below(2):
        centre = min(60, format.largest_exponent)
        c, a, b = near(draws, format, terms, centre, draws.below(2))
        return number(draws, 119 + draws.below(4), FLOAT32) if draws.below(2) else c, a, b
    c, a, b = near(draws, format, terms, max(-63, format.least_exponent), draws.below(3))
    return number(draws, -126 + draws.below(4), FLOAT32) if draws.below(2) else 0, a, b


def special(draws: Draws, format: Format, terms: int, kept: int) -> Group:
    c, a, b = ordinary(draws, format, terms, kept)
    wild = (binary32.INFINITY, binary32.INFINITY | binary32.SIGN, binary32.NAN)[draws.below(3)]
    if draws.below(3) == 0:
        return wild, a, b
    (a if draws.below(2) else b)[draws.below(terms)] = wild
    return c, a, b


RULES: tuple[Callable[[Draws, Format, int, int], Group], ...] = (
    *(ordinary, anywhere, cancelling, at_the_cut, zeros, cancelling, at_the_cut),
    *(ordinary, zeros, subnormals, ends, anywhere, at_the_cut, subnormals, ends, special),
)


def drawn(arithmetic: TensorCoreArithmetic, format: str, count: int) -> Iterator[Group]:
    """Groups by each rule in turn."""
    draws = Draws(f"{arithmetic.name} {format}")
    for i in range(count):
        rule = RULES[i % len(RULES)]
        yield rule(draws, OPERAND_FORMATS[format], arithmetic.terms[format], arithmetic.fraction_bits)


def result(arithmetic: TensorCoreArithmetic, format: str, case: Group) -> int:
    """The group's pattern, or NaN."""
    try:
        return group(arithmetic, format, *case)
    except NoTensorCoreValueError:
        return binary32.NAN


def vectors() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for arithmetic in ARITHMETICS.values():
        for position, (format, terms) in enumerate(arithmetic.terms.items()):
            count = GROUPS * (position + 1) // len(arithmetic.terms) - GROUPS * position // len(arithmetic.terms)
            cases = [(c, *a, *b, result(arithmetic, format, (c, a, b))) for c, a, b in drawn(arithmetic, format, count)]
            found[f"{arithmetic.name}_{format}"] = {
                "fraction_bits": arithmetic.fraction_bits,
                "terms": terms,
                "least_normal": OPERAND_FORMATS[format].least_exponent + FLOAT32.largest_exponent,
                "subnormals": int(format in arithmetic.subnormals),
                "cases": hexed(b"".join(packed(*case) for case in cases)),
            }
    return found


if __name__ == "__main__":
    text = json.dumps(vectors(), indent=1) + "\n"
    sys.exit(write_or_check(__doc__, {VECTORS / "tensor_core.json": text}))
