"""The buckets of `roundlog.kernels.exact_products`: putting products into them, emptying them, and rounding what was
in them.

Products are put in by two loads, a multiplication and an addition to memory for each, and nothing else. Runs are named
by positions, not by slices: references to these would be counted, which takes as long as ten products.

Emptying and rounding are written as LLVM's instructions: the compiler's own loops would keep in memory what goes from
one limb to the next, and read all limbs again to round them. A *column* of LANES sums is done at a time. No branch
depends on what the numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from roundlog.kernels.superaccumulator import LAST_PLACE, LIMBS, MASK

LANES = 8
"""Sums at once: what a vector register of AVX-512 holds."""
BUCKETS = 128
"""They are 4 bits apart."""
_EACH = 8
"""Buckets that begin in one limb."""
_USED = BUCKETS // _EACH + 2
"""Limbs that a sum of 512 products reaches, with its sign: less than 2^563 units of the last place."""

_INDEX, _SINGLE = ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_INDEX, LANES)
_SINGLES, _DOUBLES = ir.VectorType(_SINGLE, LANES), ir.VectorType(ir.DoubleType(), LANES)
_BYTES = 8


def _of(number: int) -> Any:
    return ir.Constant(_VECTOR, [number] * LANES)


class _Column:
    """The code for LANES sums."""

    def __init__(self, builder: Any, buckets: Any, digits: Any, pitch: int) -> None:
        """buckets, digits: addresses; pitch: bytes from one of either to the next."""
        self.builder, self.buckets, self.digits, self.pitch = builder, buckets, digits, pitch
        self.state = [_of(0)] * 10
        """highs and carries, which go to the next limb; the digit before, and those before that, or'ed. Then, of the
        last digit that is not 0, with the digit before it in the lower half: the digits, its limb, and what is below,
        or'ed. And of the last that is not MASK. Where there is none, 0 and -1, zeros do: both are rounded to 0."""

    def at(self, base: Any, number: Any, kind: Any = _VECTOR) -> Any:
        address = self.builder.add(base, self.builder.mul(number, ir.Constant(_INDEX, self.pitch)))
        return self.builder.inttoptr(address, kind.as_pointer())

    def total(self, value: Any) -> Any:
        """Sum before the carry: the digit and what is above it."""
        builder, (highs, carries) = self.builder, self.state[:2]
        return builder.add(builder.add(value, highs), carries)

    def digit(self, limb: Any, value: Any, highs: Any) -> None:
        """The next digit is in the last 32 bits of value; limb: its number, highs: of the next one."""
        builder, mask = self.builder, _of(MASK)
        _, _, before, below, *found = self.state
        digit = builder.and_(value, mask)
        builder.store(digit, self.at(self.digits, limb)).align = _BYTES
        both = builder.or_(builder.shl(digit, _of(32)), before)
        number = _everywhere(builder, limb)
        following = []
        for sign, three in zip((_of(0), mask), (found[:3], found[3:]), strict=True):
            new = builder.icmp_unsigned("!=", digit, sign)
            following += [
                builder.select(new, now, then) for now, then in zip((both, number, below), three, strict=True)
            ]
        carries = builder.ashr(value, _of(32))
        self.state = [highs, carries, digit, builder.or_(below, before), *following]

    def empty(self, limb: Any) -> None:
        """The buckets of a limb become its digit."""
        builder = self.builder
        first = builder.mul(limb, ir.Constant(_INDEX, _EACH))
        lows, highs = [], []
        for number in range(_EACH):
            at = self.at(self.buckets, builder.add(first, ir.Constant(_INDEX, number)))
            value = builder.load(at)
            value.align = _BYTES
            builder.store(_of(0), at).align = _BYTES
            lows.append(builder.shl(value, _of(4 * number)))
            highs.append(builder.ashr(value, _of(32 - 4 * number)))
        low, high = _sum(builder, lows), _sum(builder, highs)
        # The sum's last 64 bits, and what is above its last 32, but for what the cut bits carry: at most 7.
        missing = builder.and_(builder.sub(builder.lshr(low, _of(32)), high), _of(MASK))
        self.digit(limb, self.total(builder.and_(low, _of(MASK))), builder.add(high, missing))

    def finish(self) -> None:
        """The limbs in which no bucket begins."""
        for limb in range(BUCKETS // _EACH, _USED):
            self.digit(ir.Constant(_INDEX, limb), self.total(_of(0)), _of(0))

    def rounded(self) -> Any:
        """The sum rounded to nearest, ties to even; overflow gives an infinity, a zero is +0. Writes the last limbs."""
        builder, carries = self.builder, self.state[1]
        for limb in range(_USED, LIMBS):
            digit = carries if limb == LIMBS - 1 else builder.and_(carries, _of(MASK))
            builder.store(digit, self.at(self.digits, ir.Constant(_INDEX, limb))).align = _BYTES
        negative = builder.icmp_signed("<", carries, _of(0))
        both, limb, below = (
            builder.select(negative, of_negative, of_others)
            for of_others, of_negative in zip(self.state[4:7], self.state[7:], strict=True)
        )
        rest = builder.icmp_unsigned("!=", below, _of(0))
        # The complement is one too small, unless there is a rest. Of a power of two whose digits are all 0, 2^64 would
        # be left: one less, and a rest, is rounded to the same number.
        whole = builder.and_(builder.not_(rest), builder.icmp_unsigned("!=", both, _of(0)))
        complement = builder.add(builder.not_(both), builder.zext(whole, _VECTOR))
        magnitude = builder.or_(builder.select(negative, complement, both), builder.zext(rest, _VECTOR))
        zeros = builder.call(
            _function(builder.module, f"llvm.ctlz.v{LANES}i64", _VECTOR, [_VECTOR, ir.IntType(1)]),
            [magnitude, ir.Constant(ir.IntType(1), 0)],
        )
        nothing = builder.icmp_unsigned("==", magnitude, _of(0))
        zeros = builder.select(nothing, _of(0), zeros)
        # 53 bits, the last of which says whether anything is below (to odd): an FP64 number, from which FP32 is rounded
        # once, since it has two bits less at least.
        shifted = builder.shl(magnitude, zeros)
        odd = builder.lshr(builder.add(builder.and_(shifted, _of(0x7FF)), _of(0x7FF)), _of(11))
        significand = builder.or_(builder.lshr(shifted, _of(11)), odd)
        # Its leading bit makes the exponent one larger.
        exponent = builder.sub(builder.add(builder.shl(limb, _of(5)), _of(1023 + 52 - 1 + 11 - 32 + LAST_PLACE)), zeros)
        words = builder.add(builder.shl(exponent, _of(52)), significand)
        words = builder.or_(words, builder.and_(carries, _of(-(1 << 63))))
        words = builder.select(nothing, _of(0), words)
        single = builder.fptrunc(builder.bitcast(words, _DOUBLES), _SINGLES)
        # No negative zero.
        return builder.fadd(single, ir.Constant(_SINGLES, [0.0] * LANES))


def _sum(builder: Any, values: list[Any]) -> Any:
    while len(values) > 1:
        values = [builder.add(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _everywhere(builder: Any, number: Any) -> Any:
    whole = ir.IntType(32)
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(whole, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(whole, LANES), [0] * LANES))


def _function(module: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)


def _fold_column(module: Any, columns: int) -> Any:
    """A function of its own, so that its vectors have all registers."""
    name = f"roundlog.fold_column_{columns}"
    if name in module.globals:
        return module.globals[name]
    function = _function(module, name, ir.VoidType(), [_INDEX] * 3)
    function.linkage = "internal"
    function.attributes.add("noinline")
    buckets, digits, out = function.args
    before = function.append_basic_block()
    builder = ir.IRBuilder(before)
    column = _Column(builder, buckets, digits, columns * LANES * _BYTES)
    loop, after = builder.append_basic_block("limbs"), builder.append_basic_block("emptied")
    builder.branch(loop)
    builder.position_at_end(loop)
    limb = builder.phi(_INDEX)
    limb.add_incoming(ir.Constant(_INDEX, 0), before)
    phis = []
    for start in column.state:
        phis.append(builder.phi(_VECTOR))
        phis[-1].add_incoming(start, before)
    column.state = list(phis)
    column.empty(limb)
    following = builder.add(limb, ir.Constant(_INDEX, 1))
    limb.add_incoming(following, loop)
    for phi, value in zip(phis, column.state, strict=True):
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, ir.Constant(_INDEX, BUCKETS // _EACH)), loop, after)
    builder.position_at_end(after)
    column.finish()
    builder.store(column.rounded(), builder.inttoptr(out, _SINGLES.as_pointer())).align = 4
    builder.ret_void()
    return function


def _fold(columns: int) -> Any:
    def fold(typingctx: Any, buckets: Any, digits: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            function = _fold_column(builder.module, columns)
            sizes = LANES * _BYTES, LANES * _BYTES, LANES * 4
            for column in range(columns):
                moved = [
                    builder.add(argument, ir.Constant(_INDEX, column * size))
                    for argument, size in zip(arguments, sizes, strict=True)
                ]
                builder.call(function, moved)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    return intrinsic(fold)


COLUMNS = 2
fold = _fold(COLUMNS)
"""fold(buckets, digits, out), addresses. buckets: int64[BUCKETS, COLUMNS * LANES], the sums of at most 512 products,
4 bits apart, which are 0 afterwards. They become digits, int64[LIMBS, COLUMNS * LANES], the limbs of numbers in two's
complement, and out, float32[COLUMNS * LANES], which these numbers are rounded to."""


@njit(inline="always")
def _multiply(factor: Any, code: Any, words: Any, at: Any, buckets: Any, lane: Any) -> None:
    bucket = np.uint64(code + words[at + np.uint64(1)]) + lane
    buckets[bucket] += np.int64(factor) * np.int64(words[at])


@njit(inline="always")
def _four(lanes: Any, at: int, pitch: int) -> Any:
    """Begins of the runs of four sums."""
    return (
        np.uint64(lanes[np.uint64(at)] * pitch),
        np.uint64(lanes[np.uint64(at + 1)] * pitch),
        np.uint64(lanes[np.uint64(at + 2)] * pitch),
        np.uint64(lanes[np.uint64(at + 3)] * pitch),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _scatter_four(
    a: Any, b: Any, of_a: Any, of_b: Any, at: int, pitch: int, buckets: Any, lane: int, count: int
) -> None:
    """Four sums at a time: terms of one often go to the same bucket, and would wait for each other."""
    a0, a1, a2, a3 = _four(of_a, at, pitch)
    b0, b1, b2, b3 = _four(of_b, at, pitch)
    l0, l1, l2, l3 = np.uint64(lane), np.uint64(lane + 1), np.uint64(lane + 2), np.uint64(lane + 3)
    one = np.uint64(1)
    for k in range(count):
        t = np.uint64(2 * k)
        _multiply(a[a0 + t], a[a0 + t + one], b, b0 + t, buckets, l0)
        _multiply(a[a1 + t], a[a1 + t + one], b, b1 + t, buckets, l1)
        _multiply(a[a2 + t], a[a2 + t + one], b, b2 + t, buckets, l2)
        _multiply(a[a3 + t], a[a3 + t + one], b, b3 + t, buckets, l3)


@njit(cache=True, nogil=True, error_model="numpy")
def _scatter_row(
    a: Any, b: Any, of_a: Any, of_b: Any, at: int, pitch: int, buckets: Any, lane: int, count: int
) -> None:
    """`_scatter_four` where all have the same run of a."""
    a0 = np.uint64(of_a[np.uint64(at)] * pitch)
    b0, b1, b2, b3 = _four(of_b, at, pitch)
    l0, l1, l2, l3 = np.uint64(lane), np.uint64(lane + 1), np.uint64(lane + 2), np.uint64(lane + 3)
    for k in range(count):
        t = np.uint64(2 * k)
        factor, code = a[a0 + t], a[a0 + t + np.uint64(1)]
        _multiply(factor, code, b, b0 + t, buckets, l0)
        _multiply(factor, code, b, b1 + t, buckets, l1)
        _multiply(factor, code, b, b2 + t, buckets, l2)
        _multiply(factor, code, b, b3 + t, buckets, l3)


@njit(inline="always")
def _same(slots: Any, at: int) -> Any:
    first = slots[np.uint64(at)]
    others = (slots[np.uint64(at + 1)] ^ first) | (slots[np.uint64(at + 2)] ^ first)
    return others | (slots[np.uint64(at + 3)] ^ first) == 0


@njit(cache=True, nogil=True, error_model="numpy")
def scatter(a: Any, b: Any, of_a: Any, of_b: Any, first: int, some: int, pitch: int, buckets: Any, count: int) -> None:
    """a, b: flat int32, in which run r begins at r * pitch: (factor, code) for each of its `count` numbers, and more.
    of_a, of_b: the runs of every sum. buckets: int64[n]. Takes `some` sums, rounded up to a multiple of 4, from the
    first one on: of the i-th of them, a product is added to the bucket whose number is i and both codes together."""
    for lane in range(0, some, 4):
        at = first + lane
        if _same(of_a, at):
            _scatter_row(a, b, of_a, of_b, at, pitch, buckets, lane, count)
        elif _same(of_b, at):
            _scatter_row(b, a, of_b, of_a, at, pitch, buckets, lane, count)
        else:
            _scatter_four(a, b, of_a, of_b, at, pitch, buckets, lane, count)
