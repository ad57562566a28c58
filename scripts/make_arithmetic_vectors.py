"""Writes tests/vectors/{binary32,functions,sums,randomness}.json: what the contract's arithmetic has to give.

    python scripts/make_arithmetic_vectors.py          writes the files
    python scripts/make_arithmetic_vectors.py --check  exits with 1 if a file on disk is not what would be written

FP32 by fractions (`roundlog.adjudication.binary32`), functions by series in 700-bit integers (`elementary_series`; sine
and cosine by mpmath), sums in Python's integers, Philox by NumPy's generator, the data order by the scalar definition
of the consensus specs.

    binary32    operator -> hex of its cases one after another: operands and result, four bytes each, big-endian
                (a comparison's result is 0 or 1)
    functions   function_bits -> hex of its cases: argument and result rounded to that many bits, four bytes each
    sums        cases: a, b: hex of the factors, four bytes each; total: the exact partial sum, 96 bytes;
                rounded: the pattern
    randomness  philox: seed, step, stream, index, word; shuffle: seed, position, rows, row

Cases follow rules, in the manner of TestFloat (Hauser): every pair of corner patterns, then ties and near ties made
on purpose, then patterns with few set bits, drawn by a hash so that the file never changes without a reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from hashlib import sha256
from itertools import product
from pathlib import Path

import mpmath
import numpy as np
from elementary_series import FUNCTIONS
from generated import write_or_check
from roundlog.adjudication import binary32 as ieee
from roundlog.number_format import narrow_float32

VECTORS = Path(__file__).resolve().parent.parent / "tests" / "vectors"

PARTIAL_SUM_BYTES = 96

_EXPONENTS = (0, 1, 2, 24, 25, 103, 126, 127, 128, 149, 150, 151, 230, 253, 254)
_FRACTIONS = (0, 1, 0x400000, 0x7FFFFE, 0x7FFFFF)

CORNERS = [
    sign | bits
    for sign in (0, ieee.SIGN)
    for bits in (0, 1, 2, 0x400000, 0x7FFFFF, 0x800000, 0x800001, 0x33800000, 0x3F7FFFFF, 0x3F800000, 0x3F800001,
                 0x40490FDB, 0x4B000000, 0x4B800001, 0x7F000000, 0x7F7FFFFF, ieee.INFINITY)
]  # fmt: skip
WIDE = [
    sign | exponent << 23 | fraction for sign, exponent, fraction in product((0, ieee.SIGN), _EXPONENTS, _FRACTIONS)
]


def draw(what: str, count: int) -> Iterator[tuple[int, int]]:
    """Pairs of 32-bit patterns: all bits at random, then exponents near each other and few bits in the fractions."""
    for i in range(count):
        digest = sha256(f"tiebreak/{what}/{i}".encode()).digest()
        a, b, c, d = (int.from_bytes(digest[4 * k : 4 * k + 4], "big") for k in range(4))
        if i % 2:
            exponent = (b >> 23 & 0xFF) + c % 55 - 27
            b = b & ieee.SIGN | max(0, min(254, exponent)) << 23 | (1 << d % 23) | (1 << d // 23 % 23)
            a = a & ~ieee.INFINITY | (c >> 8) % 255 << 23
        yield a, b


def near_ties(operator: str) -> Iterator[tuple[int, int]]:
    """Operands whose exact result lies on, or one unit beside, the middle of two neighbours."""
    one = 0x3F800000
    if operator in ("add", "sub"):
        # 1.f +- half a last place, and a bit to its left and right; also across a power of two.
        for fraction in (0, 1, 2, 0x7FFFFE, 0x7FFFFF):
            for half in (0x33800000, 0x33000000, 0x34000000):
                for offset in (-1, 0, 1):
                    yield one + fraction, half + offset
                    yield one + fraction, ieee.SIGN | (half + offset)
    elif operator == "mul":
        # Mantissas with p * q = odd * 2^23: exact ties. Then the same at the edge of the subnormal numbers.
        for p, q in ((0x800001, 0xC00000), (0x800003, 0xC00000), (0xC00000, 0xAAAAAB), (0xFFFFFF, 0x800001)):
            for exponent, other in ((127, 127), (64, 64), (60, 60), (1, 127), (1, 103), (20, 90), (2, 115), (254, 127)):
                yield exponent << 23 | (p & 0x7FFFFF), other << 23 | (q & 0x7FFFFF)
        for shift in range(1, 26):
            for odd in (1, 3, 5, 0x7FFFFF, 0x800001, 0xFFFFFF):
                yield (shift + 1) << 23 | (odd & 0x7FFFFF), (127 - shift) << 23
    elif operator == "div":
        for shift in range(20, 28):
            for fraction in (0, 1, 3, 0x7FFFFF):
                yield 1 << 23 | fraction, (103 + shift) << 23
                yield 2 << 23 | fraction, (103 + shift) << 23 | 1
        for fraction in (1, 2, 3, 0x7FFFFE, 0x7FFFFF):
            yield one + fraction, one + fraction + 1
            yield one + fraction, one + fraction - 1


def squares() -> Iterator[int]:
    """Numbers whose root is exact, and their neighbours; every parity of the exponent."""
    for mantissa in (0x800, 0x801, 0xABC, 0xFFF):
        for shift in range(-150, 104):
            bits = ieee.nearest(Fraction(mantissa * mantissa) * Fraction(2) ** shift)
            if shift % 7 == 0:
                yield from (bits - 1, bits, bits + 1)


def packed(*words: int) -> bytes:
    return b"".join(word.to_bytes(4, "big") for word in words)


def hexed(data: bytes) -> str:
    return "0x" + data.hex()


def binary_cases(operator: str, function: Callable[[int, int], int]) -> str:
    wide = WIDE[:: 1 if operator in ("add", "mul", "div") else 3]
    pairs = [
        *product(CORNERS, CORNERS),
        *((a, wide[(5 * i + 7) % len(wide)]) for i, a in enumerate(wide)),
        *near_ties(operator),
        *draw(operator, 400),
        (ieee.NAN, 0x3F800000),
        (0x3F800000, ieee.NAN | ieee.SIGN),
        (ieee.INFINITY + 1, ieee.INFINITY),
    ]
    return hexed(b"".join(packed(a, b, int(function(a, b))) for a, b in pairs))


def unary_cases(operator: str, function: Callable[[int], int]) -> str:
    numbers = [*CORNERS, *WIDE, *squares(), *(a for a, _ in draw(operator, 300)), ieee.NAN, ieee.INFINITY + 1]
    return hexed(b"".join(packed(a, function(a)) for a in numbers))


def canonical(function: Callable[..., int]) -> Callable[..., int]:
    """Every NaN result as the canonical one."""
    return lambda *operands: ieee.NAN if ieee.is_nan(bits := function(*operands)) else bits


def binary32() -> dict[str, str]:
    binary: dict[str, Callable[[int, int], int]] = {
        "add": canonical(ieee.add),
        "sub": canonical(ieee.subtract),
        "mul": canonical(ieee.multiply),
        "div": canonical(ieee.divide),
        "maximum": ieee.maximum,
        "minimum": ieee.minimum,
        "eq": ieee.equal,
        "lt": ieee.less,
        "le": lambda a, b: ieee.less(a, b) or ieee.equal(a, b),
    }
    unary: dict[str, Callable[[int], int]] = {
        "sqrt": canonical(ieee.root),
        "floor": canonical(ieee.floor),
        "neg": ieee.negate,
        "abs": ieee.magnitude,
    }
    return {name: binary_cases(name, function) for name, function in binary.items()} | {
        name: unary_cases(name, function) for name, function in unary.items()
    }


_PRECISION = 1200


def trigonometric(name: str) -> Callable[[Fraction], Fraction]:
    def function(x: Fraction) -> Fraction:
        with mpmath.workprec(_PRECISION):
            sign, mantissa, exponent, _ = getattr(mpmath, name)(mpmath.mpf(x.numerator) / x.denominator)._mpf_
        magnitude = Fraction(int(mantissa)) * Fraction(2) ** exponent
        return -magnitude if sign else magnitude

    return function


def _arguments(name: str) -> list[int]:
    """Finite arguments in the function's domain: corners, the ends of the ranges that the contract tells apart, and
    patterns all over."""
    ends = [
        (exponent + 127) << 23 | fraction
        for exponent, fraction in [(-26, 0), (-13, 0), (0, 0), (2, 0), (3, 1 << 21), (5, 0), (6, 0x320000), (7, 0)]
    ]
    near_ends = [end + step for end in ends for step in (-1, 0, 1)]
    drawn = [a for a, _ in draw(name, 40)] + [
        a & ~ieee.INFINITY | (97 + i % 38) << 23 for i, (a, _) in enumerate(draw(f"{name} middle", 60))
    ]
    found = [sign | x for x in (*CORNERS[: len(CORNERS) // 2], *near_ends) for sign in (0, ieee.SIGN)] + drawn
    low = {"log": 0, "log1p": -1}.get(name)
    return [x for x in found if ieee.is_finite(x) and x not in (0, ieee.SIGN) and (low is None or ieee.value(x) > low)]


def functions() -> dict[str, str]:
    """Functions whose result overflows give infinity, for the caller to stop at."""
    cases = {}
    exact = {**FUNCTIONS, "sin": trigonometric("sin"), "cos": trigonometric("cos")}
    for name, function in exact.items():
        values = {}
        for x in _arguments(name):
            number = ieee.value(x)
            if name in ("exp", "expm1"):
                number = max(min(number, Fraction(200)), Fraction(-200))
            values[x] = function(number)
        for width in (23, 32):
            cases[f"{name}_{width}"] = hexed(
                b"".join(packed(x, ieee.rounded(y, narrow_float32(width))) for x, y in values.items())
            )
    return cases


def sum_case(factors: list[tuple[int, int]]) -> dict[str, object]:
    units = sum(ieee.scaled(a) * ieee.scaled(b) for a, b in factors)
    return {
        "a": hexed(packed(*(a for a, _ in factors))),
        "b": hexed(packed(*(b for _, b in factors))),
        "total": hexed(units.to_bytes(PARTIAL_SUM_BYTES, "big", signed=True)),
        "rounded": ieee.rounded(Fraction(units, 1 << 298)),
    }


def sums() -> list[dict[str, object]]:
    one, tiny, huge = 0x3F800000, 1, ieee.LARGEST
    minus = ieee.SIGN
    cases = [
        [],
        [(0, 0)],
        [(minus, one)],
        [(minus | one, one)],
        [(tiny, tiny)],
        [(minus | tiny, tiny)],
        [(huge, huge)],
        [(minus | huge, huge)] * 3,
        # Cancellation to nothing, and to the last unit.
        [(huge, huge), (minus | huge, huge)],
        [(huge, huge), (tiny, tiny), (huge, minus | huge)],
        [(minus | tiny, tiny), (huge, huge), (huge, minus | huge)],
        # A tie, and a tie broken by the least possible product on either side.
        [(one, one), (0x33800000, one)],
        [(one + 1, one), (0x33800000, one)],
        [(one, one), (0x33800000, one), (tiny, tiny)],
        [(one + 1, one), (0x33800000, one), (minus | tiny, tiny)],
        [(minus | one, one), (minus | 0x33800000, one), (minus | tiny, tiny)],
        # Between the largest number and infinity: 2^128 - 2^103 is the tie.
        [(huge, one), (0x73000000, one)],
        [(huge, one), (0x73000000, one), (minus | tiny, tiny)],
        [(huge, one), (0x72FFFFFF, one)],
        # Underflow: half of the least number, more, and less.
        [(0x3F000000, tiny)],
        [(0x3F000000, tiny), (tiny, tiny)],
        [(0x3F000000, minus | tiny)],
        [(0x3F400000, minus | tiny)],
        [(tiny, one), (0x3F000000, tiny)],
    ]
    # A product in every one of the shifts that a window can have, of both signs.
    ladder = [((e // 2 + 1) << 23 | 0x7FFFFF, (e - e // 2 + 1) << 23 | 0x7FFFFF) for e in range(506)]
    cases += [ladder[start : start + 46] for start in range(0, 506, 46)]
    cases += [[(minus | a, b) for a, b in ladder[start : start + 100]] for start in range(0, 506, 100)]
    for i, length in enumerate((2, 3, 5, 17, 64, 64, 200)):
        drawn = [(a & ~minus | (b & minus), b) for a, b in draw(f"sum {i}", length)]
        finite = [(a if ieee.is_finite(a) else one, b if ieee.is_finite(b) else one) for a, b in drawn]
        cases.append(finite)
        cases.append(finite + [(a ^ minus, b) for a, b in finite[1:]])
    return [sum_case(case) for case in cases]


def philox() -> list[dict[str, object]]:
    cases = []
    for seed, step, stream in ((0, 0, 0), (7, 3, 11), (2**64 - 1, 2**32 - 1, 2**32 - 1), (2**63, 1, 2**31)):
        key = np.array([seed, (step << 32) + stream], np.uint64)
        words = np.random.Philox(key=key).random_raw(5000).astype("<u8").view("<u4")
        for index in (*range(9), 4095, 9999):
            cases.append({"seed": seed, "step": step, "stream": stream, "index": index, "word": int(words[index])})
    return cases


def shuffled(index: int, count: int, seed: bytes) -> int:
    """`compute_shuffled_index` as the consensus specs print it."""
    for round_number in range(90):
        pivot = int.from_bytes(sha256(seed + bytes([round_number])).digest()[:8], "little") % count
        flip = (pivot + count - index) % count
        position = max(index, flip)
        source = sha256(seed + bytes([round_number]) + (position // 256).to_bytes(4, "little")).digest()
        if (source[position % 256 // 8] >> position % 8) % 2:
            index = flip
    return index


def shuffle() -> list[dict[str, object]]:
    cases = []
    for seed, rows in ((0, 1), (7, 2), (7, 3), (2**64 - 1, 100), (3, 257), (5, 1797), (5, 2**40)):
        for position in (0, 1, rows - 1, rows, 3 * rows + rows // 2):
            epoch, index = divmod(position, rows)
            key = sha256(b"tiebreak/epoch" + seed.to_bytes(8, "big") + epoch.to_bytes(8, "big")).digest()
            cases.append({"seed": seed, "position": position, "rows": rows, "row": shuffled(index, rows, key)})
    return cases


def files() -> dict[Path, str]:
    """Every vector file and the text that it should have."""
    contents: dict[str, object] = {
        "binary32.json": binary32(),
        "functions.json": functions(),
        "sums.json": {"cases": sums()},
        "randomness.json": {"philox": philox(), "shuffle": shuffle()},
    }
    return {VECTORS / name: json.dumps(content, indent=1) + "\n" for name, content in contents.items()}


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, files()))
