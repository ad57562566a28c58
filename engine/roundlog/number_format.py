"""Formats of floating-point numbers (IEEE 754-2019, 3.3): FP32, and narrower ones whose numbers are all FP32 numbers.

An operator's result is the mathematical value, rounded once to the format of its output. What code needs to know of a
format is derived here from its two numbers. `Format.nearest` is the reference of rounding, by integers alone: nothing
that is fast uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


@dataclass(frozen=True)
class Format:
    """A binary format: a sign, a biased exponent and a fraction, with subnormal numbers, infinities and NaN.

    exponent_bits: 2 .. 8. fraction_bits: 1 .. 23. So every number of it is one of FP32. Raises ValueError for others.
    """

    exponent_bits: int
    fraction_bits: int

    def __post_init__(self) -> None:
        if not (2 <= self.exponent_bits <= 8 and 1 <= self.fraction_bits <= 23):
            raise ValueError(f"{self} has numbers that are not FP32 numbers, or none")

    @cached_property
    def width(self) -> int:
        """Bits of a number, the sign among them."""
        return 1 + self.exponent_bits + self.fraction_bits

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a stored number. One of more than 16 bits is stored as the FP32 number that it is."""
        return 4 if self.width > 16 else 2 if self.width > 8 else 1

    @cached_property
    def largest_exponent(self) -> int:
        """Exponent of the largest finite number: it is below 2^(largest_exponent + 1). The bias of encodings, too."""
        return (1 << (self.exponent_bits - 1)) - 1

    @cached_property
    def least_exponent(self) -> int:
        """Exponent of the least normal number."""
        return 1 - self.largest_exponent

    @cached_property
    def least_place(self) -> int:
        """Exponent of the least subnormal number; all numbers are multiples of it."""
        return self.least_exponent - self.fraction_bits

    @cached_property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0**-self.fraction_bits) * 2.0**self.largest_exponent

    @cached_property
    def limit(self) -> float:
        """The power of two that would follow the largest finite number: what rounds to it overflows (7.4)."""
        return 2.0 ** (self.largest_exponent + 1)

    @cached_property
    def rule(self) -> tuple[int, int, float]:
        """Numbers that a compiled loop rounds by: `fraction_bits`, `least_place`, `limit`."""
        return self.fraction_bits, self.least_place, self.limit

    @cached_property
    def sign(self) -> int:
        """Encoding of -0."""
        return 1 << (self.width - 1)

    @cached_property
    def infinity(self) -> int:
        """Encoding of infinity."""
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @cached_property
    def nan(self) -> int:
        """Encoding of the one NaN: quiet, positive, without a payload."""
        return self.infinity | 1 << (self.fraction_bits - 1)

    def is_finite(self, word: int) -> bool:
        """Whether an encoding (`width` bits) is that of a finite number."""
        return word & (self.sign - 1) < self.infinity

    def scaled(self, word: int) -> int:
        """The number that the encoding (`width` bits) of a finite one stands for (3.4), in multiples of
        2^least_place."""
        assert self.is_finite(word), hex(word)
        exponent, fraction = (word & (self.sign - 1)) >> self.fraction_bits, word & ((1 << self.fraction_bits) - 1)
        magnitude = fraction if exponent == 0 else (fraction | 1 << self.fraction_bits) << (exponent - 1)
        return -magnitude if word & self.sign else magnitude

    def value(self, word: int) -> Fraction:
        """The number that the encoding (`width` bits) of a finite one stands for."""
        return Fraction(self.scaled(word), 1 << -self.least_place)

    def in_float32(self, word: int) -> int:
        """FP32's encoding of the number with this encoding (`width` bits)."""
        sign, magnitude = (FLOAT32.sign if word & self.sign else 0), word & (self.sign - 1)
        if magnitude >= self.infinity:
            return FLOAT32.nan if magnitude > self.infinity else sign | FLOAT32.infinity
        if self.exponent_bits == FLOAT32.exponent_bits:
            return sign | magnitude << (FLOAT32.fraction_bits - self.fraction_bits)
        return sign | FLOAT32.nearest(self.value(magnitude))

    def of_float32(self, word: int) -> int:
        """Encoding (`width` bits) of the number nearest to the FP32 number with this encoding: its conversion."""
        sign, magnitude = (self.sign if word & FLOAT32.sign else 0), word & (FLOAT32.sign - 1)
        if magnitude >= FLOAT32.infinity:
            return self.nan if magnitude > FLOAT32.infinity else sign | self.infinity
        return sign | self.nearest(FLOAT32.value(magnitude))

    def nearest(self, number: Fraction) -> int:
        """Encoding (`width` bits) of the nearest number, of two as near the one with an even fraction (4.3.1). What is
        too large becomes infinite, as if exponents had no end (7.4); a zero is +0, and an underflow keeps its sign."""
        magnitude = abs(number)
        if magnitude == 0:
            return 0
        # The exponent e with 2^e <= magnitude < 2^(e+1).
        e = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        if magnitude < Fraction(2) ** e:
            e -= 1
        place = max(e - self.fraction_bits, self.least_place)
        units = magnitude / Fraction(2) ** place
        count, rest = divmod(units.numerator, units.denominator)
        if 2 * rest > units.denominator or (2 * rest == units.denominator and count % 2 == 1):
            count += 1
        # A count of 2^(fraction_bits + 1) carries into the exponent by itself, and past the largest number gives
        # infinity.
        word = ((place - self.least_place) << self.fraction_bits) + count
        return (self.sign if number < 0 else 0) | min(word, self.infinity)


FLOAT32 = Format(8, 23)
BFLOAT16 = Format(8, 7)
FLOAT16 = Format(5, 10)

NARROWEST = 23
"""Least bits of `narrow_float32`."""


def narrow_float32(bits: int) -> Format:
    """The FP32 numbers whose last 32 - bits bits are zero; bits: 23 .. 32, as `rounding_bits` of a spec says it. Raises
    ValueError for others."""
    if not NARROWEST <= bits <= FLOAT32.width:
        raise ValueError(f"{bits} bits are outside {NARROWEST}..{FLOAT32.width}")
    return Format(FLOAT32.exponent_bits, bits - 1 - FLOAT32.exponent_bits)
