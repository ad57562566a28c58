"""Choice of the kernels by which a device multiplies matrices as tensor cores of an arithmetic do, by trying them.

Tensor cores are used where the device is of the arithmetic's family and agrees with the CPU's emulation on the vectors
of this file; integers where it is not, or does not agree, and integers do. No device has run any of this yet."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from roundlog.definitions.tensor_core import ARITHMETICS, OPERAND_FORMATS
from roundlog.kernels.environment import right_environment
from roundlog.kernels.tensor_core_products import GroupArithmetic, tensor_core_product
from roundlog.kernels.threads import own_threads
from roundlog.number_format import Format

FAMILIES = {(8, 0): "ampere", (8, 9): "ampere", (9, 0): "hopper", (10, 0): "hopper"}
"""Arithmetics of tensor cores, by a device's compute capability: of those GPUs whose results docs/arithmetic.md has
seen. V100 (7.0) is not among them: Triton compiles its dots to FP32 instructions."""

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}

I64 = npt.NDArray[np.int64]
T = TypeVar("T")

_SIDE = 32
"""Rows and columns of most tests' matrices. These tests have 4,096 sums."""
_TILES = (2, 144, 80), (2, 80, 160)
"""Shapes of the last test, of 46,080 sums: two products, each of several of a program's tiles, which end where their
matrices do neither in rows nor in columns nor in terms."""


class ProductKernels(enum.Enum):
    """Kernels by which a device multiplies as tensor cores of an arithmetic."""

    NATIVE = "tensor cores"
    EMULATED = "integers"
    NONE = "not at all"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first sum of a test that a device computes otherwise than the CPU."""

    test: str
    element: int
    found: int
    expected: int
    """FP32's bit patterns."""

    def __str__(self) -> str:
        return f"element {self.element} of the test {self.test!r} is {self.found:#010x}, not {self.expected:#010x}"


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """Kernels that a device may use, and why not others."""

    way: ProductKernels
    native: Difference | str | None = None
    """Why its tensor cores are not used although they are of the family."""
    emulated: Difference | str | None = None
    """Why its integers are not used."""


def vectors(format: Format) -> Iterator[tuple[str, I64, I64]]:
    """Operands of the tests, made by Philox from the seed 0: (name, words [M, K], words [K, N]), or of two products,
    [2, M, K] and [2, K, N]."""
    rng = np.random.Generator(np.random.Philox(0))
    top, bias = (1 << format.exponent_bits) - 1, format.largest_exponent

    def words(shape: tuple[int, ...], low: int | I64, high: int | I64, negative: float = 0.5) -> I64:
        """Numbers with all fractions, and fields of the exponent from low to high."""
        fields = np.clip(rng.integers(low, high, shape, endpoint=True), 0, top)
        fractions = rng.integers(0, 1 << format.fraction_bits, shape)
        return fields << format.fraction_bits | fractions | np.where(rng.random(shape) < negative, format.sign, 0)

    def matrices(terms: int, low: int, high: int, negative: float = 0.5) -> tuple[I64, I64]:
        return words((_SIDE, terms), low, high, negative), words((terms, _SIDE), low, high, negative)

    # More than a segment, the last group not full.
    yield "long sums", *matrices(2100, bias - 7, bias)
    # Every product is followed by nearly its opposite.
    a, b = matrices(512, bias - 5, bias)
    a[:, 1::2] = a[:, ::2] ^ format.sign
    b[1::2] = b[::2] ^ (rng.random((256, _SIDE)) < 0.125)
    yield "cancellation", a, b
    # Sums that grow, so that most products are truncated, and nearly all sums rounded.
    yield "growing sums", *matrices(2048, bias - 1, bias, 1 / 16)
    # The least and the largest exponents that are left to tensor cores, of products or of sums.
    half = _SIDE // 2
    for name, exponent in (("least exponents", -50), ("largest exponents", 44)):
        low = min(max(bias + exponent, 1), top - 11)
        yield name, words((half, 200), low, low + 10), words((200, half), low, low + 10)
    # Rows from the least exponents to the largest: subnormal numbers, zeros, infinities and NaN among them.
    fields = np.linspace(0, top, half).astype(np.int64)[:, None]
    a, b = words((half, 72), fields - 2, fields + 2), words((72, _SIDE), bias - 2, bias + 2)
    a[::3, :40:2] &= format.sign
    b[50:, ::4] = 0
    yield "all exponents", a, b
    a, b = (words(shape, bias - 6, bias) for shape in _TILES)
    yield "several tiles", a, b


