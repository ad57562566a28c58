"""Numbers of operands and results as they lie in memory: FP32, as float32, or BF16, whose words are the upper halves of
FP32's, as uint16, because NumPy has no BF16. Instructions read either as FP32 vectors and write FP64 vectors as either,
rounded once; which it is, the array's type says when a loop is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from roundlog.kernels.threads import in_parts
from roundlog.number_format import BFLOAT16

_SINGLE, _SHORT, _WORD, _LONG = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)

Words = npt.NDArray[np.float32] | npt.NDArray[np.uint16]

_DROPPED = 52 - 7
"""Bits of FP64's fraction that BF16 has not."""
_LEAST_NORMAL = 2.0**-126
_NEAR_LARGEST = 2.0**127
_NAN = BFLOAT16.nan << 16
"""The one NaN of BF16, as FP32's word."""
_SMALL = 1.5 * 2.0 ** (52 - 133)
"""FP64 numbers of this size are multiples of 2^-133, as all numbers of BF16 are."""


def instructions(result: Any, **kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a function that writes LLVM's instructions by a builder, for compiled loops, which call it without
    that. It is given tuples and arrays as their types, and numbers as LLVM's values: int64, bool, or of numba's type in
    `kinds`, by name, where None stands for any. It returns a value of the type `result`, or none of `types.void`."""

    def made(write: Callable[..., Any]) -> Any:
        names = list(signature(write).parameters)[1:]

        @wraps(write)
        def typed(typingctx: Any, *given: Any) -> Any:
            is_kept = [isinstance(kind, types.BaseTuple | types.Array) for kind in given]

            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                each = zip(given, arguments, is_kept, strict=True)
                value = write(builder, *(kind if kept else argument for kind, argument, kept in each))
                return context.get_dummy_value() if result == types.void else value

            taken = (
                kind if kept or isinstance(kind, types.Boolean) else kinds.get(name, types.int64) or kind
                for name, kind, kept in zip(names, given, is_kept, strict=True)
            )
            return result(*taken), generate

        return intrinsic(typed)

    return made


def words_of(x: torch.Tensor) -> Words:
    """x: f32 or bf16, contiguous, on the CPU. Its memory, flat, as kernels take it."""
    flat = x.detach().view(-1)
    words: Words = flat.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else flat.numpy()
    return words


def storage_of(x: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return the memory that an FP32 CPU tensor lies in, flat: x[0] is at x.storage_offset(), x[1] at x.stride(0) from
    it."""
    flat: npt.NDArray[np.float32] = _whole(x).numpy()
    return flat


def words_around(x: torch.Tensor) -> Words:
    """Return `storage_of` for a tensor of FP32 or BF16, as `words_of` does."""
    return words_of(_whole(x))


def _whole(x: torch.Tensor) -> torch.Tensor:
    return torch.as_strided(x.detach(), (x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)


def holds_bf16(x: Any) -> bool:
    """Whether an array's numbers are of BF16; x: its type for numba."""
    return bool(x.dtype == types.uint16)


def size_of(x: Any) -> int:
    """Bytes of a number."""
    return 2 if holds_bf16(x) else 4


def like(kind: Any, element: Any) -> Any:
    """The type with as many lanes, of other elements."""
    return ir.VectorType(element, kind.count) if isinstance(kind, ir.VectorType) else element


def _all(kind: Any, number: Any) -> Any:
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def from_words(builder: Any, words: Any) -> Any:
    """FP32 numbers from BF16's words, i16 or a vector."""
    kind = like(words.type, _WORD)
    wide = builder.shl(builder.zext(words, kind), _all(kind, 16))
    return builder.bitcast(wide, like(words.type, _SINGLE))


def nearest_numbers(builder: Any, y: Any) -> Any:
    """FP32 numbers, one or a vector, rounded to the nearest of BF16, ties to even, as the FP32 numbers that they are;
    every NaN becomes the one of BF16."""
    kind = like(y.type, _WORD)
    words = builder.bitcast(y, kind)
    odd = builder.and_(builder.lshr(words, _all(kind, 16)), _all(kind, 1))
    # A carry goes into the exponent, as rounding up does, and becomes an infinity behind the largest number.
    nearest = builder.add(words, builder.add(odd, _all(kind, 0x7FFF)))
    nearest = builder.and_(nearest, _all(kind, -0x10000))
    nearest = builder.select(builder.fcmp_unordered("uno", y, y), _all(kind, _NAN), nearest)
    return builder.bitcast(nearest, y.type)


def upper_halves(builder: Any, numbers: Any) -> Any:
    """BF16's words, i16, of FP32 numbers that are numbers of BF16."""
    words = builder.bitcast(numbers, like(numbers.type, _WORD))
    return builder.trunc(builder.lshr(words, _all(words.type, 16)), like(numbers.type, _SHORT))


def load_numbers(builder: Any, x: Any, address: Any, lanes: int) -> Any:
    """So many numbers of an array such as x from an address, as FP32 numbers; they are aligned as numbers are."""
    kind = ir.VectorType(_SHORT if holds_bf16(x) else _SINGLE, lanes)
    loaded = load_vector(builder, address, kind, size_of(x))
    return from_words(builder, loaded) if holds_bf16(x) else loaded


def rounded_words(builder: Any, x: Any, y: Any) -> Any:
    """FP64 numbers rounded to the numbers of an array such as x, once, to nearest, ties to even; as the FP32
    numbers that they are; infinities and NaN stay so. As `roundlog.arithmetic.formats.round_to` does it, but that a
    zero may have a sign."""
    singles = like(y.type, _SINGLE)
    if not holds_bf16(x):
        return builder.fptrunc(y, singles)
    longs = like(y.type, _LONG)
    words, cut = builder.bitcast(y, longs), _all(longs, _DROPPED)
    odd = builder.and_(builder.lshr(words, cut), _all(longs, 1))
    half = builder.add(odd, _all(longs, (1 << (_DROPPED - 1)) - 1))
    kept = _all(longs, -(1 << _DROPPED))
    nearest = builder.bitcast(builder.and_(builder.add(words, half), kept), y.type)
    magnitude = builder.bitcast(builder.and_(words, _all(longs, (1 << 63) - 1)), y.type)
    shift = _all(y.type, _SMALL)
    small = builder.fsub(builder.fadd(y, shift), shift)
    nearest = builder.select(builder.fcmp_ordered("<", magnitude, _all(y.type, _LEAST_NORMAL)), small, nearest)
    # The sum above can make an infinity of a NaN with all bits set.
    nearest = builder.select(builder.fcmp_unordered("uno", y, y), y, nearest)
    return builder.fptrunc(nearest, singles)


def store_words(builder: Any, x: Any, address: Any, numbers: Any) -> None:
    """FP32 numbers, which are numbers of an array such as x, to an address."""
    if holds_bf16(x):
        numbers = upper_halves(builder, numbers)
    builder.store(numbers, builder.inttoptr(address, numbers.type.as_pointer())).align = size_of(x)


@instructions(types.float32, word=None)
def number(builder: Any, word: Any) -> Any:
    """A word of an array, float32, uint16 of BF16, or uint8 of bool, as the FP32 number that it is."""
    if word.type == ir.IntType(8):
        return builder.uitofp(word, _SINGLE)
    return from_words(builder, word) if word.type == _SHORT else word


def load_vector(builder: Any, address: Any, kind: Any, aligned: int) -> Any:
    """A vector of this type from an address, an integer, which is aligned to so many bytes."""
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = aligned
    return loaded


def constant(number: int) -> Any:
    """An int64 of LLVM's."""
    return ir.Constant(_LONG, number)


def call_by_name(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """A call of a function of LLVM's, by its whole name."""
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(result, [one.type for one in arguments]), name)
    return builder.call(function, arguments)


def intrinsic_of(builder: Any, name: str, *arguments: Any, result: Any = None) -> Any:
    """A function of LLVM's that takes, and unless `result` says otherwise returns, numbers or vectors of one type."""
    kind = arguments[0].type
    of = f"v{kind.count}{kind.element.intrinsic_name}" if isinstance(kind, ir.VectorType) else kind.intrinsic_name
    return call_by_name(builder, f"llvm.{name}.{of}", result or kind, *arguments)


def everywhere(builder: Any, number: Any, count: int) -> Any:
    """A vector of nothing but this number."""
    undefined = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_WORD, count), [0] * count))


