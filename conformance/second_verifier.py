"""Second verifier of Tiebreak: repeats a job's run from the pages of docs/ alone, and shares no code with the engine.

    python conformance/second_verifier.py JOB                           prints the roots that the run comes to
    python conformance/second_verifier.py JOB --receipt receipt.json    says right, or the first interval that differs
    python conformance/second_verifier.py JOB --claim 0x...             compares the checkpoint root alone
    python conformance/second_verifier.py JOB --receipt text.json --model DIR    JOB generates the text of the receipt
    python conformance/second_verifier.py --vectors conformance/vectors

One file of Python and numpy, to be read from top to bottom: formats and rounding, exact sums, elementary functions,
operators, tensor cores, random numbers, hashes, jobs, receipts of runs, texts, vectors. Three files beside it do what
executes nothing. It is slow, and a product has all its terms in memory. Exit codes are those of docs/receipt.md:
0 right, 1 it cannot be told, 3 wrong.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import hashlib
import json
import math
import re
import runpy
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

RIGHT, UNTOLD, WRONG = 0, 1, 3
"""Exit codes."""


class Refused(Exception):
    """Something cannot be told: a malformed file, a job of another receipt, an operator that is missing here."""


class Stopped(Exception):
    """A step has no result: an index out of range, or a loss or state that is not finite (docs/numerics.md)."""


# --- formats of numbers and rounding to them (docs/numerics.md) ---


@dataclass(frozen=True)
class Format:
    """A format of binary floating point: bits of exponent and of fraction."""

    exponent: int
    fraction: int

    @property
    def least(self) -> int:
        """Exponent of the least normal number."""
        return 2 - (1 << self.exponent - 1)

    @property
    def overflow(self) -> int:
        """Exponent of the least power of two that is too large."""
        return 1 << self.exponent - 1


FORMATS = {"f32": Format(8, 23), "bf16": Format(8, 7), "f16": Format(5, 10)}
"""dtypes of numbers. Their values are held in arrays of np.float32, which has every number of the three."""

HELD_IN: dict[str, type] = {"i64": np.int64, "bool": np.bool_, **dict.fromkeys(FORMATS, np.float32)}
WORDS = {"f32": "<u4", "bf16": "<u2", "f16": "<u2", "i64": "<i8", "bool": "<u1"}
NANS = {"f32": 0x7FC00000, "bf16": 0x7FC0, "f16": 0x7E00}


def round_array(values: Array, to: Format) -> Array:
    """FP64 numbers rounded once to a format, to nearest, ties to even; as FP64."""
    _, exponents = np.frexp(values)
    quantum = np.maximum(exponents - 1, to.least) - to.fraction
    rounded = np.ldexp(np.rint(np.ldexp(values, -quantum)), quantum)
    rounded = np.where(np.abs(rounded) >= 2.0**to.overflow, np.copysign(np.inf, values), rounded)
    return np.where(np.isfinite(values), rounded, values)


def round_rational(value: Fraction, to: Format) -> float:
    """A rational number rounded once to a format, to nearest, ties to even."""
    number, unit = abs(value.numerator), value.denominator
    if number == 0:
        return 0.0
    exponent = number.bit_length() - unit.bit_length()
    if (number << max(-exponent, 0)) < (unit << max(exponent, 0)):
        exponent -= 1
    quantum = max(exponent, to.least) - to.fraction
    unit <<= max(quantum, 0)
    whole, rest = divmod(number << max(-quantum, 0), unit)
    whole += 2 * rest > unit or (2 * rest == unit and whole % 2 == 1)
    large = whole.bit_length() + quantum > to.overflow
    return math.copysign(math.inf if large else math.ldexp(whole, quantum), value)


def certify(values: Array, errors: Array, to: Format, exact: Callable[[int], float]) -> Array:
    """
    The rounding of numbers that are known within an error.

    :param values: FP64, any shape; what is infinite or NaN stays.
    :param errors: bounds of their errors, FP64, of that shape.
    :param exact: the right result of an element, by its flat index, where both ends of its interval round differently.
    :return: numbers of the format, as FP64; every zero is +0.
    """
    low, high = round_array(values - errors, to), round_array(values + errors, to)
    result = np.where(np.isfinite(values), low, values)
    for index in np.flatnonzero(np.isfinite(values) & (low != high)):
        result.flat[index] = exact(int(index))
    return result + 0.0


# --- exact sums ---


def sum_terms(terms: Array, to: Format) -> Array:
    """Sums over the last axis of FP64 numbers, which are taken to be exact, each rounded once; FP64, every zero +0."""
    values, magnitudes = terms.sum(-1), np.abs(terms).sum(-1)

    def exact(index: int) -> float:
        row = terms[np.unravel_index(index, values.shape)]
        return round_rational(sum(map(Fraction, row.tolist()), Fraction(0)), to)

    return certify(values, (terms.shape[-1] + 2) * 2.0**-52 * magnitudes, to, exact)


def sum_products(a: Array, b: Array, used: Array | bool, axes: int, to: Format) -> Array:
    """
    Sums of a * b over the last axes, each rounded once.

    :param a: numbers that FP32 has, and
    :param b: others, which broadcast to one shape: products of them are exact in FP64.
    :param used: bool, which terms count; whatever stands in the others is left out.
    :param axes: how many of the last axes are summed over.
    """
    terms = np.where(used, a.astype(np.float64) * b.astype(np.float64), 0.0)
    return sum_terms(terms.reshape(*terms.shape[: terms.ndim - axes], math.prod(terms.shape[terms.ndim - axes :])), to)


# --- elementary functions: FP64 where that is enough, else integers of as many bits as it takes ---

ENOUGH = 2.0**-44
"""Relative error that FP64 functions of numpy are trusted with, 256 units in the last place."""


def fixed(value: Fraction, bits: int) -> int:
    """A number in units of 2^-bits, rounded down."""
    return (value.numerator << bits) // value.denominator


def arctangent(n: int, bits: int, sign: int) -> int:
    """The sum of sign^k / ((2k + 1) n^(2k + 1)) in units of 2^-bits, within twice the number of its terms."""
    power, total, k = (1 << bits) // n, 0, 0
    while power:
        total += sign**k * (power // (2 * k + 1))
        power, k = power // (n * n), k + 1
    return total


@functools.cache
def log_of_2(bits: int) -> int:
    """log 2 in units of 2^-bits, within one."""
    return 2 * arctangent(3, bits + 20, 1) >> 20


@functools.cache
def pi(bits: int) -> int:
    """Pi in units of 2^-bits, within one (Machin)."""
    return 16 * arctangent(5, bits + 20, -1) - 4 * arctangent(239, bits + 20, -1) >> 20


Interval = tuple[Fraction, Fraction]


def around(number: int, error: int, bits: int, exponent: int = 0) -> Interval:
    """The interval (number - error, number + error) * 2^(exponent - bits)."""
    scale = Fraction(2) ** (exponent - bits)
    return (number - error) * scale, (number + error) * scale


SLACK = 2**12
"""Units that the truncations of a series of at most a thousand terms, and of its argument, come to at most."""


def exp_between(x: Fraction, bits: int) -> Interval:
    """e^x, relatively within about 2^-bits; taken at 800 where abs(x) is larger, which no format tells apart."""
    x = max(min(x, Fraction(800)), Fraction(-800))
    bits += 16
    k = round(x * 2**64 / log_of_2(64))
    r = fixed(x, bits) - k * log_of_2(bits)
    term = total = 1 << bits
    n = 1
    while term:
        term = (term * r >> bits) // n if r >= 0 else -((term * -r >> bits) // n)
        total, n = total + term, n + 1
    return around(total, SLACK, bits, k)


def expm1_between(x: Fraction, bits: int) -> Interval:
    """e^x - 1."""
    low, high = exp_between(x, bits)
    return low - 1, high - 1


def log_between(x: Fraction, bits: int) -> Interval:
    """The natural logarithm of x > 0: e log 2 + 2 atanh((m - 1) / (m + 1)), x = m 2^e."""
    bits += 16
    e = x.numerator.bit_length() - x.denominator.bit_length()
    m = x / Fraction(2) ** e
    z = (m - 1) / (m + 1)
    square, power, total, n = fixed(z * z, bits), fixed(abs(z), bits), 0, 1
    while power:
        total += power // n
        power, n = power * square >> bits, n + 2
    return around(e * log_of_2(bits) + (2 * total if z >= 0 else -2 * total), SLACK, bits)


def log1p_between(x: Fraction, bits: int) -> Interval:
    """log(1 + x), x > -1."""
    return log_between(1 + x, bits)


def tanh_between(x: Fraction, bits: int) -> Interval:
    """The hyperbolic tangent: (E - 1) / (E + 1), E = e^(2x), taken at 64 where x is larger."""
    low, high = exp_between(2 * max(min(x, Fraction(64)), Fraction(-64)), bits)
    return (low - 1) / (low + 1), (high - 1) / (high + 1)


def erf_between(x: Fraction, bits: int) -> Interval:
    """The error function: 2 / sqrt(pi) * sum of (-1)^n x^(2n + 1) / (n! (2n + 1)), taken at 8 where x is larger."""
    bits += 128  # terms reach 8 e^64, below 2^96, and so do errors of one unit
    size = min(abs(x), Fraction(8))
    square, term, total, n = fixed(size * size, bits), fixed(size, bits), 0, 0
    while term:
        total += (-1) ** n * (term // (2 * n + 1))
        term, n = (term * square >> bits) // (n + 1), n + 1
    value = (2 * total << bits) // math.isqrt(pi(bits) << bits)
    return around(value if x >= 0 else -value, 1 << 110, bits)


def quadrant(x: Fraction, bits: int) -> tuple[int, int, int]:
    """x less a multiple of pi / 2: the multiple modulo 4, and cosine and sine of the rest in units of 2^-bits."""
    wide = bits + 150  # FP32 numbers are below 2^128, so the multiple's error in pi stays below a unit
    k = round(x * 2 ** (wide + 1) / pi(wide))
    r = fixed(x, wide) - (k * pi(wide) >> 1) >> 150
    sums, term, n = [0, 0], 1 << bits, 0
    while term:
        sums[n % 2] += term if n % 4 < 2 else -term
        n += 1
        term = (term * abs(r) >> bits) // n
    return k % 4, sums[0], sums[1] if r >= 0 else -sums[1]


def sin_between(x: Fraction, bits: int) -> Interval:
    """The sine of x radians."""
    turn, cosine, sine = quadrant(x, bits + 16)
    return around((sine, cosine, -sine, -cosine)[turn], SLACK, bits + 16)


def cos_between(x: Fraction, bits: int) -> Interval:
    """The cosine of x radians."""
    turn, cosine, sine = quadrant(x, bits + 16)
    return around((cosine, -sine, -cosine, sine)[turn], SLACK, bits + 16)


FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Fraction, int], Interval]]] = {
    "exp": (np.exp, exp_between),
    "expm1": (np.expm1, expm1_between),
    "log": (np.log, log_between),
    "log1p": (np.log1p, log1p_between),
    "tanh": (np.tanh, tanh_between),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), erf_between),
    "sin": (np.sin, sin_between),
    "cos": (np.cos, cos_between),
}


def elementary(name: str, x: Array, to: Format) -> Array:
    """An elementary function of numbers, each result rounded once; FP64, every zero +0."""
    fast, between = FUNCTIONS[name]
    values = fast(x.astype(np.float64))
    errors = np.where(np.isfinite(x), np.abs(values) * ENOUGH, 0.0)
    if name in ("sin", "cos"):  # how well a library reduces large arguments is not known: there each is in doubt
        errors = np.where(np.isfinite(x) & (np.abs(x) > 1024), np.inf, errors)

    def exact(index: int) -> float:
        argument = Fraction(float(x.flat[index]))
        for doublings in range(8):
            low, high = (round_rational(end, to) for end in between(argument, 64 << doublings))
            if low == high:
                return low
        raise Refused(f"{name} of {argument} is not decided by {64 << 7} bits.")

    return certify(values, errors, to, exact)


# --- operators (docs/operators.md): each takes the operator and the values of its inputs, and gives its own values ---


@dataclass(frozen=True)
class Operator:
    """An operator of a program: its name, numbers of its inputs, parameters, and dtype and shape of its output."""

    name: str
    inputs: tuple[int, ...]
    parameters: dict[str, Any]
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Step:
    """What a step reads beside the values of its operators, and the format that FP32 results are rounded to."""

    number: int = 0
    seed: int = 0
    state: list[Array] = field(default_factory=list)
    batch: list[Array] = field(default_factory=list)
    schedule: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    bits: int = 32

    def format(self, dtype: str) -> Format:
        """The format to which results of a dtype are rounded."""
        return Format(8, self.bits - 9) if dtype == "f32" else FORMATS[dtype]


Rule = Callable[[Operator, list[Array], Step], Array]
OPERATORS: dict[str, Rule] = {}


def operator(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of these operators."""

    def register(rule: Rule) -> Rule:
        OPERATORS.update(dict.fromkeys(names, rule))
        return rule

    return register