def tensor_of(words: I64, format: str) -> torch.Tensor:
    """Words of a format of 16 bits, "bf16" or "f16", as the numbers that they are, of the same shape."""
    return torch.from_numpy(words.astype(np.uint16).view(np.int16)).view(DTYPES[format])


def first_difference(device: torch.device, name: str, format: str, native: bool) -> Difference | None:
    """The first sum that tensor cores, or else integers, of a device add otherwise than the CPU does; None if there is
    none. Operands are laid out as those of a layer's product, and of its derivatives."""
    from roundlog.kernels.cuda import tensor_core_kernels as kernels

    arithmetic = GroupArithmetic.of(ARITHMETICS[name], format)
    for number, (test, left, right) in enumerate(vectors(OPERAND_FORMATS[format])):
        a, b = tensor_of(left, format), tensor_of(right, format)
        there = [x.to(device) for x in (a, b)]
        if number % 2:
            there[0] = there[0].mT.contiguous().mT
        if number // 2 % 2:
            there[1] = there[1].mT.contiguous().mT
        found = kernels.segment_sums(there[0], there[1], arithmetic, native).cpu().view(torch.int32).flatten()
        expected = tensor_core_product(a, b, arithmetic).sums.view(torch.int32).flatten()
        wrong = (found != expected).nonzero()
        if len(wrong):
            at = int(wrong[0])
            return Difference(test, at, int(found[at]) & 0xFFFFFFFF, int(expected[at]) & 0xFFFFFFFF)
    return None


def family(device: torch.device) -> str | None:
    """The arithmetic of a CUDA device's tensor cores; None if it is not known. AMD's devices call themselves cuda, too,
    and one of them (gfx90a) says that its capability is Hopper's."""
    return None if torch.version.hip else FAMILIES.get(torch.cuda.get_device_capability(device))


def tried(trial: Callable[[], T]) -> T | str:
    """What a trial finds on one thread, or the words of what it raises."""
    try:
        # The answer is kept for the whole process, whatever floating-point environment this thread has.
        with own_threads(), right_environment():
            return trial()
    except Exception as error:
        # No compiler, too little shared memory, a driver that is too old: whatever it is, there is another way.
        return f"{type(error).__name__}: {error}"


def judge(device: torch.device, name: str, format: str, native: bool) -> DeviceVerdict:
    """A device's verdict, by trying it. native: whether it is of the arithmetic's family."""
    emulated = tried(lambda: first_difference(device, name, format, False))
    if emulated is not None:
        return DeviceVerdict(ProductKernels.NONE, None, emulated)
    by_tensor_cores = tried(lambda: first_difference(device, name, format, True)) if native else None
    is_native = native and by_tensor_cores is None
    return DeviceVerdict(ProductKernels.NATIVE if is_native else ProductKernels.EMULATED, by_tensor_cores)


@cache
def verdict(device: torch.device, name: str, format: str) -> DeviceVerdict:
    """`judge` of a CUDA device, once in a process. None of AMD's is tried: matrix cores add otherwise there, and no
    kernel of this room is compiled for them."""
    if torch.version.hip:
        return DeviceVerdict(ProductKernels.NONE, None, "it is AMD's, whose matrix cores have no arithmetic here")
    return judge(device, name, format, family(device) == name)


def segment_sums(a: torch.Tensor, b: torch.Tensor, name: str, format: str) -> torch.Tensor | None:
    """Sums of the products of every segment on the operands' device, f32[segments, ..., M, N], NaN where there is no
    value; None if the device does not compute them. a: [..., M, K], b: [..., K, N], bf16 or fp16."""
    from roundlog.kernels.cuda import tensor_core_kernels as kernels

    found = verdict(a.device, name, format).way
    if found is ProductKernels.NONE:
        return None
    return kernels.segment_sums(a, b, GroupArithmetic.of(ARITHMETICS[name], format), found is ProductKernels.NATIVE)
