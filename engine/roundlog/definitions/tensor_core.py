"""Arithmetics of tensor cores: how a GPU's matrix units add products, as numbers that an implementation needs.

One *group* adds up to `terms` products of two operands to an FP32 number c: all are aligned to the largest exponent,
truncated to `fraction_bits` fractional bits, added exactly, and rounded toward zero to FP32. docs/arithmetic.md is the
standard; `roundlog.adjudication.tensor_core_groups` the reference. Nothing here computes.

Sources. Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (arXiv 2512.07004), with results of real GPUs
that their authors published: `scripts/compare_tensor_cores.py` holds the reference against those. Xie et al., "MMA-Sim"
(arXiv 2511.10909), who found the same numbers of fractional bits and products a group by other tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from roundlog.number_format import BFLOAT16, FLOAT16, Format

OPERAND_FORMATS: Mapping[str, Format] = MappingProxyType({"bf16": BFLOAT16, "f16": FLOAT16, "tf32": Format(8, 10)})
"""Formats of operands, by name. A number of each is an FP32 number, and stands as FP32's bit pattern."""

SEGMENT_TERMS = 2048
"""Products of one segment. A longer sum is cut into segments, and each begins at zero."""

LEAST_EXPONENT = -126
"""Exponent of the least normal FP32 number. A result below 2^-126 that is not zero has no value."""

LARGEST_EXPONENT = 121
"""Largest exponent of a term that has a value. Seventeen terms of it, each below 2^123, stay below 2^128."""


@dataclass(frozen=True, kw_only=True)
class TensorCoreArithmetic:
    """Arithmetic of one family of GPUs. Its name and version never change their bits: what would is another one.

    name, version: as a job names it. gpus: those that it was compared with. fraction_bits: F, bits kept below the
    largest exponent. terms: products of a group, by format of the operands; formats that are missing are not defined.
    subnormals: formats whose subnormal operands were seen to count in results of real GPUs. segment_terms: products
    of a segment, a multiple of every group's."""

    name: str
    version: int
    gpus: tuple[str, ...]
    fraction_bits: int
    terms: Mapping[str, int]
    subnormals: frozenset[str]
    segment_terms: int = SEGMENT_TERMS

    def terms_of(self, format: str) -> int:
        """Products of a group. Raises ValueError for a format that this arithmetic does not define."""
        if format not in self.terms:
            raise ValueError(f"{self.name} is not defined for {format}: choose {', '.join(self.terms)}")
        return self.terms[format]

    def segments(self, terms: int) -> int:
        """Segments of a sum of so many products."""
        return -(-terms // self.segment_terms)


def _named(*arithmetics: TensorCoreArithmetic) -> Mapping[str, TensorCoreArithmetic]:
    return MappingProxyType({one.name: one for one in arithmetics})


ARITHMETICS = _named(
    TensorCoreArithmetic(
        name="hopper",
        version=1,
        gpus=("H100", "H200", "B200"),
        fraction_bits=25,
        terms=MappingProxyType({"bf16": 16, "f16": 16, "tf32": 8}),
        subnormals=frozenset({"f16"}),
    ),
    TensorCoreArithmetic(
        name="ampere",
        version=1,
        gpus=("A100", "Ada"),
        fraction_bits=24,
        terms=MappingProxyType({"bf16": 8, "f16": 8, "tf32": 4}),
        subnormals=frozenset({"f16"}),
    ),
    TensorCoreArithmetic(
        name="volta",
        version=1,
        gpus=("V100",),
        fraction_bits=23,
        terms=MappingProxyType({"f16": 4}),
        subnormals=frozenset(),
    ),
)
"""Every arithmetic, by name. Its position is its code in descriptors: one that has been given stays."""


def code_of(name: str) -> int:
    """Code of an arithmetic in descriptors. Raises ValueError for a name that there is not."""
    return list(ARITHMETICS).index(name)


def arithmetic_of(code: int) -> TensorCoreArithmetic:
    """The arithmetic of a code. Raises IndexError for one that there is not."""
    return list(ARITHMETICS.values())[code]