def from_words(words: Array, dtype: str) -> Array:
    """Values of little-endian words: bit patterns of numbers, integers, or 0 and 1."""
    if dtype == "bf16":
        return (words.astype(np.uint32) << 16).view(np.float32)
    if dtype in ("f32", "f16"):
        return words.view({"f32": np.float32, "f16": np.float16}[dtype]).astype(np.float32)
    return words.astype(HELD_IN[dtype])


def to_words(values: Array, dtype: str) -> Array:
    """Little-endian words of values; of every NaN the one pattern that its format has here."""
    if dtype not in FORMATS:
        return values.astype(WORDS[dtype])
    if dtype == "f16":
        words: Array = values.astype(np.float16).view(np.uint16)
    else:
        words = np.array(values, np.float32, order="C").view(np.uint32)
        words = words >> 16 if dtype == "bf16" else words
    return np.where(np.isnan(values), NANS[dtype], words).astype(WORDS[dtype])


def constant(op: Operator) -> Array:
    """The literals of a constant, in its shape."""
    items = np.array([item % 2**64 for item in op.parameters["bits"]], np.uint64)
    values = from_words(items.view(np.int64) if op.dtype == "i64" else items.astype(WORDS[op.dtype]), op.dtype)
    return values.reshape(op.shape) if len(items) == math.prod(op.shape) else np.broadcast_to(values, op.shape)


