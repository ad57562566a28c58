"""Compares the reference of tensor cores' sums (docs/arithmetic.md) with results of real GPUs, bit for bit.

    python scripts/compare_tensor_cores.py --vectors vectors.npz [--controls] [--shown] [--cases 100]
                                           [--markdown docs/arithmetic.md]

vectors.npz holds arrays of uint32, GPU|FORMAT|NAME: operands a, b (cases x K) and c (cases) as FP32 patterns, and the
results d_fp32 (FP32 patterns). An index.json beside it may say, for GPU/FORMAT/NAME, that another key's array is meant.
The results that docs/arithmetic.md tells of are those of arXiv 2512.07004, in the repository of its authors
(north-numerical-computing/MATLAB-tensor-core); they are no part of this one.

It prints a row for each set, as Markdown, and in the end how many results of the sets that an arithmetic covers are
equal. Sets of other GPUs are compared with every arithmetic, for information; FP8, and sums kept in FP16, have none.
The exit code is 0 if all are equal, and with --controls, if each of three wrong models differs in every set; 1 if not;
2 for a file that holds no such sets. --markdown replaces the section of the page.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from textwrap import fill
from tokenize import TokenError

import numpy as np
import numpy.typing as npt
from generated import with_section
from roundlog.adjudication import NoTensorCoreValueError, binary32
from roundlog.adjudication.tensor_core_groups import group
from roundlog.definitions.tensor_core import ARITHMETICS, OPERAND_FORMATS, TensorCoreArithmetic
from roundlog.number_format import FLOAT32, Format

Words = npt.NDArray[np.uint32]

PUBLISHED_NAMES = {"fp16": "f16"}
"""Names of formats in the results, where they are others than here."""

MOST_BYTES = 1 << 28
"""Largest array, and file, that is read."""


class VectorsError(ValueError):
    """A file of results is not what this script reads; the message is one sentence."""


@dataclass(frozen=True)
class ResultSet:
    """Results of one GPU for operands of one format. a, b: uint32[cases, K]; c, d: uint32[cases]; all FP32 patterns.
    same_as: GPUs before it whose c and d are the same arrays."""

    gpu: str
    format: str
    a: Words
    b: Words
    c: Words
    d: Words
    same_as: tuple[str, ...]

    @property
    def terms(self) -> int:
        return int(self.a.shape[1])

    def covering(self) -> TensorCoreArithmetic | None:
        """The arithmetic that this set has to equal."""
        found = [one for one in ARITHMETICS.values() if self.gpu in one.gpus and self.format in one.terms]
        return found[0] if found else None


def read_arrays(path: Path) -> dict[str, Words]:
    """Arrays of an npz file, by key; uint32 of at most MOST_BYTES. Raises VectorsError for any other file."""
    try:
        with zipfile.ZipFile(path) as file:
            return {entry.filename.removesuffix(".npy"): _array(file, entry) for entry in file.infolist()}
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as reason:
        raise VectorsError(f"{path} is no npz file: {reason}") from None


def _array(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Words:
    if entry.file_size > MOST_BYTES:
        raise VectorsError(f"{entry.filename} has {entry.file_size} bytes, more than {MOST_BYTES}")
    with file.open(entry) as stream:
        try:
            version = np.lib.format.read_magic(stream)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, fortran, dtype = read_header[version](stream)
        except (ValueError, KeyError, SyntaxError, TokenError, RecursionError, MemoryError):
            raise VectorsError(f"{entry.filename} is no array of NumPy's") from None
        data = stream.read()
    fits = 1 <= len(shape) <= 2 and min(shape) >= 0 and len(data) == 4 * math.prod(shape)
    if dtype != np.dtype("<u4") or fortran or not fits:
        raise VectorsError(f"{entry.filename} is no array of uint32 in one or two dimensions, row by row")
    return np.frombuffer(data, "<u4").reshape(shape)


def read_sets(path: Path, cases: int | None = None) -> tuple[list[ResultSet], dict[str, list[str]]]:
    """Sets in the order of their names; and kinds of sums that no arithmetic can be compared with -> their GPUs. cases:
    of each set, the first so many. Raises VectorsError."""
    arrays = read_arrays(path)
    names = {key.replace("|", "/"): key for key in arrays} | _index(path.parent / "index.json", arrays)
    sets: list[ResultSet] = []
    others: dict[str, list[str]] = {}
    for gpu, format in sorted({tuple(name.split("/")[:2]) for name in names if name.count("/") == 2}):
        held = {part: names.get(f"{gpu}/{format}/{part}") for part in ("a", "b", "c", "d_fp32")}
        name = PUBLISHED_NAMES.get(format, format)
        if name not in OPERAND_FORMATS:
            others.setdefault(format, []).append(gpu)
            continue
        if f"{gpu}/{format}/d_fp16" in names:
            others.setdefault(f"{format} with sums in fp16", []).append(gpu)
        missing = [part for part, key in held.items() if key is None]
        if missing:
            raise VectorsError(f"{gpu}/{format} has no {', '.join(missing)}")
        a, b, c, d = (arrays[key][:cases] for key in held.values() if key is not None)
        if not (a.ndim == 2 and a.shape == b.shape and c.shape == d.shape == a.shape[:1] and a.size > 0):
            raise VectorsError(f"{gpu}/{format} has shapes that do not fit: {a.shape}, {b.shape}, {c.shape}, {d.shape}")
        same = (one.gpu for one in sets if one.format == name)
        alike = tuple(one for one in same if all(names.get(f"{one}/{format}/{p}") == held[p] for p in ("c", "d_fp32")))
        sets.append(ResultSet(gpu, name, a, b, c, d, alike))
    if not sets:
        raise VectorsError(f"{path} holds no set of {', '.join(OPERAND_FORMATS)} with results in FP32")
    return sets, others


def _index(path: Path, arrays: Mapping[str, Words]) -> dict[str, str]:
    """Name -> key, of index.json if there is one."""
    if not path.is_file():
        return {}
    try:
        index = json.loads(path.read_text()) if path.stat().st_size < 1 << 20 else None
    except (ValueError, RecursionError):
        index = None
    if not isinstance(index, dict) or not all(isinstance(key, str) for key in index.values()):
        raise VectorsError(f"{path} is no table of names in JSON")
    found = {name: key.replace("/", "|") for name, key in index.items()}
    for name, key in found.items():
        if key not in arrays:
            raise VectorsError(f"{path} names {key} for {name}, which the vectors do not hold")
    return found


COLUMNS = ("GPU", "format", "K", "arithmetic", "F", "group", "cases", "equal")
SHOWN = (
    *("GPU", "format", "exponents of operands", "of c", "of results"),
    *("zeros", "subnormal", "infinite or NaN", "bits cancelled"),
)

TITLE = "## Compared with real GPUs"

TEXT = """
`scripts/compare_tensor_cores.py --markdown` writes this section from results that the authors of arXiv 2512.07004
measured and published (github.com/north-numerical-computing/MATLAB-tensor-core; they are not in this repository). A
case is c and K products; the instruction that ran has 16 products (tf32: 8), and all others are 0 * 0. The last
three columns say in how many cases wrong models are right: one bit less, two groups of K / 2, and the exact sum rounded
once to nearest.
"""

NUMBERS = """The numbers of these cases: least and largest exponents, how many words are zeros, subnormal operands,
infinite or NaN, and by how many bits a result lies below the largest exponent, at most.
"""

Model = Callable[[TensorCoreArithmetic, str, int, Sequence[int], Sequence[int]], int]


def groups(arithmetic: TensorCoreArithmetic, format: str, c: int, a: Sequence[int], b: Sequence[int]) -> int:
    """As many groups as the operands make, one on top of the other: one, where K is not more than a group's."""
    step = arithmetic.terms_of(format)
    for start in range(0, len(a), step):
        c = group(arithmetic, format, c, a[start : start + step], b[start : start + step])
    return c


