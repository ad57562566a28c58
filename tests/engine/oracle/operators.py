"""The value of every operator but the sources, from its docstring.

`DIRECT[name](inputs, attributes)` gives the output. `INEXACT[name](inputs, attributes)` gives the output's shape and,
for every element, the real number that it rounds, with what an error analysis needs to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from roundlog.adjudication import binary32 as ieee

from oracle.array import Array, Index, broadcast_shape, build, indices
from oracle.functions import FUNCTIONS

Attributes = Mapping[str, Any]
Inputs = Sequence[Array]

DIRECT: dict[str, Callable[[Inputs, Attributes], Array]] = {}
INEXACT: dict[str, Callable[[Inputs, Attributes], tuple[Index, list[Real]]]] = {}


@dataclass(frozen=True)
class Real:
    """A mathematical value, None where there is an infinity or NaN instead, of that pattern; for sums, how
    many terms it has that are not zero, their sum in magnitude, and the largest power of two that divides them all."""

    value: Fraction | None
    terms: int = 0
    magnitude: Fraction = Fraction(0)
    unit: Fraction = Fraction(0)
    special: int = ieee.NAN

    @property
    def rounded(self) -> int:
        return self.special if self.value is None else ieee.rounded(self.value)


def direct(function: Callable[[Inputs, Attributes], Array]) -> Callable[[Inputs, Attributes], Array]:
    DIRECT[function.__name__.rstrip("_")] = function
    return function


def inexact(
    function: Callable[[Inputs, Attributes], tuple[Index, list[Real]]],
) -> Callable[[Inputs, Attributes], tuple[Index, list[Real]]]:
    INEXACT[function.__name__.rstrip("_")] = function
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


def _with(index: Index, dim: int, coordinate: int) -> Index:
    return (*index[:dim], coordinate, *index[dim + 1 :])


@direct
def slice_(inputs: Inputs, attributes: Attributes) -> Array:
    (x,) = inputs
    dim, start, stop, step = (attributes[name] for name in ("dim", "start", "stop", "step"))
    chosen = [i for i in range(x.shape[dim]) if start <= i < stop and (i - start) % step == 0]
    return build(_with(x.shape, dim, len(chosen)), x.dtype, lambda index: x[_with(index, dim, chosen[index[dim]])])


@direct
def flip(inputs: Inputs, attributes: Attributes) -> Array:
    (x,) = inputs
    dim = attributes["dim"]
    return build(x.shape, x.dtype, lambda index: x[_with(index, dim, x.shape[dim] - 1 - index[dim])])


@direct
def cat(inputs: Inputs, attributes: Attributes) -> Array:
    dim = attributes["dim"]
    places = [(x, i) for x in inputs for i in range(x.shape[dim])]

    def element(index: Index) -> int:
        x, i = places[index[dim]]
        return x[_with(index, dim, i)]

    return build(_with(inputs[0].shape, dim, len(places)), inputs[0].dtype, element)


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
    return build(index.shape, x.dtype, lambda i: x[_with(i, attributes["dim"], index[i])])


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


def _unless_nan(items: Iterable[int], otherwise: int) -> int:
    return ieee.NAN if any(map(ieee.is_nan, items)) else otherwise


def _rank(bits: int) -> tuple[bool, Fraction | float]:
    """Compares as the number does, NaN above all."""
    return (True, 0.0) if ieee.is_nan(bits) else (False, ieee.order(bits))


def _elementwise(
    name: str, *, f32: Callable[..., int] | None = None, i64: Callable[..., int] | None = None,
    boolean: Callable[..., int] | None = None, gives: str | None = None,
) -> None:  # fmt: skip
    by_dtype = {"f32": f32, "i64": i64, "bool": boolean}

    def function(inputs: Inputs, attributes: Attributes) -> Array:
        scalar = by_dtype[inputs[0].dtype]
        assert scalar is not None, (name, inputs[0].dtype)
        shape = broadcast_shape(*(x.shape for x in inputs))
        return build(shape, gives or inputs[0].dtype, lambda i: int(scalar(*(x.broadcast(i) for x in inputs))))

    DIRECT[name] = function


_elementwise("add", f32=ieee.add, i64=lambda a, b: _wrap(a + b))
_elementwise("sub", f32=ieee.subtract, i64=lambda a, b: _wrap(a - b))
_elementwise("mul", f32=ieee.multiply, i64=lambda a, b: _wrap(a * b))
_elementwise("div", f32=ieee.divide)
_elementwise("sqrt", f32=ieee.root)
_elementwise("neg", f32=lambda a: ieee.NAN if ieee.is_nan(a) else a ^ ieee.SIGN, i64=lambda a: _wrap(-a))
_elementwise("abs", f32=lambda a: ieee.NAN if ieee.is_nan(a) else a & ~ieee.SIGN, i64=lambda a: _wrap(abs(a)))
_elementwise("floor", f32=ieee.floor)
_elementwise("maximum", f32=lambda a, b: _unless_nan((a, b), a if ieee.less(b, a) else b), i64=max)
_elementwise("minimum", f32=lambda a, b: _unless_nan((a, b), a if ieee.less(a, b) else b), i64=min)
_elementwise("eq", f32=ieee.equal, i64=lambda a, b: a == b, boolean=lambda a, b: a == b, gives="bool")
_elementwise("lt", f32=ieee.less, i64=lambda a, b: a < b, gives="bool")
_elementwise("le", f32=lambda a, b: ieee.less(a, b) or ieee.equal(a, b), i64=lambda a, b: a <= b, gives="bool")
_elementwise("logical_and", boolean=lambda a, b: a * b)
_elementwise("logical_or", boolean=lambda a, b: a + b > 0)
_elementwise("logical_not", boolean=lambda a: 1 - a)
_elementwise("to_f32", i64=lambda a: ieee.nearest(Fraction(a)), boolean=lambda a: 0x3F800000 * a, gives="f32")
_elementwise("to_i64", boolean=lambda a: a, gives="i64")


def _reduce(x: Array, dims: Index) -> tuple[Index, Callable[[Index], list[int]]]:
    """The shape with those axes of size 1, and the elements that each output element stands for, in row-major order."""
    shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.shape))

    def members(index: Index) -> list[int]:
        ranges = [range(x.shape[d]) if d in dims else (index[d],) for d in range(len(shape))]
        box = indices(tuple(len(r) for r in ranges))
        return [x[tuple(r[i] for r, i in zip(ranges, at, strict=True))] for at in box]

    return shape, members


def _extreme(x: Array, dims: Index, sign: int) -> Array:
    shape, members = _reduce(x, dims)

    def element(index: Index) -> int:
        line = members(index)
        if any(map(ieee.is_nan, line)):
            return ieee.NAN
        best = max(line, key=lambda bits: sign * ieee.order(bits))
        return 0 if best == ieee.SIGN else best

    return build(shape, "f32", element)


@direct
def amax(inputs: Inputs, attributes: Attributes) -> Array:
    return _extreme(inputs[0], attributes["dims"], 1)


@direct
def amin(inputs: Inputs, attributes: Attributes) -> Array:
    return _extreme(inputs[0], attributes["dims"], -1)


@direct
def argmax(inputs: Inputs, attributes: Attributes) -> Array:
    shape, members = _reduce(inputs[0], (attributes["dim"],))

    def element(index: Index) -> int:
        line = members(index)
        # max gives the first of equal ones.
        return max(range(len(line)), key=lambda i: _rank(line[i]))

    return build(shape, "i64", element)


@direct
def sum_i64(inputs: Inputs, attributes: Attributes) -> Array:
    shape, members = _reduce(inputs[0], attributes["dims"])
    return build(shape, "i64", lambda index: _wrap(sum(members(index))))


@direct
def any_(inputs: Inputs, attributes: Attributes) -> Array:
    shape, members = _reduce(inputs[0], attributes["dims"])
    return build(shape, "bool", lambda index: int(sum(members(index)) > 0))


@direct
def max_pool_index(inputs: Inputs, attributes: Attributes) -> Array:
    (x,) = inputs
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


# Inexact


def _sum_of_products(pairs: Iterable[tuple[int | None, int | None]]) -> Real:
    """None stands for padding."""
    total = magnitude = terms = together = 0
    specials = set()
    for a, b in pairs:
        if a is not None and b is not None:
            if not (ieee.is_finite(a) and ieee.is_finite(b)):
                zero = any(item & ~ieee.SIGN == 0 for item in (a, b))
                specials.add(_unless_nan((a, b), ieee.NAN if zero else (a ^ b) & ieee.SIGN | ieee.INFINITY))
                continue
            product = ieee.scaled(a) * ieee.scaled(b)
            total += product
            magnitude += abs(product)
            terms += product != 0
            together |= abs(product)
    if specials:
        return Real(None, special=specials.pop() if len(specials) == 1 else ieee.NAN)
    # The last bit of numbers or-ed is the first of their last bits.
    last = together & -together
    return Real(Fraction(total, 1 << 298), terms, Fraction(magnitude, 1 << 298), Fraction(last, 1 << 298))


_ONE = 0x3F800000


def _sum(items: Iterable[int]) -> Real:
    return _sum_of_products((item, _ONE) for item in items)


@inexact
def sum_(inputs: Inputs, attributes: Attributes) -> tuple[Index, list[Real]]:
    shape, members = _reduce(inputs[0], attributes["dims"])
    return shape, [_sum(members(index)) for index in indices(shape)]


@inexact
def scatter_add(inputs: Inputs, attributes: Attributes) -> tuple[Index, list[Real]]:
    x, index = inputs
    dim, size = attributes["dim"], attributes["size"]
    shape = _with(x.shape, dim, size)
    groups: dict[Index, list[int]] = {}
    for at in indices(x.shape):
        groups.setdefault(_with(at, dim, index.broadcast(at)), []).append(x[at])
    return shape, [_sum(groups.get(at, [])) for at in indices(shape)]


@inexact
def matmul(inputs: Inputs, attributes: Attributes) -> tuple[Index, list[Real]]:
    a, b = inputs
    shape = (*a.shape[:-1], b.shape[-1])
    inner = range(a.shape[-1])
    return shape, [
        _sum_of_products((a[(*batch, m, k)], b[(*batch, k, n)]) for k in inner) for *batch, m, n in indices(shape)
    ]


def _convolution(
    x: Index, w: Index, attributes: Attributes
) -> tuple[tuple[int, int], Iterable[tuple[Index, Index, Index]]]:
    """(P, Q), and every (g index, w index, x index) that belongs together, padding left out."""
    stride, padding, dilation, groups = (attributes[name] for name in ("stride", "padding", "dilation", "groups"))
    p, q = ((x[2 + a] + 2 * padding[a] - dilation[a] * (w[2 + a] - 1) - 1) // stride[a] + 1 for a in (0, 1))

    def together() -> Iterable[tuple[Index, Index, Index]]:
        for n, o, row, column in indices((x[0], w[0], p, q)):
            first = o // (w[0] // groups) * w[1]
            for c, i, j in indices(w[1:]):
                h = row * stride[0] + i * dilation[0] - padding[0]
                v = column * stride[1] + j * dilation[1] - padding[1]
                if 0 <= h < x[2] and 0 <= v < x[3]:
                    yield (n, o, row, column), (o, c, i, j), (n, first + c, h, v)

    return (p, q), together()


def _collect(shape: Index, products: Iterable[tuple[Index, int, int]]) -> tuple[Index, list[Real]]:
    groups: dict[Index, list[tuple[int | None, int | None]]] = {}
    for at, a, b in products:
        groups.setdefault(at, []).append((a, b))
    return shape, [_sum_of_products(groups.get(at, [])) for at in indices(shape)]


@inexact
def conv2d(inputs: Inputs, attributes: Attributes) -> tuple[Index, list[Real]]:
    x, w = inputs
    out, together = _convolution(x.shape, w.shape, attributes)
    return _collect((x.shape[0], w.shape[0], *out), ((g, x[at], w[tap]) for g, tap, at in together))


@inexact
def conv2d_grad_input(inputs: Inputs, attributes: Attributes) -> tuple[Index, list[Real]]:
    g, w = inputs
    shape = (g.shape[0], w.shape[1] * attributes["groups"], *attributes["size"])
    out, together = _convolution(shape, w.shape, attributes)
    assert g.shape[2:] == out
    return _collect(shape, ((at, g[place], w[tap]) for place, tap, at in together))


@inexact
def conv2d_grad_weight(inputs: Inputs, attributes: Attributes) -> tuple[Index, list[Real]]:
    g, x = inputs
    shape = (g.shape[1], x.shape[1] // attributes["groups"], *attributes["size"])
    out, together = _convolution(x.shape, shape, attributes)
    assert g.shape[2:] == out
    return _collect(shape, ((tap, g[place], x[at]) for place, tap, at in together))


def _function(name: str) -> None:
    def function(inputs: Inputs, attributes: Attributes) -> tuple[Index, list[Real]]:
        (x,) = inputs
        return x.shape, [_real_at(name, item) for item in x.items]

    INEXACT[name] = function


_PLUS, _MINUS, _NO_LIMIT = (Real(None, special=bits) for bits in (ieee.INFINITY, ieee.SIGN | ieee.INFINITY, ieee.NAN))
_LIMITS: dict[str, tuple[Real, Real]] = {
    "exp": (_PLUS, Real(Fraction(0))),
    "expm1": (_PLUS, Real(Fraction(-1))),
    "log": (_PLUS, _NO_LIMIT),
    "log1p": (_PLUS, _NO_LIMIT),
    "tanh": (Real(Fraction(1)), Real(Fraction(-1))),
    "erf": (Real(Fraction(1)), Real(Fraction(-1))),
    "sin": (_NO_LIMIT, _NO_LIMIT),
    "cos": (_NO_LIMIT, _NO_LIMIT),
}
"""At plus and minus infinity."""
_POLES = {"log": 0, "log1p": -1}


def _real_at(name: str, item: int) -> Real:
    if ieee.is_finite(item):
        x = ieee.value(item)
        if name in _POLES and x <= _POLES[name]:
            return _MINUS if x == _POLES[name] else _NO_LIMIT
        return Real(_real(name, x))
    return _NO_LIMIT if ieee.is_nan(item) else _LIMITS[name][item >> 31]


def _real(name: str, x: Fraction) -> Fraction:
    # Far outside the range of FP32 and FP64 only the direction matters.
    if name in ("exp", "expm1"):
        x = max(min(x, Fraction(760)), Fraction(-760))
    return FUNCTIONS[name](x)


for _name in FUNCTIONS:
    _function(_name)

assert not DIRECT.keys() & INEXACT.keys()