def iota(op: Operator) -> Array:
    """start + i * step, modulo 2^64."""
    items = [(op.parameters["start"] + i * op.parameters["step"]) % 2**64 for i in range(op.shape[0])]
    return np.array(items, np.uint64).view(np.int64)


def uniform(op: Operator, step: Step) -> Array:
    """Uniform numbers of a stream."""
    words = philox_words(step.seed, step.number * 2**32 + op.parameters["stream"], math.prod(op.shape))
    return (np.array(words, np.uint32) >> 8).astype(np.float32).reshape(op.shape) * np.float32(2.0**-24)


def inside(index: Array, size: int) -> Array:
    """The indices. Raises Stopped if one is outside of an axis of `size` elements."""
    if index.size and (index.min() < 0 or index.max() >= size):
        raise Stopped("an index is out of range")
    return index


def gather(op: Operator, x: Array, index: Array) -> Array:
    """The elements of x at the indices along an axis."""
    return np.take_along_axis(x, inside(index, x.shape[op.parameters["dim"]]), op.parameters["dim"])


def pad(op: Operator, x: Array, fill: Array) -> Array:
    """x between copies of a scalar."""
    low, high = op.parameters["low"], op.parameters["high"]
    result = np.full([a + n + b for a, n, b in zip(low, x.shape, high, strict=True)], fill, x.dtype)
    result[tuple(slice(a, a + n) for a, n in zip(low, x.shape, strict=True))] = x
    return result


def cut(op: Operator, x: Array) -> Array:
    """A slice along one axis."""
    p = op.parameters
    part: Array = x[(slice(None),) * p["dim"] + (slice(p["start"], p["stop"], p["step"]),)]
    return part


OPERATORS.update(
    {
        "constant": lambda op, x, step: constant(op),
        "data": lambda op, x, step: step.batch[op.parameters["slot"]],
        "iota": lambda op, x, step: iota(op),
        "schedule": lambda op, x, step: np.asarray(step.schedule[op.parameters["slot"]]),
        "state": lambda op, x, step: step.state[op.parameters["slot"]],
        "uniform": lambda op, x, step: uniform(op, step),
        "loss": lambda op, x, step: x[0],
        "store": lambda op, x, step: x[0],
        "cat": lambda op, x, step: np.concatenate(x, op.parameters["dim"]),
        "expand": lambda op, x, step: np.broadcast_to(x[0], op.shape),
        "flip": lambda op, x, step: np.flip(x[0], op.parameters["dim"]),
        "gather": lambda op, x, step: gather(op, x[0], x[1]),
        "take": lambda op, x, step: x[0][inside(x[1], x[0].shape[0])],
        "pad": lambda op, x, step: pad(op, x[0], x[1]),
        "permute": lambda op, x, step: np.transpose(x[0], op.parameters["dims"]),
        "reshape": lambda op, x, step: x[0].reshape(op.shape),
        "slice": lambda op, x, step: cut(op, x[0]),
        "where": lambda op, x, step: np.where(*x),
        "maximum": lambda op, x, step: np.where((x[0] > x[1]) | (x[0] != x[0]), x[0], x[1]),
        "minimum": lambda op, x, step: np.where((x[0] < x[1]) | (x[0] != x[0]), x[0], x[1]),
        "eq": lambda op, x, step: x[0] == x[1],
        "lt": lambda op, x, step: x[0] < x[1],
        "le": lambda op, x, step: x[0] <= x[1],
        "logical_and": lambda op, x, step: x[0] & x[1],
        "logical_or": lambda op, x, step: x[0] | x[1],
        "logical_not": lambda op, x, step: ~x[0],
        "to_i64": lambda op, x, step: x[0].astype(np.int64),
        "any": lambda op, x, step: np.asarray(x[0].any(tuple(op.parameters["dims"]), keepdims=True)),
        "sum_i64": lambda op, x, step: x[0].sum(tuple(op.parameters["dims"]), np.int64, keepdims=True),
        "amax": lambda op, x, step: x[0].max(tuple(op.parameters["dims"]), keepdims=True) + np.float32(0),
        "amin": lambda op, x, step: x[0].min(tuple(op.parameters["dims"]), keepdims=True) + np.float32(0),
        "argmax": lambda op, x, step: x[0].argmax(op.parameters["dim"], keepdims=True),  # numpy: the first NaN, if any
    }
)


COPIED = {
    *("constant", "data", "iota", "schedule", "state", "uniform", "loss", "store", "cat", "expand", "flip"),
    *("gather", "take", "pad", "permute", "reshape", "slice", "where"),
}
"""Sources and movement: they keep the bits that they have, where every other FP32 result is rounded to fewer."""


def round_to_odd(a: Array, b: Array) -> Array:
    """a + b in FP64, rounded to odd: rounding that to a shorter format is rounding the sum once."""
    total = a + b
    part = total - a
    rest = (a - (total - part)) + (b - part)
    even = np.array(total, order="C").view(np.int64) % 2 == 0
    beside = np.nextafter(total, np.copysign(np.inf, rest))
    return np.where(np.isfinite(total) & (rest != 0) & even, beside, total)


INTEGERS: dict[str, Callable[..., Array]]
INTEGERS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs}
NUMBERS: dict[str, Callable[..., Array]] = {
    **{"add": round_to_odd, "sub": lambda a, b: round_to_odd(a, -b), "mul": np.multiply, "div": np.divide},
    **{"sqrt": np.sqrt, "neg": np.negative, "abs": np.abs, "floor": np.floor},
}
"""FP64 results that rounding to the output's format makes the right ones: exact, or of 53 >= 2 * 24 + 2 bits."""


@operator(*INTEGERS, *NUMBERS)
def _arithmetic(op: Operator, inputs: list[Array], step: Step) -> Array:
    if op.dtype == "i64":
        return INTEGERS[op.name](*inputs)
    values = NUMBERS[op.name](*np.broadcast_arrays(*(x.astype(np.float64) for x in inputs)))
    return values if op.name in ("neg", "abs", "floor") else round_array(values, step.format(op.dtype))


@operator("to_f32", "to_bf16", "to_f16")
def _to_format(op: Operator, inputs: list[Array], step: Step) -> Array:
    x, to = inputs[0], step.format(op.dtype)
    if x.dtype == np.int64:
        return np.array([round_rational(Fraction(item), to) for item in x.ravel().tolist()]).reshape(x.shape)
    return round_array(x.astype(np.float64), to)


@operator("sum")
def _sum(op: Operator, inputs: list[Array], step: Step) -> Array:
    dims, x = op.parameters["dims"], inputs[0].astype(np.float64)
    kept = [axis for axis in range(x.ndim) if axis not in dims]
    terms = x.transpose(*kept, *dims).reshape(*(x.shape[axis] for axis in kept), math.prod(x.shape[a] for a in dims))
    return sum_terms(terms, step.format(op.dtype)).reshape(op.shape)