def fewer_bits(arithmetic: TensorCoreArithmetic, format: str, c: int, a: Sequence[int], b: Sequence[int]) -> int:
    return groups(replace(arithmetic, fraction_bits=arithmetic.fraction_bits - 1), format, c, a, b)


def half_groups(arithmetic: TensorCoreArithmetic, format: str, c: int, a: Sequence[int], b: Sequence[int]) -> int:
    """Two groups of K / 2: of a set with K below the group's products, that is less than half of them."""
    return groups(replace(arithmetic, terms={format: max(len(a) // 2, 1)}), format, c, a, b)


def to_nearest(arithmetic: TensorCoreArithmetic, format: str, c: int, a: Sequence[int], b: Sequence[int]) -> int:
    """The exact sum, rounded once to nearest: what all other operators here compute."""
    products = (binary32.value(x) * binary32.value(y) for x, y in zip(a, b, strict=True))
    return binary32.rounded(sum(products, Fraction(binary32.value(c))))


CONTROLS: dict[str, Model] = {"F - 1": fewer_bits, "half groups": half_groups, "to nearest": to_nearest}


def equal(one: ResultSet, arithmetic: TensorCoreArithmetic, model: Model = groups) -> int:
    """Cases whose result is the model's; one without a value is not. Raises VectorsError for operands that are none."""
    found = 0
    for c, a, b, d in zip(one.c.tolist(), one.a.tolist(), one.b.tolist(), one.d.tolist(), strict=True):
        try:
            found += model(arithmetic, one.format, c, a, b) == d
        except NoTensorCoreValueError:
            continue
        except ValueError as reason:
            raise VectorsError(f"{one.gpu}/{one.format}: {reason}") from None
    return found


@dataclass
class Comparison:
    """Sets that were compared: results that an arithmetic covers, equal ones, and sets that a wrong model equals."""

    cases: int = 0
    equal: int = 0
    unshown: int = 0

    def row(self, one: ResultSet, controls: bool) -> str:
        """Compares a set, and returns its row. Raises VectorsError."""
        arithmetic, cases = one.covering(), len(one.d)
        start = f"| {one.gpu} | {one.format} | {one.terms} |"
        if arithmetic is None:
            tried = [each for each in ARITHMETICS.values() if one.format in each.terms]
            said = ", ".join(f"{each.name} {equal(one, each):,}" for each in tried)
            same = f"; the numbers of {one.same_as[0]}" if one.same_as else ""
            return f"{start} not covered ({said}{same}) | | | {cases:,} | |" + " |" * len(CONTROLS if controls else ())
        right = equal(one, arithmetic)
        wrong = [equal(one, arithmetic, model) for model in CONTROLS.values()] if controls else []
        self.cases, self.equal = self.cases + cases, self.equal + right
        self.unshown += any(count == cases for count in wrong)
        told = "".join(f" {count:,} |" for count in wrong)
        terms = arithmetic.terms_of(one.format)
        return f"{start} {arithmetic.name} | {arithmetic.fraction_bits} | {terms} | {cases:,} | {right:,} |{told}"

    def sentence(self) -> str:
        return f"{self.equal:,} of {self.cases:,} equal"

    def right(self) -> bool:
        return self.equal == self.cases > 0 == self.unshown


def shown(one: ResultSet) -> str:
    """A row that tells what the set's numbers are, and so what its results can show."""
    operands = OPERAND_FORMATS[one.format]
    both = np.concatenate([one.a, one.b], axis=1)
    special = sum(int(((words & 0x7F800000) == 0x7F800000).sum()) for words in (both, one.c, one.d))
    zeros = sum(int((words & 0x7FFFFFFF == 0).sum()) for words in (both, one.c, one.d))
    exponent = [_exponents(words) for words in (both, one.c, one.d)]
    magnitudes = np.abs(both.view(np.float32))
    subnormal = int(((magnitudes < 2.0**operands.least_exponent) & (magnitudes > 0)).sum())
    products = _exponents(one.a, operands) + _exponents(one.b, operands)
    largest = np.maximum(products.max(axis=1), _exponents(one.c))
    span = " | ".join(f"{each.min()} .. {each.max()}" for each in exponent)
    cancelled = int((largest - exponent[2]).max())
    return f"| {one.gpu} | {one.format} | {span} | {zeros} | {subnormal} | {special} | {cancelled} |"


def _exponents(words: Words, format: Format = FLOAT32) -> npt.NDArray[np.int64]:
    """Exponents of FP32 patterns, at least the format's least one."""
    least = FLOAT32.least_exponent if format == FLOAT32 else format.least_exponent
    found: npt.NDArray[np.int64] = np.maximum((words >> 23 & 0xFF).astype(np.int64) - 127, least)
    return found


def _head(columns: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise ValueError(text)
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True, help="npz file with results of GPUs")
    parser.add_argument("--controls", action="store_true", help="compare three wrong models too: each has to differ")
    parser.add_argument("--shown", action="store_true", help="print what the sets' numbers are instead")
    parser.add_argument("--cases", type=_count, help="compare the first so many cases of each set only")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="the page whose section to replace")
    options = parser.parse_args(arguments)
    controls = options.controls or options.markdown is not None
    compared = Comparison()
    try:
        sets, others = read_sets(options.vectors, options.cases)
        numbers = [*_head(SHOWN), *map(shown, sets)]
        if options.shown:
            print(*numbers, sep="\n")
            return 0
        lines = _head([*COLUMNS, *(CONTROLS if controls else ())])
        print(*lines, sep="\n")
        for one in sets:
            lines.append(compared.row(one, controls))
            print(lines[-1], flush=True)
    except VectorsError as reason:
        print(reason, file=sys.stderr)
        return 2
    named = (f"{kind} ({', '.join(gpus)})" for kind, gpus in sorted(others.items()))
    none = fill(f"No arithmetic: {', '.join(named)}.", 120) if others else ""
    print(*[none] * bool(none), *["A wrong model equals a whole set."] * bool(compared.unshown), sep="\n")
    print(compared.sentence())
    if options.markdown is not None:
        text = "\n".join([TITLE, TEXT, *lines, "", none, f"{compared.sentence()}.", "", NUMBERS, *numbers, ""])
        options.markdown.write_text(with_section(options.markdown.read_text(), text))
    return 0 if compared.right() else 1


if __name__ == "__main__":
    sys.exit(main())
