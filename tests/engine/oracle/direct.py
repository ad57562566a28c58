"""The outputs of the operators that give bits as they are or as IEEE 754 has them, from their meanings.

`DIRECT[name](inputs, attributes)` gives the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from roundlog.adjudication import binary32 as ieee
from roundlog.adjudication.tensor_core_groups import NoTensorCoreValueError
from roundlog.adjudication.tensor_core_groups import element as of_tensor_cores
from roundlog.definitions import Family, of_family
from roundlog.definitions.tensor_core import ARITHMETICS
from roundlog.number_format import Format
from roundlog.program import DType

from tests.engine.oracle.array import FORMATS, Array, Index, broadcast_shape, build, moved, reduced

Attributes = Mapping[str, Any]
Inputs = Sequence[Array]

DIRECT: dict[str, Callable[[Inputs, Attributes], Array]] = {}


def direct(function: Callable[[Inputs, Attributes], Array]) -> Callable[[Inputs, Attributes], Array]:
    DIRECT[function.__name__.rstrip("_")] = function
    return function


# Movement


@direct
def reshape(inputs: Inputs, attributes: Attributes) -> Array:
    (x,) = inputs
    return Array(attributes["shape"], x.dtype, x.items)


@direct
def permute(inputs: Inputs, attributes: Attributes) -> Array:
    (x,) = inputs
    dims = attributes["dims"]

    def element(index: Index) -> int:
        where = [0] * len(dims)
        for a, dim in enumerate(dims):
            where[dim] = index[a]
        return x[tuple(where)]

    return build(tuple(x.shape[dim] for dim in dims), x.dtype, element)


@direct
def expand(inputs: Inputs, attributes: Attributes) -> Array:
    (x,) = inputs
    return build(attributes["shape"], x.dtype, x.broadcast)


@direct
def slice_(inputs: Inputs, attributes: Attributes) -> Array:
    (x,) = inputs
    dim, start, stop, step = (attributes[name] for name in ("dim", "start", "stop", "step"))
    chosen = [i for i in range(x.shape[dim]) if start <= i < stop and (i - start) % step == 0]
    return build(moved(x.shape, dim, len(chosen)), x.dtype, lambda index: x[moved(index, dim, chosen[index[dim]])])


@direct
def flip(inputs: Inputs, attributes: Attributes) -> Array:
    (x,) = inputs
    dim = attributes["dim"]
    return build(x.shape, x.dtype, lambda index: x[moved(index, dim, x.shape[dim] - 1 - index[dim])])


@direct
def cat(inputs: Inputs, attributes: Attributes) -> Array:
    dim = attributes["dim"]
    places = [(x, i) for x in inputs for i in range(x.shape[dim])]

    def element(index: Index) -> int:
        x, i = places[index[dim]]
        return x[moved(index, dim, i)]

    return build(moved(inputs[0].shape, dim, len(places)), inputs[0].dtype, element)


@direct
def pad(inputs: Inputs, attributes: Attributes) -> Array:
    x, fill = inputs
    low, high = attributes["low"], attributes["high"]

    def element(index: Index) -> int:
        found = x.read(tuple(i - before for i, before in zip(index, low, strict=True)))
        return fill[()] if found is None else found

    return build(tuple(a + b + c for a, b, c in zip(low, x.shape, high, strict=True)), x.dtype, element)


@direct
def where(inputs: Inputs, attributes: Attributes) -> Array:
    c, a, b = inputs
    shape = broadcast_shape(c.shape, a.shape, b.shape)
    return build(shape, a.dtype, lambda i: a.broadcast(i) if c.broadcast(i) else b.broadcast(i))


@direct
def gather(inputs: Inputs, attributes: Attributes) -> Array:
    x, index = inputs
    return build(index.shape, x.dtype, lambda i: x[moved(i, attributes["dim"], index[i])])


@direct
def take(inputs: Inputs, attributes: Attributes) -> Array:
    x, index = inputs
    rank = len(index.shape)
    return build((*index.shape, *x.shape[1:]), x.dtype, lambda i: x[(index[i[:rank]], *i[rank:])])


@direct
def loss(inputs: Inputs, attributes: Attributes) -> Array:
    return inputs[0]


@direct
def store(inputs: Inputs, attributes: Attributes) -> Array:
    return inputs[0]


# Exact


def _wrap(number: int) -> int:
    """Modulo 2^64, as int64."""
    return (number + 2**63) % 2**64 - 2**63


def unless_nan(items: Iterable[int], otherwise: int) -> int:
    return ieee.NAN if any(map(ieee.is_nan, items)) else otherwise


def _rank(bits: int) -> tuple[bool, Fraction | float]:
    """Compares as the number does, NaN above all."""
    return (True, 0.0) if ieee.is_nan(bits) else (False, ieee.order(bits))


def _elementwise(
    name: str, *, rounded: Callable[..., int] | None = None, number: Callable[..., int] | None = None,
    i64: Callable[..., int] | None = None, boolean: Callable[..., int] | None = None, gives: str | None = None,
) -> None:  # fmt: skip
    """rounded: of FP32 patterns, with the format of its result, which i64 has as well where numbers come of integers.
    number: of FP32 patterns, exact in every format."""

    def function(inputs: Inputs, attributes: Attributes) -> Array:
        dtype = inputs[0].dtype
        scalar = {"i64": i64, "bool": boolean}.get(dtype, rounded or number)
        assert scalar is not None, (name, dtype)
        result = gives or dtype
        options = {}
        if result in FORMATS and (scalar is rounded or dtype == "i64"):
            options["format"] = FORMATS[result]
        shape = broadcast_shape(*(x.shape for x in inputs))
        wide = [x.wide for x in inputs]
        found = build(shape, "f32", lambda i: int(scalar(*(x.broadcast(i) for x in wide), **options)))
        return found.narrow(result) if result in FORMATS else Array(shape, result, found.items)

    DIRECT[name] = function


def _of_integer(a: int, format: Format) -> int:
    return ieee.nearest(Fraction(a), format=format)


def _converted(a: int, format: Format) -> int:
    """A number of another format: rounded, or infinite or NaN as it is."""
    return ieee.nearest(ieee.value(a), zero=a, format=format) if ieee.is_finite(a) else unless_nan((a,), a)


_elementwise("add", rounded=ieee.add, i64=lambda a, b: _wrap(a + b))
_elementwise("sub", rounded=ieee.subtract, i64=lambda a, b: _wrap(a - b))
_elementwise("mul", rounded=ieee.multiply, i64=lambda a, b: _wrap(a * b))
_elementwise("div", rounded=ieee.divide)
_elementwise("sqrt", rounded=ieee.root)
_elementwise("neg", number=lambda a: ieee.NAN if ieee.is_nan(a) else a ^ ieee.SIGN, i64=lambda a: _wrap(-a))
_elementwise("abs", number=lambda a: ieee.NAN if ieee.is_nan(a) else a & ~ieee.SIGN, i64=lambda a: _wrap(abs(a)))
_elementwise("floor", number=ieee.floor)
_elementwise("maximum", number=lambda a, b: unless_nan((a, b), a if ieee.less(b, a) else b), i64=max)
_elementwise("minimum", number=lambda a, b: unless_nan((a, b), a if ieee.less(a, b) else b), i64=min)
_elementwise("eq", number=ieee.equal, i64=lambda a, b: a == b, boolean=lambda a, b: a == b, gives="bool")
_elementwise("lt", number=ieee.less, i64=lambda a, b: a < b, gives="bool")
_elementwise("le", number=lambda a, b: ieee.less(a, b) or ieee.equal(a, b), i64=lambda a, b: a <= b, gives="bool")
_elementwise("logical_and", boolean=lambda a, b: a * b)
_elementwise("logical_or", boolean=lambda a, b: a + b > 0)
_elementwise("logical_not", boolean=lambda a: 1 - a)
for _gives in FORMATS:
    _elementwise(f"to_{_gives}", rounded=_converted, i64=_of_integer, boolean=lambda a: 0x3F800000 * a, gives=_gives)
_elementwise("to_i64", boolean=lambda a: a, gives="i64")
# One that is not written here is what the reference says, which is held against the contract.
for _definition in of_family(Family.MAP):
    if _definition.name not in DIRECT:
        _scalars = {each.inputs[0]: ieee.SCALARS[_definition.code_name(each)] for each in _definition.formats}
        _rounds = _definition.code_name(_definition.formats[0]) in ieee.ROUNDED
        _elementwise(
            _definition.name,
            **{"rounded" if _rounds else "number": _scalars.get(DType.F32)},
            i64=_scalars.get(DType.I64),
            boolean=_scalars.get(DType.BOOL),
            gives=_definition.formats[0].output,
        )


def _extreme(x: Array, dims: Index, sign: int) -> Array:
    shape, members = reduced(x.wide, dims)

    def element(index: Index) -> int:
        line = members(index)
        if any(map(ieee.is_nan, line)):
            return ieee.NAN
        best = max(line, key=lambda bits: sign * ieee.order(bits))
        return 0 if best == ieee.SIGN else best

    return build(shape, "f32", element).narrow(x.dtype)


@direct
def amax(inputs: Inputs, attributes: Attributes) -> Array:
    return _extreme(inputs[0], attributes["dims"], 1)


@direct
def amin(inputs: Inputs, attributes: Attributes) -> Array:
    return _extreme(inputs[0], attributes["dims"], -1)


@direct
def argmax(inputs: Inputs, attributes: Attributes) -> Array:
    shape, members = reduced(inputs[0].wide, (attributes["dim"],))

    def element(index: Index) -> int:
        line = members(index)
        # max gives the first of equal ones.
        return max(range(len(line)), key=lambda i: _rank(line[i]))

    return build(shape, "i64", element)


@direct
def sum_i64(inputs: Inputs, attributes: Attributes) -> Array:
    shape, members = reduced(inputs[0], attributes["dims"])
    return build(shape, "i64", lambda index: _wrap(sum(members(index))))


@direct
def any_(inputs: Inputs, attributes: Attributes) -> Array:
    shape, members = reduced(inputs[0], attributes["dims"])
    return build(shape, "bool", lambda index: int(sum(members(index)) > 0))


@direct
def max_pool_index(inputs: Inputs, attributes: Attributes) -> Array:
    x = inputs[0].wide
    kernel, stride, padding, dilation = (attributes[name] for name in ("kernel", "stride", "padding", "dilation"))
    height, width = x.shape[2:]
    p, q = ((x.shape[2 + a] + 2 * padding[a] - dilation[a] * (kernel[a] - 1) - 1) // stride[a] + 1 for a in (0, 1))

    def element(index: Index) -> int:
        n, c, row, column = index
        window = [
            (h, w)
            for h in range(row * stride[0] - padding[0], height, dilation[0])[: kernel[0]]
            for w in range(column * stride[1] - padding[1], width, dilation[1])[: kernel[1]]
            if h >= 0 and w >= 0
        ]
        h, w = max(window, key=lambda at: _rank(x[n, c, at[0], at[1]]))
        return h * width + w

    return build((*x.shape[:2], p, q), "i64", element)


@direct
def tensor_core_matmul(inputs: Inputs, attributes: Attributes) -> Array:
    a, b = (x.wide for x in inputs)
    arithmetic, dtype = ARITHMETICS[attributes["arithmetic"]], inputs[0].dtype
    *outer, rows, terms = a.shape
    format = DType(dtype).number_format()
    assert format is not None

    def element(index: Index) -> int:
        *batch, row, column = index
        left, right = [a[*batch, row, k] for k in range(terms)], [b[*batch, k, column] for k in range(terms)]
        try:
            return format.of_float32(of_tensor_cores(arithmetic, dtype, left, right, format))
        except NoTensorCoreValueError:
            return format.nan

    return build((*outer, rows, b.shape[-1]), dtype, element)
