"""Products of small tiles in vector registers, written as LLVM's instructions: the compiler's own loops over them would
not keep 24 sums in registers.

A strip is `terms` times so many FP64 numbers, one for every row or column of the tile: [terms, ROWS] of the left
operand, [terms, COLUMNS] of the right one, 64-byte aligned. Addresses are integers, of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from roundlog.kernels.marking import TWO_UNITS

LANES = 8
"""FP64 numbers in a vector register of AVX-512."""
_VECTORS = 3
ROWS, COLUMNS = 8, _VECTORS * LANES
"""Rows and columns of a tile: its sums take 24 of the 32 vector registers, one term of the right operand three."""

_DOUBLE, _INDEX = ir.DoubleType(), ir.IntType(64)
_VECTOR = ir.VectorType(_DOUBLE, LANES)


def _instructions(function: Callable[..., Any]) -> Any:
    """numba's `intrinsic`, which callers in compiled loops call without the typing context."""
    return intrinsic(function)


def _multiply_add(builder: Any) -> Any:
    """a * b + c. Products of FP32 numbers are exact in FP64, so it makes no difference whether this is one instruction,
    which the compiler decides by what the processor has."""
    name = f"llvm.fmuladd.v{LANES}f64"
    return builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), name
    )


def _numbers(builder: Any, address: Any, kind: ir.Type = _DOUBLE) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _vector(builder: Any, numbers: Any, number: int) -> Any:
    return builder.bitcast(builder.gep(numbers, [ir.Constant(_INDEX, number * LANES)]), _VECTOR.as_pointer())


def _load(builder: Any, numbers: Any, number: int) -> Any:
    loaded = builder.load(_vector(builder, numbers, number))
    loaded.align = 64
    return loaded


def _everywhere(builder: Any, number: Any) -> Any:
    """A vector of nothing but this number."""
    undefined, whole = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined), ir.IntType(32)
    first = builder.insert_element(undefined, number, ir.Constant(whole, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(whole, LANES), [0] * LANES))


def _store(builder: Any, numbers: Any, number: int, values: Any) -> None:
    builder.store(values, _vector(builder, numbers, number)).align = 64


def _sum_up(builder: Any, terms: Any, count: int, term: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """A loop over `terms` > 0 that keeps `count` vectors of sums in registers; term(k, sums) gives the next ones."""
    before = builder.block
    loop, after = builder.append_basic_block("terms"), builder.append_basic_block("summed")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_INDEX)
    k.add_incoming(ir.Constant(_INDEX, 0), before)
    sums = [builder.phi(_VECTOR) for _ in range(count)]
    following = term(k, sums)
    next_k = builder.add(k, ir.Constant(_INDEX, 1))
    k.add_incoming(next_k, loop)
    for sum_, next_sum in zip(sums, following, strict=True):
        sum_.add_incoming(ir.Constant(_VECTOR, [0.0] * LANES), before)
        sum_.add_incoming(next_sum, loop)
    builder.cbranch(builder.icmp_signed("<", next_k, terms), loop, after)
    builder.position_at_end(after)
    return following


@_instructions
def sum_products(typingctx: Any, left: Any, right: Any, tile: Any, terms: Any, more: Any) -> Any:
    """tile[r, c] = the sum over terms of left[k, r] * right[k, c], one term after the other, added to what is there if
    `more`; terms > 0. tile: float64[ROWS, COLUMNS], 64-byte aligned."""
    signature = types.void(types.int64, types.int64, types.int64, types.int64, types.boolean)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.call(_products(builder.module), arguments)
        return context.get_dummy_value()

    return signature, generate


def _products(module: Any) -> Any:
    """A function of its own: among other code the compiler would keep tiles where registers are wanted."""
    name = "roundlog.sum_products"
    function = module.globals.get(name)
    if function is not None:
        return function
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_INDEX] * 4 + [ir.IntType(1)]), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    left, right, tile = (_numbers(builder, address) for address in function.args[:3])
    multiply_add = _multiply_add(builder)

    def term(k: Any, sums: list[Any]) -> list[Any]:
        of_left = builder.gep(left, [builder.mul(k, ir.Constant(_INDEX, ROWS))])
        of_right = builder.gep(right, [builder.mul(k, ir.Constant(_INDEX, COLUMNS))])
        columns = [_load(builder, of_right, number) for number in range(_VECTORS)]
        following = []
        for row in range(ROWS):
            repeated = _everywhere(builder, builder.load(builder.gep(of_left, [ir.Constant(_INDEX, row)])))
            for number, column in enumerate(columns):
                following.append(builder.call(multiply_add, [repeated, column, sums[row * _VECTORS + number]]))
        return following

    nothing = ir.Constant(_VECTOR, [0.0] * LANES)
    for at, total in enumerate(_sum_up(builder, function.args[3], ROWS * _VECTORS, term)):
        before = builder.select(function.args[4], _load(builder, tile, at), nothing)
        _store(builder, tile, at, builder.fadd(before, total))
    builder.ret_void()
    return function


