"""Compares the reference of tensor cores' sums (docs/arithmetic.md) with results of real GPUs, bit for bit.

    python scripts/compare_tensor_cores.py vectors.npz [--cases 100]

vectors.npz holds arrays of uint32, GPU|FORMAT|NAME: operands a, b (cases x K) and c (cases) as FP32 patterns, and the
results d_fp32 (FP32 patterns). An index.json beside it may say, for GPU/FORMAT/NAME, that another key's array is meant.
The results that docs/arithmetic.md tells of are those of arXiv 2512.07004, in the repository of its authors
(north-numerical-computing/MATLAB-tensor-core); they are no part of this one.

It prints a row of the page's table for each set that an arithmetic covers: how many cases are equal, and in how many
three wrong models are. The exit code is 0 if all are equal and each wrong model differs in every set, and 1 if not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from roundlog.adjudication import NoTensorCoreValueError, binary32
from roundlog.adjudication.tensor_core_groups import group
from roundlog.definitions.tensor_core import ARITHMETICS, TensorCoreArithmetic

Words = npt.NDArray[np.uint32]
Model = Callable[[TensorCoreArithmetic, str, int, Sequence[int], Sequence[int]], int]

PUBLISHED_NAMES = {"f16": "fp16"}
"""Names of formats in the results, where they are others than here."""


@dataclass(frozen=True)
class ResultSet:
    """Results of one GPU for operands of one format. a, b: uint32[cases, K]; c, d: uint32[cases]; all FP32 patterns."""

    gpu: str
    format: str
    arithmetic: TensorCoreArithmetic
    a: Words
    b: Words
    c: Words
    d: Words

    def equal(self, model: Model) -> int:
        """Cases whose result is the model's; one without a value is not."""
        found = 0
        for c, a, b, d in zip(*(words.tolist() for words in (self.c, self.a, self.b, self.d)), strict=True):
            try:
                found += model(self.arithmetic, self.format, c, a, b) == d
            except NoTensorCoreValueError:
                continue
        return found


def read_sets(path: Path, cases: int | None = None) -> Iterator[ResultSet]:
    """Sets that an arithmetic covers, by the names of GPUs. cases: of each set, the first so many."""
    index: Mapping[str, str] = {}
    if (names := path.parent / "index.json").is_file():
        index = json.loads(names.read_text())
    covered = [(gpu, each) for each in ARITHMETICS.values() for gpu in each.gpus]
    with np.load(path) as arrays:
        for gpu, arithmetic in sorted(covered, key=lambda one: one[0]):
            for format in sorted(arithmetic.terms):
                parts = [f"{gpu}/{PUBLISHED_NAMES.get(format, format)}/{part}" for part in ("a", "b", "c", "d_fp32")]
                keys = [index.get(name, name).replace("/", "|") for name in parts]
                if all(key in arrays for key in keys):
                    yield ResultSet(gpu, format, arithmetic, *(arrays[key][:cases] for key in keys))


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=Path, help="npz file with results of GPUs")
    parser.add_argument("--cases", type=int, help="compare the first so many cases of each set only")
    options = parser.parse_args(arguments)
    columns = ("GPU", "format", "K", "arithmetic", "F", "group", "cases", "equal", *CONTROLS)
    print(f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), sep="\n")
    cases = equal = 0
    shows = True
    for one in read_sets(options.vectors, options.cases):
        right, wrong = one.equal(groups), [one.equal(model) for model in CONTROLS.values()]
        terms = one.arithmetic.terms_of(one.format)
        row = (one.gpu, one.format, one.a.shape[1], one.arithmetic.name, one.arithmetic.fraction_bits, terms)
        counts = (f"{count:,}" for count in (len(one.d), right, *wrong))
        print(f"| {' | '.join(map(str, (*row, *counts)))} |", flush=True)
        cases, equal = cases + len(one.d), equal + right
        shows &= max(wrong) < len(one.d)
    print(*["A wrong model equals a whole set."] * (not shows), f"{equal:,} of {cases:,} equal", sep="\n")
    return 0 if equal == cases > 0 and shows else 1


if __name__ == "__main__":
    sys.exit(main())