class VectorCode:
    """Instructions on vectors in memory, where a builder is. Addresses are integers, of bytes."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def at(self, address: Any, bytes_on: int) -> Any:
        return self.builder.add(address, constant(bytes_on))

    def on(self, address: Any, step: Any, size: int) -> Any:
        """The address that lies `step` times so many bytes on."""
        return self.builder.add(address, self.builder.mul(step, constant(size)))

    def load(self, address: Any, kind: Any, aligned: int) -> Any:
        return load_vector(self.builder, address, kind, aligned)

    def store(self, address: Any, value: Any, aligned: int) -> None:
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer())).align = aligned

    def all(self, kind: Any, number: Any) -> Any:
        return ir.Constant(kind, [number] * kind.count)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c. Products of FP32 numbers are exact in FP64, and those of BF16 numbers in FP32, so it makes no
        difference whether this is one instruction, which the compiler decides by what the processor has."""
        return intrinsic_of(self.builder, "fmuladd", a, b, c)

    def sum_of(self, numbers: Any) -> Any:
        """The sum of a vector's numbers, half to half."""
        left = numbers.type.count
        while left > 1:
            left //= 2
            halves = [ir.Constant(ir.VectorType(_WORD, left), list(range(n, n + left))) for n in (0, left)]
            numbers = self.builder.fadd(*(self.builder.shuffle_vector(numbers, numbers, half) for half in halves))
        return self.builder.extract_element(numbers, ir.Constant(_WORD, 0))


