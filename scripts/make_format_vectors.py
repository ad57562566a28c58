"""Writes tests/vectors/formats.json: what the contract has to give of BF16 and FP16.

    python scripts/make_format_vectors.py          writes the file
    python scripts/make_format_vectors.py --check  exits with 1 if the file on disk is not what would be written

Numbers by fractions, rounded once (`roundlog.number_format`), functions by series in 700-bit integers
(`elementary_series`; sine and cosine by mpmath), sums in Python's integers. Dtypes by their codes in descriptors:

    map_DTYPE_CODE       hex of a code's cases: operands and result, four bytes each, big-endian
    convert_DTYPE_DTYPE  hex of a conversion's cases: an element of the first dtype, one of the second, eight bytes each
    function_DTYPE_CODE  hex of a function's cases: argument and result, four bytes each
    sums_DTYPE           a, b: hex of the factors, four bytes each; rounded: the bits of the sum of their products

Cases are every pair of corner numbers, ties and near ties, and numbers drawn by a hash, so that the file never changes
without a reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from fractions import Fraction
from hashlib import sha256
from itertools import product
from pathlib import Path

from elementary_series import FUNCTIONS
from generated import write_or_check
from make_arithmetic_vectors import hexed, packed, trigonometric
from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.adjudicate import exact_value
from roundlog.definitions import Family, code_name, code_names
from roundlog.descriptors.descriptor import DTYPE_CODES
from roundlog.number_format import FLOAT32, Format
from roundlog.program import DType

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"
SHORT = (DType.BF16, DType.F16)
BINARY = (0, 1, 2, 3, 8, 9, 10, 11, 12)
UNARY = (4, 5, 6, 7)


def format_of(dtype: DType) -> Format:
    format = dtype.number_format()
    assert format is not None
    return format


def corners(format: Format) -> list[int]:
    """Encodings of the ends of a format's ranges and their neighbours, of both signs, and NaN."""
    ulp = 1 << format.fraction_bits
    one = format.largest_exponent << format.fraction_bits
    found = [0, 1, 2, ulp // 2, ulp - 1, ulp, ulp + 1, one - ulp, one - 1, one, one + 1, one + ulp // 2, one + ulp - 1]
    found += [
        one + format.fraction_bits * ulp,
        one - format.fraction_bits * ulp,
        one - (format.fraction_bits + 1) * ulp,
    ]
    found += [format.infinity - ulp, format.infinity - 1, format.infinity, format.nan, format.infinity + 1]
    return [sign | word for sign in (0, format.sign) for word in found]


def drawn(what: str, format: Format, count: int) -> Iterator[tuple[int, int]]:
    """Pairs of encodings: all bits at random, then numbers of near exponents."""
    for i in range(count):
        digest = sha256(f"tiebreak/{what}/{i}".encode()).digest()
        a, b, c = (int.from_bytes(digest[4 * k : 4 * k + 4], "big") % (2 * format.sign) for k in range(3))
        if i % 2:
            exponent = (a & ~format.sign) >> format.fraction_bits
            moved = exponent + c % (2 * format.fraction_bits + 5) - format.fraction_bits - 2
            largest = (format.infinity >> format.fraction_bits) - 1
            fraction = b & ((1 << format.fraction_bits) - 1)
            b = b & format.sign | max(0, min(largest, moved)) << format.fraction_bits | fraction
        yield a, b


def value_of(code: int, format: Format, *operands: int) -> int:
    """The result of a code of MAP on numbers of one format, in it; or 0 or 1."""
    found = exact_value(code_name(Family.MAP, code), [format.in_float32(x) for x in operands], format)
    return found if code in (10, 11, 12) else format.of_float32(found)


def map_cases(dtype: DType) -> dict[int, str]:
    format = format_of(dtype)
    some = corners(format)
    cases: dict[int, str] = {}
    for code in BINARY:
        pairs = [*product(some, some[:: 1 if code < 4 else 5]), *drawn(f"{dtype} {code}", format, 500)]
        cases[code] = hexed(b"".join(packed(a, b, value_of(code, format, a, b)) for a, b in pairs))
    for code in UNARY:
        numbers = [*some, *(a for a, _ in drawn(f"{dtype} {code}", format, 500))]
        cases[code] = hexed(b"".join(packed(a, value_of(code, format, a)) for a in numbers))
    return cases


def ties(format: Format) -> Iterator[int]:
    """FP32 patterns on and beside the middles between neighbours of a format, its least and its largest ones."""
    ulp, one = 1 << format.fraction_bits, format.largest_exponent << format.fraction_bits
    for word in (0, 1, 2, ulp - 1, ulp, one - 1, one, one + 1, one + ulp - 1, format.infinity - 2, format.infinity - 1):
        number = Fraction(format.scaled(word))
        above = number + Fraction(1 << max(0, (word >> format.fraction_bits) - 1))
        middle = FLOAT32.nearest((number + above) / 2 * Fraction(2) ** format.least_place)
        for offset in (-1, 0, 1):
            yield from (middle + offset, ieee.SIGN | (middle + offset))


def long_words(*numbers: int) -> bytes:
    return b"".join((number % 2**64).to_bytes(8, "big") for number in numbers)


def convert_cases(dtype: DType) -> dict[int, str]:
    format = format_of(dtype)
    cases: dict[int, str] = {}
    for other in (DType.F32, *SHORT):
        if other == dtype:
            continue
        wide = format_of(other)
        numbers = [*corners(wide), *(a for a, _ in drawn(f"{other} to {dtype}", wide, 300))]
        numbers += ties(format) if other == DType.F32 else []
        found = (exact_value("FLOAT_TO_FLOAT", [wide.in_float32(x)], format) for x in numbers)
        results = zip(numbers, map(format.of_float32, found), strict=True)
        cases[DTYPE_CODES[other]] = hexed(b"".join(long_words(x, y) for x, y in results))
    # Ties that a rounding to FP32 first would make, or break.
    last = [1 << e for e in range(63)]
    digits = format.fraction_bits + 1
    integers = [
        sign * (n + half + off) for n in last for half in (0, n >> digits) for off in (-1, 0, 1) for sign in (1, -1)
    ]
    integers += [0, 2**63 - 1, -(2**63), 65519, 65520, 65521, -65520]
    rounded = (exact_value("I64_TO_FLOAT", [n], format) for n in integers)
    pairs = zip(integers, map(format.of_float32, rounded), strict=True)
    cases[DTYPE_CODES[DType.I64]] = hexed(b"".join(long_words(n, y) for n, y in pairs))
    cases[DTYPE_CODES[DType.BOOL]] = hexed(long_words(0, 0, 1, format.nearest(Fraction(1))))
    return cases


def function_cases(dtype: DType) -> dict[int, str]:
    format = format_of(dtype)
    cases: dict[int, str] = {}
    exact = {**FUNCTIONS, "sin": trigonometric("sin"), "cos": trigonometric("cos")}
    for code, name in sorted(set(code_names(Family.FUNCTION))):
        numbers = [*corners(format), *(a for a, _ in drawn(f"{dtype} {name}", format, 250))]
        low, data = {"log": 0, "log1p": -1}.get(name), b""
        for word in numbers:
            if not format.is_finite(word) or not word & ~format.sign:
                continue
            number = format.value(word)
            if low is not None and number <= low:
                continue
            if name in ("exp", "expm1"):
                number = max(min(number, Fraction(200)), Fraction(-200))
            result = format.nearest(exact[name](number))
            data += packed(word, 0 if result == format.sign else result)
        cases[code] = hexed(data)
    return cases


def sum_case(format: Format, factors: list[tuple[int, int]]) -> dict[str, object]:
    total = sum((format.value(a) * format.value(b) for a, b in factors), Fraction(0))
    rounded = format.nearest(total)
    return {
        "a": hexed(packed(*(a for a, _ in factors))),
        "b": hexed(packed(*(b for _, b in factors))),
        "rounded": 0 if rounded == format.sign else rounded,
    }


def sum_cases(dtype: DType) -> list[dict[str, object]]:
    format = format_of(dtype)
    one, tiny, huge, minus = format.nearest(Fraction(1)), 1, format.infinity - 1, format.sign
    half = format.nearest(Fraction(1, 2 << format.fraction_bits))
    factors: list[list[tuple[int, int]]] = [
        [],
        [(minus, one)],
        [(tiny, tiny)],
        [(huge, huge), (minus | huge, huge), (tiny, one)],
        # A tie at the first bit that is dropped, to either side, and broken by the least product.
        [(one, one), (half, one)],
        [(one + 1, one), (half, one)],
        [(one, one), (half, one), (tiny, tiny)],
        [(one + 1, one), (half, one), (minus | tiny, tiny)],
        [(minus | one, one), (minus | half, one), (minus | tiny, tiny)],
        # Overflow, and just not.
        [(huge, one), (huge, half)],
        [(huge, one), (huge, half), (minus | one, one)],
        # Underflow: half of the least number, more, and less.
        [(one - (1 << format.fraction_bits), tiny)],
        [(one - (1 << format.fraction_bits), tiny), (tiny, tiny)],
        [(one - (1 << format.fraction_bits), minus | tiny), (tiny, tiny)],
    ]
    for i, length in enumerate((2, 3, 3, 5, 5, 9, 17, 64, 200)):
        pairs = [(a, b) for a, b in drawn(f"{dtype} sum {i}", format, length)]
        finite = [(a if format.is_finite(a) else one, b if format.is_finite(b) else one) for a, b in pairs]
        # Small numbers next to each other make ties often.
        near = [(one + a % 64 | a & minus, one + b % 64) for a, b in pairs]
        factors += [finite, finite + [(a ^ minus, b) for a, b in finite[1:]], near, [(a, one) for a, _ in near]]
    return [sum_case(format, case) for case in factors]


def files() -> dict[Path, str]:
    """The vector file and the text that it should have."""
    content: dict[str, object] = {}
    for dtype in SHORT:
        number = DTYPE_CODES[dtype]
        content |= {f"map_{number}_{code}": cases for code, cases in map_cases(dtype).items()}
        content |= {f"convert_{other}_{number}": cases for other, cases in convert_cases(dtype).items()}
        content |= {f"function_{number}_{code}": cases for code, cases in function_cases(dtype).items()}
        content[f"sums_{number}"] = sum_cases(dtype)
    return {VECTORS / "formats.json": json.dumps(content, indent=1) + "\n"}


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, files()))