def _squares(vectors: int) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        strip, squared_norms = (_numbers(builder, address) for address in arguments[:2])
        multiply_add = _multiply_add(builder)

        def term(k: Any, sums: list[Any]) -> list[Any]:
            numbers = builder.gep(strip, [builder.mul(k, ir.Constant(_INDEX, vectors * LANES))])
            loaded = (_load(builder, numbers, number) for number in range(vectors))
            return [builder.call(multiply_add, [x, x, total]) for x, total in zip(loaded, sums, strict=True)]

        for at, total in enumerate(_sum_up(builder, arguments[2], vectors, term)):
            _store(builder, squared_norms, at, builder.fadd(_load(builder, squared_norms, at), total))
        return context.get_dummy_value()

    return generate


@_instructions
def add_squares_of_rows(typingctx: Any, strip: Any, squared_norms: Any, terms: Any) -> Any:
    """squared_norms[r] += the sum over terms of strip[k, r] squared, of a left operand's strip; terms > 0."""
    return types.void(types.int64, types.int64, types.int64), _squares(1)


@_instructions
def add_squares_of_columns(typingctx: Any, strip: Any, squared_norms: Any, terms: Any) -> Any:
    """squared_norms[c] += the sum over terms of strip[k, c] squared, of a right operand's strip; terms > 0."""
    return types.void(types.int64, types.int64, types.int64), _squares(_VECTORS)


_SINGLES = ir.VectorType(ir.FloatType(), LANES)


def _load_singles(builder: Any, address: Any) -> Any:
    loaded = builder.load(builder.inttoptr(address, _SINGLES.as_pointer()))
    loaded.align = 4
    return loaded


def _store_widened(builder: Any, singles: Any, address: Any) -> None:
    wide = builder.fpext(singles, _VECTOR)
    stored = builder.store(wide, builder.inttoptr(address, _VECTOR.as_pointer()))
    stored.align = 64


@_instructions
def widen(typingctx: Any, source: Any, target: Any) -> Any:
    """LANES FP32 numbers as FP64 ones; only target is aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store_widened(builder, _load_singles(builder, arguments[0]), arguments[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


_TRANSPOSING = (
    (1, (0, 8, 2, 10, 4, 12, 6, 14), (1, 9, 3, 11, 5, 13, 7, 15)),
    (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
    (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
)
"""Exchanges between vectors whose numbers differ by so much: of ones, of pairs and of fours."""


@_instructions
def widen_transposed(typingctx: Any, source: Any, line: Any, target: Any, term: Any) -> Any:
    """LANES lines of LANES FP32 numbers, `line` bytes apart, as FP64 columns that lie `term` bytes apart; only these
    are aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, line, target, term = arguments
        whole = ir.VectorType(ir.IntType(32), LANES)

        def at(first: Any, step: Any, number: int) -> Any:
            return builder.add(first, builder.mul(step, ir.Constant(_INDEX, number)))

        vectors = [_load_singles(builder, at(source, line, number)) for number in range(LANES)]
        for apart, *masks in _TRANSPOSING:
            for number in range(LANES):
                if not number & apart:
                    pair = vectors[number], vectors[number + apart]
                    vectors[number], vectors[number + apart] = (
                        builder.shuffle_vector(*pair, ir.Constant(whole, list(mask))) for mask in masks
                    )
        for number, vector in enumerate(vectors):
            _store_widened(builder, vector, at(target, term, number))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


@_instructions
def round_row(typingctx: Any, row: Any, norms: Any, scale: Any, factor: Any, largest: Any, out: Any) -> Any:
    """Rounds and tests float64[COLUMNS] as `roundlog.kernels.marking` says, with d = scale * norms[c]. Writes the FP32
    numbers to out, and returns a bit for every element that is marked, the lowest for the first."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, norms, scale, factor, largest, out = arguments
        row, norms = _numbers(builder, row), _numbers(builder, norms)
        mask, singles = ir.IntType(LANES), ir.VectorType(ir.FloatType(), LANES)
        magnitude = {
            kind: builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(kind, [kind]), name)
            for kind, name in ((_VECTOR, f"llvm.fabs.v{LANES}f64"), (singles, f"llvm.fabs.v{LANES}f32"))
        }
        two_units = ir.Constant(_VECTOR, [TWO_UNITS] * LANES)
        scale, factor = _everywhere(builder, scale), _everywhere(builder, factor)
        found = ir.Constant(_INDEX, 0)
        for number in range(_VECTORS):
            v = _load(builder, row, number)
            d = builder.fmul(scale, _load(builder, norms, number))
            reach = builder.fadd(
                builder.fmul(d, factor), builder.fmul(builder.call(magnitude[_VECTOR], [v]), two_units)
            )
            low = builder.fptrunc(builder.fsub(v, reach), singles)
            high = builder.fptrunc(builder.fadd(v, reach), singles)
            beyond = builder.fcmp_unordered(">", builder.call(magnitude[singles], [low]), _everywhere(builder, largest))
            marked = builder.or_(builder.fcmp_unordered("!=", low, high), beyond)
            bits = builder.zext(builder.bitcast(marked, mask), _INDEX)
            found = builder.or_(found, builder.shl(bits, ir.Constant(_INDEX, number * LANES)))
            # No negative zero.
            stored = builder.store(
                builder.fadd(low, ir.Constant(singles, [0.0] * LANES)),
                builder.inttoptr(builder.add(out, ir.Constant(_INDEX, number * LANES * 4)), singles.as_pointer()),
            )
            stored.align = 4
        return found

    signature = types.int64(types.int64, types.int64, types.float64, types.float64, types.float32, types.int64)
    return signature, generate