@operator("scatter_add")
def _scatter_add(op: Operator, inputs: list[Array], step: Step) -> Array:
    dim, size = op.parameters["dim"], op.parameters["size"]
    x, index = (np.moveaxis(y, dim, -1)[..., None, :] for y in np.broadcast_arrays(*inputs))
    terms = np.where(index == np.arange(size)[:, None], x.astype(np.float64), 0.0)
    return np.moveaxis(sum_terms(terms, step.format(op.dtype)), -1, dim)


@operator(*FUNCTIONS)
def _function(op: Operator, inputs: list[Array], step: Step) -> Array:
    return elementary(op.name, inputs[0], step.format(op.dtype))


@operator("matmul")
def _matmul(op: Operator, inputs: list[Array], step: Step) -> Array:
    a, b = inputs
    columns = np.swapaxes(b, -1, -2)
    to = step.format(op.dtype)
    rows = [sum_products(a[..., [m], :], columns, True, 1, to) for m in range(a.shape[-2])]
    return np.stack(rows, -2) if rows else np.zeros(op.shape)


Window = tuple[Array, Array]
"""Positions int64[outputs, taps] in an axis, 0 where there is none; and bool, where there is one."""


def window(size: int, kernel: int, stride: int, padding: int, dilation: int) -> Window:
    """Where each output of a convolution reads an axis of `size` elements."""
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    at = np.arange(outputs)[:, None] * stride - padding + np.arange(kernel) * dilation
    used = (at >= 0) & (at < size)
    return np.where(used, at, 0), used


def back_window(outputs: int, size: int, kernel: int, stride: int, padding: int, dilation: int) -> Window:
    """Which output of a convolution reads each of `size` elements through each tap."""
    at, rest = np.divmod(np.arange(size)[:, None] + padding - np.arange(kernel) * dilation, stride)
    used = (rest == 0) & (at >= 0) & (at < outputs)
    return np.where(used, at, 0), used


def windows(x: Array, rows: Window, columns: Window, groups: int) -> tuple[Array, Array]:
    """x[N, C, H, W] as it is read: [N, groups, C / groups, P, Q, I, J], and bool[P, Q, I, J], what is inside."""
    read = x[:, :, rows[0][:, None, :, None], columns[0][None, :, None, :]]
    used = rows[1][:, None, :, None] & columns[1][None, :, None, :]
    return read.reshape(x.shape[0], groups, x.shape[1] // groups, *read.shape[2:]), used


@operator("conv2d", "conv2d_grad_input", "conv2d_grad_weight")
def _convolution(op: Operator, inputs: list[Array], step: Step) -> Array:
    p = op.parameters
    groups, to = p["groups"], step.format(op.dtype)
    settings = list(zip(p["stride"], p["padding"], p["dilation"], strict=True))
    if op.name == "conv2d_grad_input":
        # x'[n, group, c, h, v] = the sum over o, i, j of g[n, group, o, ..] w[group, o, c, i, j]
        g, w = inputs
        kernel = w.shape[2:]
        axes = [back_window(g.shape[2 + a], p["size"][a], kernel[a], *settings[a]) for a in (0, 1)]
        read, used = windows(g, axes[0], axes[1], groups)
        left = np.moveaxis(read, 2, 4)[:, :, None]  # [n, group, 1, h, v, o, i, j]
        right = w.reshape(groups, -1, *w.shape[1:]).swapaxes(1, 2)[:, :, None, None]  # [group, c, 1, 1, o, i, j]
        return sum_products(left, right, used[:, :, None], 3, to).reshape(op.shape)
    if op.name == "conv2d":  # y[n, group, o, p, q] = the sum over c, i, j of x[n, group, c, ..] w[group, o, c, i, j]
        x, w = inputs
        axes = [window(x.shape[2 + a], w.shape[2 + a], *settings[a]) for a in (0, 1)]
        read, used = windows(x, axes[0], axes[1], groups)
        left = np.moveaxis(read, 2, 4)[:, :, None]
        right = w.reshape(groups, -1, 1, 1, *w.shape[1:])
        return sum_products(left, right, used[:, :, None], 3, to).reshape(op.shape)
    g, x = inputs  # w'[group, o, c, i, j] = the sum over n, p, q of g[n, group, o, p, q] x[n, group, c, ..]
    axes = [window(x.shape[2 + a], p["size"][a], *settings[a]) for a in (0, 1)]
    read, used = windows(x, axes[0], axes[1], groups)
    left = g.reshape(g.shape[0], groups, -1, *g.shape[2:])
    left = left.transpose(1, 2, 0, 3, 4)[:, :, None, None, None]  # [group, o, 1, 1, 1, n, p, q]
    right = read.transpose(1, 2, 5, 6, 0, 3, 4)[:, None]  # [group, 1, c, i, j, n, p, q]
    seen = used.transpose(2, 3, 0, 1)[:, :, None]  # [i, j, 1, p, q]
    return sum_products(left, right, seen, 3, to).reshape(op.shape)


@operator("max_pool_index")
def _max_pool_index(op: Operator, inputs: list[Array], step: Step) -> Array:
    p, x = op.parameters, inputs[0]
    settings = zip(x.shape[2:], p["kernel"], p["stride"], p["padding"], p["dilation"], strict=True)
    rows, columns = (window(*one) for one in settings)
    read, used = windows(x, rows, columns, 1)
    place = np.broadcast_to(rows[0][:, None, :, None] * x.shape[3] + columns[0][None, :, None, :], used.shape)
    taps = read[:, 0].reshape(*op.shape, -1)
    used = used.reshape(*used.shape[:2], -1)
    best = np.where(used, taps, -np.inf).max(-1, keepdims=True)  # NaN, if there is one
    first = (used & np.where(np.isnan(best), np.isnan(taps), taps == best)).argmax(-1)
    return np.take_along_axis(np.broadcast_to(place.reshape(used.shape), taps.shape), first[..., None], -1)[..., 0]


# --- tensor cores (docs/arithmetic.md) ---


@dataclass(frozen=True)
class TensorCores:
    """An arithmetic: F, products of a group by format, and formats whose subnormal operands count."""

    places: int
    group: dict[str, int]
    subnormal: tuple[str, ...]


TENSOR_CORES = {
    "hopper": TensorCores(25, {"bf16": 16, "f16": 16}, ("f16",)),
    "ampere": TensorCores(24, {"bf16": 8, "f16": 8}, ("f16",)),
    "volta": TensorCores(23, {"f16": 4}, ()),
}
SEGMENT = 2048


def exponents_of(x: Array, least: int) -> Array:
    """Exponents of numbers as they are encoded: of subnormal numbers and of zeros that of the least normal one."""
    return np.where(x == 0, least, np.maximum(np.frexp(x)[1] - 1, least))


def add_group(c: Array, a: Array, b: Array, cores: TensorCores, dtype: str) -> Array:
    """
    One group of products added to c, for many sums at once.

    :param c: FP64[n], numbers of FP32; NaN where a group before had no value.
    :param a: FP64[n, products], numbers of the format `dtype`, and
    :param b: FP64[n, products], what they are multiplied by.
    :return: FP64[n], numbers of FP32; NaN where there is no value. Its comments are the steps of docs/arithmetic.md.
    """
    least = FORMATS[dtype].least
    terms = np.concatenate([c[:, None], a * b], 1)
    none = ~np.isfinite(c) | ~np.isfinite(a).all(1) | ~np.isfinite(b).all(1)  # 1
    exponents = np.concatenate([exponents_of(c, -126)[:, None], exponents_of(a, least) + exponents_of(b, least)], 1)
    largest = np.maximum(exponents.max(1), 2 * least)  # 2
    none |= largest > 121  # 3
    products = (np.abs(a) >= 2.0**least) & (np.abs(b) >= 2.0**least)
    normal = np.concatenate([(np.abs(c) >= 2.0**-126)[:, None], products], 1)
    scaled = np.ldexp(np.where(none[:, None], 0.0, terms), (cores.places - largest)[:, None])
    whole = np.trunc(scaled)
    supported = (normal & (exponents == largest[:, None])).any(1)
    none |= ~supported & (whole != scaled).any(1)  # 4
    counts = normal.copy()
    if dtype in cores.subnormal:
        counts[:, 1:] = True
    none |= (~counts & (whole != 0)).any(1)  # 5, 6
    total = whole.sum(1)  # integers below 2^32
    drop = np.maximum(np.frexp(total)[1] - 24, 0)
    result = np.ldexp(np.trunc(np.ldexp(total, -drop)), drop + largest - cores.places)  # 7
    none |= (result != 0) & (np.abs(result) < 2.0**-126)  # 8
    return np.where(none, np.nan, result + 0.0)


@operator("tensor_core_matmul")
def _tensor_core_matmul(op: Operator, inputs: list[Array], step: Step) -> Array:
    cores = TENSOR_CORES[op.parameters["arithmetic"]]
    group = cores.group[op.dtype]
    left, right = inputs[0][..., :, None, :], np.swapaxes(inputs[1], -1, -2)[..., None, :, :]
    a, b = (x.astype(np.float64) for x in np.broadcast_arrays(left, right))
    a, b = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (a, b))
    segments = []
    for first in range(0, a.shape[1], SEGMENT):
        c = np.zeros(len(a))
        stop = min(first + SEGMENT, a.shape[1])
        for at in range(first, stop, group):
            part = slice(at, min(at + group, stop))
            c = add_group(c, a[:, part], b[:, part], cores, op.dtype)
        segments.append(c)
    results = np.stack(segments, 1) if segments else np.zeros((len(a), 0))
    return sum_terms(results, FORMATS[op.dtype]).reshape(op.shape)