def widen_pairs(builder: Any, pairs: Any) -> tuple[Any, Any]:
    """FP32 numbers from pairs of BF16's words: the lower ones, and the upper ones."""
    singles = like(pairs.type, _SINGLE)
    lower = builder.shl(pairs, _all(pairs.type, 16))
    upper = builder.and_(pairs, _all(pairs.type, -0x10000))
    return builder.bitcast(lower, singles), builder.bitcast(upper, singles)


@instructions(types.int64, y=types.float64)
def word_of(builder: Any, y: Any) -> Any:
    """The bits of an FP64 number."""
    return builder.bitcast(y, _LONG)


@instructions(types.float64)
def of_word(builder: Any, word: Any) -> Any:
    """The FP64 number with these bits."""
    return builder.bitcast(word, ir.DoubleType())


@instructions(types.float32, y=types.float64)
def round_number(builder: Any, y: Any, x: Any) -> Any:
    """`rounded_words` of one FP64 number, for an array such as x."""
    return rounded_words(builder, x, y)


@njit(inline="always")
def is_certain(y: float, reach: float) -> bool:
    """Whether all numbers within `reach` of y round to one number of BF16. False says nothing."""
    magnitude = abs(y)
    # The last 45 bits of y tell how far it is from the middle between two numbers, in its last places; below a power of
    # two, where numbers lie closer, the middle is 2^43 of them away.
    places = (word_of(y) & ((1 << _DROPPED) - 1)) - (1 << (_DROPPED - 1))
    away = np.float64(abs(places)) * (magnitude * 2.0**-53)
    return bool(_LEAST_NORMAL < magnitude < _NEAR_LARGEST and reach < away and reach < magnitude * 2.0**-11)


@instructions(types.uint16, number=types.float32)
def short_word(builder: Any, number: Any) -> Any:
    """The word of an FP32 number that is one of BF16."""
    return upper_halves(builder, number)


@instructions(types.float32, y=types.float32)
def nearest_number(builder: Any, y: Any) -> Any:
    """`nearest_numbers` of one FP32 number."""
    return nearest_numbers(builder, y)


@njit(cache=True, nogil=True)
def _nearest(numbers: Any, out: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        out[i] = short_word(nearest_number(numbers[i]))


def nearest_bf16(x: torch.Tensor) -> torch.Tensor:
    """x: f32, contiguous, on the CPU -> bf16 of x's shape: the nearest numbers, ties to even."""
    result = torch.empty(x.shape, dtype=torch.bfloat16)
    numbers, out = words_of(x), words_of(result)
    in_parts(lambda start, stop: _nearest(numbers, out, start, stop), x.numel(), x.numel())
    return result