# --- random numbers and the order of data (docs/numerics.md) ---


def philox_block(counter: int, key: tuple[int, int]) -> list[int]:
    """Four 64-bit words of Philox4x64-10 (Salmon et al. 2011)."""
    x = [counter >> 64 * i & (2**64 - 1) for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        p0, p1 = x[0] * 0xD2E7470EE14C6C93, x[2] * 0xCA5A826395121157
        x = [(p1 >> 64) ^ x[1] ^ k0, p1 % 2**64, (p0 >> 64) ^ x[3] ^ k1, p0 % 2**64]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % 2**64, (k1 + 0xBB67AE8584CAA73B) % 2**64
    return x


def philox_words(seed: int, stream: int, count: int) -> list[int]:
    """The first `count` 32-bit words: of each 64-bit word the low half first; the first counter is 1, as in NumPy."""
    words: list[int] = []
    for block in range(-(-count // 8)):
        for word in philox_block(block + 1, (seed, stream)):
            words += [word % 2**32, word >> 32]
    return words[:count]


def row_of(position: int, rows: int, seed: int) -> int:
    """The row of a data set of `rows` rows that stands at a position of the endless order."""
    epoch, index = divmod(position, rows)
    seed_bytes = sha256(b"tiebreak/epoch" + struct.pack(">QQ", seed, epoch))
    for turn in range(90):
        head = seed_bytes + bytes([turn])
        flip = (int.from_bytes(sha256(head)[:8], "little") - index) % rows
        at = max(index, flip)
        source = sha256(head + struct.pack("<I", at // 256))
        if source[at % 256 // 8] >> at % 8 & 1:
            index = flip
    return index


# --- hashes (docs/protocol.md) ---


def sha256(data: bytes) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def merkle_root(payloads: list[bytes]) -> bytes:
    """The root over payloads, padded on the right to a power of two."""
    nodes = [sha256(b"\0" + payload) for payload in payloads] or [sha256(b"\2")]
    while len(nodes) & (len(nodes) - 1):
        nodes.append(sha256(b"\2"))
    while len(nodes) > 1:
        nodes = [sha256(b"\1" + a + b) for a, b in zip(nodes[::2], nodes[1::2], strict=True)]
    return nodes[0]


def tensor_root(data: bytes) -> bytes:
    """The root over the chunks of 1 KiB of a tensor's bytes."""
    return merkle_root([data[at : at + 1024] for at in range(0, max(len(data), 1), 1024)])


def state_root(state: list[Array], dtypes: list[str]) -> bytes:
    """The root over the tensor roots of a state's slots."""
    return merkle_root([tensor_root(to_words(x, t).tobytes()) for x, t in zip(state, dtypes, strict=True)])


# --- files of a job ---


def read_json(path: Path, most: int, *, doubles: bool = False) -> Any:
    """A JSON file of at most so many bytes, no key twice in one object, all numbers integers unless doubles may be."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in items}) < len(items):
            raise Refused(f"{path.name} has a key twice.")
        return dict(items)

    def no_integer(text: str) -> Any:
        raise Refused(f"{path.name} has the number {text[:40]}, which is no integer.")

    try:
        if path.stat().st_size > most:
            raise Refused(f"{path.name} has more than {most} bytes.")
        text = path.read_text("utf-8")
        fraction: Callable[[str], Any] = float if doubles else no_integer
        return json.loads(text, object_pairs_hook=pairs, parse_float=fraction, parse_constant=no_integer)
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path} cannot be read as JSON: {error}.") from None


def canonical(value: Any) -> bytes:
    """Canonical JSON (RFC 8785): keys sorted, no white space, ASCII, doubles as ECMAScript writes them."""
    if isinstance(value, dict):
        return b"{" + b",".join(canonical(key) + b":" + canonical(value[key]) for key in sorted(value)) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    if isinstance(value, float) and value:
        digits, _, exponent = repr(value).partition("e")
        if 1e-6 <= abs(value) < 1e21:
            return format(Decimal(repr(value)).normalize(), "f").encode()
        return f"{digits.removesuffix('.0')}e{int(exponent):+d}".encode()
    return json.dumps(value or 0 if isinstance(value, float) else value, ensure_ascii=True).encode("ascii")


STORED = {
    **{"F32": "<f4", "BF16": "<u2", "F16": "<f2", "I64": "<i8", "BOOL": "?"},
    **{"U8": "<u1", "I8": "<i1", "I16": "<i2", "U16": "<u2", "I32": "<i4"},
}
"""dtypes of safetensors and of numpy."""


def read_safetensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Tensors of a safetensors file: name -> dtype there, shape, bytes."""
    try:
        content = path.read_bytes()
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        tensors = {}
        for name, entry in header.items():
            if name != "__metadata__":
                first, stop = entry["data_offsets"]
                data = content[8 + length :][first:stop]
                if len(data) != math.prod(entry["shape"]) * np.dtype(STORED[entry["dtype"]]).itemsize:
                    raise Refused(f"{path.name}: {name} has another size than its shape.")
                tensors[name] = (entry["dtype"], entry["shape"], data)
        return tensors
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise Refused(f"{path} cannot be read as safetensors: {error}.") from None


def values_of(stored: str, shape: list[int], data: bytes) -> Array:
    """Values of a tensor of a file: numbers as np.float32, integers as np.int64."""
    if stored == "BF16":
        return from_words(np.frombuffer(data, "<u2"), "bf16").reshape(shape)
    values = np.frombuffer(data, STORED[stored]).reshape(shape)
    kind = values.dtype.kind
    return values.astype({"f": np.float32, "b": np.bool_}.get(kind, np.int64))


@dataclass
class Job:
    """A job whose files have the roots that its spec says. names: of the slots of its state."""

    spec: dict[str, Any]
    names: list[str]
    operators: list[Operator]
    dtypes: list[str]
    state: list[Array]
    fields: list[Array]
    schedule: Array


def expect(right: bool, sentence: str) -> None:
    """Refuse what is not as it has to be."""
    if not right:
        raise Refused(sentence)


def beside(name: str) -> dict[str, Any]:
    """The names of a file that lies beside this one."""
    path = Path(__file__).with_name(name)
    expect(path.exists(), f"It cannot be told: {name} does not lie beside this file.")
    return runpy.run_path(str(path))


def read_program(path: Path) -> tuple[dict[str, Any], list[Operator]]:
    """program.json, and its operators."""
    program = read_json(path, 2**26)
    try:
        kind = program["format"], program["version"]
        expect(kind == ("tiebreak-program", 1), "The program is of another version.")
        operators = [
            Operator(name, tuple(inputs), parameters, dtype, tuple(shape))
            for name, inputs, parameters, dtype, shape in program["nodes"]
        ]
        for number, op in enumerate(operators):
            expect(op.name in OPERATORS, f"Operator {number} is a {op.name}, which this verifier lacks.")
            expect(all(0 <= i < number for i in op.inputs), f"Operator {number} reads what comes after it.")
            expect(op.dtype in HELD_IN, f"Operator {number} has the dtype {op.dtype}.")
        return program, operators
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"{path} is no program: {error!r}.") from None


SPEC = {
    *("steps", "interval", "program_root", "operator_count", "initial_state_root", "state_count", "data_root"),
    *("data_rows", "batch_size", "schedule_root", "seed", "chunk_size", "rounding_policy", "rounding_bits"),
    *("log_guard", "log_version"),
}


def read_job(directory: Path) -> Job:
    """The job of a directory. Raises Refused where its files are not those that the spec names."""
    spec = read_json(directory / "spec.json", 2**14)
    program, operators = read_program(directory / "program.json")
    try:
        expect(set(spec) == SPEC, "The spec has other fields than a spec.")
        expect(canonical(program) == (directory / "program.json").read_bytes(), "The program is not canonical JSON.")
        expect(spec["rounding_policy"] == 0, "The job has the policy threshold, which leaves no one right answer.")
        expect(23 <= spec["rounding_bits"] <= 32 and spec["chunk_size"] == 1024, "The spec is of another version.")
        expect(spec["steps"] % spec["interval"] == 0, "The interval does not divide the steps.")
        expect(spec["operator_count"] == len(operators), "The program has another number of operators than the spec.")
        expect(spec["batch_size"] == program["batch_size"], "The program has another batch than the spec.")
        names = program["states"]
        expect(spec["state_count"] == len(names), "The program has another number of slots than the spec.")
        stores = operators[len(operators) - len(names) :]
        for slot, op in enumerate(stores):
            stored = op.name == "store" and op.parameters["slot"] == slot
            expect(stored, f"The program does not store slot {slot} last.")
        initial = read_safetensors(directory / "initial.safetensors")
        state = [values_of(*initial[name]) for name in names]
        for x, op in zip(state, stores, strict=True):
            expect(x.shape == op.shape and x.dtype == HELD_IN[op.dtype], "The initial state has other tensors.")
        data = read_safetensors(directory / "data.safetensors")
        fields = [data[name] for name in program["data"]]
        _, shape, table = read_safetensors(directory / "schedule.safetensors")["schedule"]
        expect(shape == [spec["steps"], len(program["schedule"])], "The schedule has another shape.")
        dtypes = [op.dtype for op in stores]
        is_beside = Path(__file__).with_name("program_root.py").exists()
        if not is_beside:
            print("The program root is not checked: program_root.py does not lie beside this file.", file=sys.stderr)
        roots = {
            **({"program_root": beside("program_root.py")["root_of"](program)} if is_beside else {}),
            "initial_state_root": state_root(state, dtypes),
            "data_root": merkle_root([tensor_root(content) for _, _, content in fields]),
            "schedule_root": tensor_root(table),
        }
        for name, root in roots.items():
            expect(spec[name] == "0x" + root.hex(), f"The job's files come to another {name} than its spec says.")
        read = [values_of(*one) for one in fields]
        return Job(spec, names, operators, dtypes, state, read, np.frombuffer(table, "<f4").reshape(shape))
    except (KeyError, TypeError, IndexError, ValueError, OverflowError) as error:
        raise Refused(f"{directory} is no job: {error!r}.") from None


# --- a run ---


def batch_of(job: Job, step: int) -> list[Array]:
    """The rows of a step, field by field, as the program's `data` operators read them."""
    spec, size, batches = job.spec, job.spec["batch_size"], []
    rows = [row_of(step * size + j, spec["data_rows"], spec["seed"]) for j in range(size)]
    for slot, values in enumerate(job.fields):
        read = [op for op in job.operators if op.name == "data" and op.parameters["slot"] == slot]
        items = math.prod(read[0].shape[1:]) if read else 0
        stride = read[0].parameters.get("stride", items) if read else 0
        batch = np.stack([values.reshape(-1)[row * stride : row * stride + items] for row in rows])
        batches.append(batch.reshape(read[0].shape) if read else batch)
    return batches


def compute(op: Operator, inputs: list[Array], step: Step) -> Array:
    """What an operator computes, of its own dtype and shape."""
    with np.errstate(all="ignore"):
        value = np.asarray(OPERATORS[op.name](op, inputs, step))
        if step.bits < 32 and op.dtype == "f32" and op.name not in COPIED:
            value = round_array(value.astype(np.float64), step.format("f32"))
        value = value.astype(HELD_IN[op.dtype])
    expect(value.shape == op.shape, f"A {op.name} of shape {list(op.shape)} comes to the shape {list(value.shape)}.")
    return value


def execute(operators: list[Operator], step: Step) -> tuple[list[Array], Array]:
    """The state after a step, and the step's loss."""
    values: list[Array] = []
    loss = np.zeros(0)
    after: dict[int, Array] = {}
    last = {i: number for number, op in enumerate(operators) for i in op.inputs}
    for number, op in enumerate(operators):
        value = compute(op, [values[i] for i in op.inputs], step)
        if op.name == "store":
            after[op.parameters["slot"]] = value
        before = operators[op.inputs[0]] if op.name == "store" else op
        kept = before.name == "state" and before.parameters["slot"] == op.parameters["slot"] and op.name == "store"
        if op.name in ("loss", "store") and not kept and not np.isfinite(value).all():
            raise Stopped(f"the {op.name} of operator {number} is not finite")
        loss = value if op.name == "loss" else loss
        values.append(value)
        for i in op.inputs:
            if last[i] == number:
                values[i] = np.zeros(0)
    return [after[slot] for slot in range(len(after))], loss


def step_of(job: Job, number: int, state: list[Array]) -> Step:
    """What a step of a job reads."""
    spec = job.spec
    return Step(number, spec["seed"], state, batch_of(job, number), job.schedule[number], spec["rounding_bits"])


def run(job: Job, steps: int) -> Iterator[tuple[bytes, str]]:
    """After every interval of the first `steps` steps its state root; at last why a run stops, if it does."""
    spec, state = job.spec, job.state
    try:
        for number in range(steps):
            state, _ = execute(job.operators, step_of(job, number, state))
            if (number + 1) % spec["interval"] == 0:
                yield state_root(state, job.dtypes), ""
    except Stopped as stop:
        yield b"", f"step {number} stops: {stop}"


# --- receipts (docs/receipt.md) ---

ROOT = re.compile("0x[0-9a-f]{64}")
TEXT = re.compile("[ -~]{0,200}")
SIGNED = {"signer", "signature"}
RECEIPT = {
    *("format", "version", "spec", "run_id", "state_roots", "checkpoint_root", "final_state_root"),
    *("versions", "machine", "date"),
}


def read_receipt(path: Path, job: Job) -> dict[str, Any]:
    """The receipt of a training. Raises Refused where it breaks a rule of docs/receipt.md, or is another job's."""
    receipt = read_json(path, 2**26)
    try:
        expect(receipt["format"] == "tiebreak receipt", f"{path.name} is no receipt of a training.")
        expect(receipt["version"] == 1, f"{path.name} is a receipt of another version.")
        expect(set(receipt) in (RECEIPT, RECEIPT | SIGNED), f"{path.name} has other fields than a receipt.")
        expect(receipt["spec"] == job.spec, f"{path.name} is the receipt of another job.")
        roots = receipt["state_roots"]
        intervals = job.spec["steps"] // job.spec["interval"]
        expect(len(roots) == intervals and all(map(ROOT.fullmatch, roots)), f"{path.name} has no {intervals} roots.")
        follows = {
            "run_id": sha256(canonical(job.spec)),
            "checkpoint_root": merkle_root([bytes.fromhex(root[2:]) for root in roots]),
            "final_state_root": bytes.fromhex(roots[-1][2:]),
        }
        for name, value in follows.items():
            right = receipt[name] == "0x" + value.hex()
            expect(right, f"The {name} of {path.name} does not follow from its other fields.")
        texts = [receipt["versions"][name] for name in ("python", "torch", "tiebreak")]
        texts += [receipt["machine"][name] for name in ("system", "architecture", "processor", "instructions")]
        threads = receipt["machine"]["threads"]
        expect(len(receipt["versions"]) == 3 and len(receipt["machine"]) == 5, f"{path.name} has other texts.")
        expect(all(map(TEXT.fullmatch, texts)), f"{path.name} has a text that is no printable ASCII.")
        expect(type(threads) is int and 1 <= threads <= 2**20, f"{path.name} has no number of threads.")
        date = datetime.datetime.strptime(receipt["date"], "%Y-%m-%dT%H:%M:%SZ")
        expect(f"{date:%Y-%m-%dT%H:%M:%SZ}" == receipt["date"], f"{path.name} has a date of another form.")
        return dict(receipt)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"{path.name} is no receipt: {error!r}.") from None


def check_signature(receipt: dict[str, Any]) -> str:
    """A sentence about a receipt's signature; empty where it is right, or there is none."""
    if "signature" not in receipt:
        return ""
    text = canonical({name: value for name, value in receipt.items() if name != "signature"})
    expect(re.fullmatch("0x[0-9a-f]{130}", str(receipt["signature"])) is not None, "The signature is none.")
    try:
        signer = beside("eip191.py")["signer_of"](text, bytes.fromhex(receipt["signature"][2:]))
    except ValueError as error:
        raise Refused(str(error)) from None
    return "" if signer == receipt["signer"] else f"the signature is {signer}'s, not the signer's"


# --- texts: their receipts (docs/receipt.md), and the jobs that generate them (docs/job-format.md) ---


def weight_hashes(job: Job) -> Iterator[str]:
    """Hashes of the weights of a job that generates text: as they are named, and with each as the head's, too, since a
    weight that has two names stands under the first of them."""
    roots = {}
    for name, x, dtype in zip(job.names, job.state, job.dtypes, strict=True):
        if name.startswith(("parameter/model.", "buffer/model.")):
            roots[name.partition("/model.")[2]] = tensor_root(to_words(x, dtype).tobytes())
    for head in (None, *roots):
        named = roots if head is None else {"lm_head.weight": roots[head], **roots}
        yield "0x" + merkle_root([sha256(f"{name}\0".encode() + named[name]) for name in sorted(named)]).hex()


def check_text_job(receipt: dict[str, Any], job: Job, files: dict[str, str]) -> None:
    """Raises Refused where a job does not generate the text of a receipt: of another model, prompt, seed or length."""
    prompt, how, model = receipt["prompt_tokens"], receipt["sampling"], receipt["model"]
    state = dict(zip(job.names, job.state, strict=True))
    expect({"buffer/tokens", "buffer/ended"} <= state.keys(), "The job generates no text.")
    expect(model["model_weight_hash"] in weight_hashes(job), "The job has other weights than the receipt's model.")
    for name, found in files.items():
        expect(model[name] == found, f"The files of the model have another {name} than the receipt.")
    cores = {op.parameters["arithmetic"] for op in job.operators if op.name == "tensor_core_matmul"} or {"exact"}
    expect(cores == {receipt["arithmetic"]}, "The job's products are of another arithmetic than the receipt's.")
    kinds = {job.dtypes[slot] for slot, name in enumerate(job.names) if name.startswith("parameter/model.")}
    expect({"fp32": "f32", "bf16": "bf16"}[model["dtype"]] in kinds, "The job's weights have another dtype.")
    tokens, length = state["buffer/tokens"], len(prompt) + how["max_new_tokens"]
    expect(tokens.shape == (1, length), f"The job has other sequences than one of {length} tokens.")
    expect(tokens[0].tolist() == prompt + [0] * how["max_new_tokens"], "The job has another prompt than the receipt.")
    expect(str(job.spec["seed"]) == how["seed"], "The job has another seed than the receipt.")


def fault_of_text(receipt: dict[str, Any], job: Job) -> str:
    """A sentence about a receipt's text, by the steps of a job up to its end; empty where it is right."""
    prompt, tokens, state = receipt["prompt_tokens"], receipt["tokens"], job.state
    written, ended = job.names.index("buffer/tokens"), job.names.index("buffer/ended")
    logprobs = np.zeros(len(tokens), np.float32)
    for number in range(len(prompt) + len(tokens) - 1):
        try:
            state, loss = execute(job.operators, step_of(job, number, state))
        except Stopped as stop:
            return f"step {number} stops: {stop}"
        at = number + 1 - len(prompt)
        if at >= 0:
            token, is_end = int(state[written][0, number + 1]), bool(state[ended][0])
            if token != tokens[at]:
                return f"token {at} is {token}, not {tokens[at]}"
            if is_end != (at == len(tokens) - 1 and tokens[-1] in receipt["sampling"]["stop_tokens"]):
                return f"the job's text {'ends' if is_end else 'goes on'} behind token {at}"
            logprobs[at] = np.float32(0) - loss
    root = "0x" + tensor_root(to_words(logprobs, "f32").tobytes()).hex()
    right = root == receipt["logprobs_root"]
    return "" if right else f"the log-probabilities come to {root}, not {receipt['logprobs_root']}"


def verify_text(job: Job, path: Path, directory: Path | None) -> int:
    """Say whether the receipt of a text is right, by a job that generates it, and return the exit code."""
    rules = beside("text_receipt.py")
    try:
        receipt, files = rules["read_text_receipt"](path.read_bytes()), rules["files_hashes"](directory)
    except (OSError, ValueError) as error:
        raise Refused(f"{path.name} is no receipt of a text: {error}.") from None
    fault = check_signature(receipt)
    if not fault:
        check_text_job(receipt, job, files)
        fault = fault_of_text(receipt, job)
    rules["tell_unchecked"](receipt, directory)
    print(f"wrong: {fault}" if fault else f"right: all {len(receipt['tokens'])} tokens and their log-probabilities")
    return WRONG if fault else RIGHT


# --- vectors (conformance/README.md) ---


def read_words(tensor: dict[str, Any]) -> Array:
    """The tensor of a vector."""
    dtype = tensor["dtype"]
    words = np.array([int(word, 16) for word in tensor["words"]], np.uint64)
    return from_words(words.astype(np.dtype(WORDS[dtype])), dtype).reshape(tensor["shape"])


def check_vectors(directory: Path) -> tuple[int, list[str]]:
    """How many cases a directory of vectors has, and a sentence for each that comes to something else here."""
    count, wrong = 0, []
    for path in sorted(directory.glob("*.json")):
        for number, case in enumerate(read_json(path, 2**24)["cases"]):
            inputs, output = [read_words(tensor) for tensor in case["inputs"]], case["output"]
            op = Operator(path.stem, (), case["parameters"], output["dtype"], tuple(output["shape"]))
            step = Step(case.get("step", 0), case.get("seed", 0), bits=case.get("rounding_bits", 32))
            expect(op.name in OPERATORS, f"{path.name} is about an operator that this verifier lacks.")
            words = to_words(compute(op, inputs, step), op.dtype).ravel()
            digits = 2 * words.dtype.itemsize
            found = [f"{int(word) % 16**digits:0{digits}x}" for word in words]
            differ = [i for i, pair in enumerate(zip(found, output["words"], strict=True)) if pair[0] != pair[1]]
            at = f"{op.name}, case {number}, element"
            wrong += [f"{at} {i}: {found[i]}, not {output['words'][i]}" for i in differ[:1]]
            count += 1
    expect(count > 0, f"{directory} has no vectors.")
    return count, wrong


# --- the command line ---


def verify(arguments: argparse.Namespace) -> int:
    """Repeat a job's run, print what it comes to, and return the exit code."""
    job = read_job(arguments.job)
    steps, interval = job.spec["steps"], job.spec["interval"]
    plain = read_json(arguments.receipt, 2**26, doubles=True) if arguments.receipt else None
    if isinstance(plain, dict) and plain.get("format") == "tiebreak generation":
        expect(
            not arguments.claim and arguments.steps is None, "Roots and steps are of runs, and the receipt of a text."
        )
        return verify_text(job, arguments.receipt, arguments.model)
    receipt = read_receipt(arguments.receipt, job) if arguments.receipt else None
    if receipt and (complaint := check_signature(receipt)):
        print(f"wrong: {complaint}")
        return WRONG
    count = steps if arguments.steps is None else arguments.steps
    fits = 0 < count <= steps and count % interval == 0
    expect(fits, f"The steps have to be a multiple of {interval}, {steps} at most.")
    expect(not arguments.claim or count == steps, "A checkpoint root can be compared after all steps only.")
    roots: list[bytes] = []
    for number, (root, stop) in enumerate(run(job, count)):
        if stop:
            print(f"wrong: {stop}")
            return WRONG
        if receipt and receipt["state_roots"][number] != "0x" + root.hex():
            print(f"wrong: interval {number} comes to 0x{root.hex()}, not {receipt['state_roots'][number]}")
            return WRONG
        roots.append(root)
        if not receipt and not arguments.claim:
            print(f"interval {number}       0x{root.hex()}")
    whole = "0x" + merkle_root(roots).hex()
    if arguments.claim and arguments.claim != whole:
        print(f"wrong: the run comes to the checkpoint root {whole}, not {arguments.claim}")
        return WRONG
    if count == steps:
        print(f"checkpoint root  {whole}")
    if receipt or arguments.claim:
        print(f"right: {count // interval} of {steps // interval} intervals")
    return RIGHT


def main() -> int:
    """Read the command line, and return the exit code."""
    parser = argparse.ArgumentParser(description="Second verifier of Tiebreak: exit code 0 right, 1 untold, 3 wrong.")
    parser.add_argument("job", nargs="?", type=Path, help="directory of a job")
    parser.add_argument("--receipt", type=Path, help="receipt of a run of the job, or of its text")
    parser.add_argument("--model", type=Path, help="folder of the model of a text, whose files have hashes there")
    parser.add_argument("--claim", help="checkpoint root of a run of the job")
    parser.add_argument("--steps", type=int, help="repeat so many steps only, from the first on")
    parser.add_argument("--vectors", type=Path, help="directory of vectors of operators")
    arguments = parser.parse_args()
    try:
        if arguments.vectors:
            count, wrong = check_vectors(arguments.vectors)
            print("\n".join(wrong) or f"right: {count} cases")
            return WRONG if wrong else RIGHT
        expect(arguments.job is not None, "Name the directory of a job, or --vectors.")
        return verify(arguments)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, MemoryError) as error:  # malformed job
        print(f"It cannot be told: {error!r}.", file=sys.stderr)
    return UNTOLD


if __name__ == "__main__":
    sys.exit(main())
