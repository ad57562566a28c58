"""The real numbers that inexact operators round, from their docstrings.

`INEXACT[name](inputs, attributes)` gives the output's shape and, for every element, the real number that it rounds,
with what an error analysis needs to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

from elementary_series import FUNCTIONS
from roundlog.adjudication import binary32 as ieee
from roundlog.number_format import FLOAT32, Format

from tests.engine.oracle.array import Index, indices, moved, reduced
from tests.engine.oracle.by_verifier import DIRECT, Attributes, Inputs

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
        return self.rounded_to(FLOAT32)

    def rounded_to(self, form: Format) -> int:
        """Its pattern in a format."""
        return form.of_float32(self.special if self.value is None else ieee.rounded(self.value, form))


def inexact(
    function: Callable[[Inputs, Attributes], tuple[Index, list[Real]]],
) -> Callable[[Inputs, Attributes], tuple[Index, list[Real]]]:
    name = function.__name__.rstrip("_")
    INEXACT[name] = lambda inputs, attributes: function([x.wide for x in inputs], attributes)
    return function


def _sum_of_products(pairs: Iterable[tuple[int | None, int | None]]) -> Real:
    """Sum of the products of pairs; None stands for padding."""
    total = magnitude = terms = together = 0
    specials = set()
    for a, b in pairs:
        if a is not None and b is not None:
            if not (ieee.is_finite(a) and ieee.is_finite(b)):
                zero = any(item & ~ieee.SIGN == 0 for item in (a, b))
                is_nan = zero or ieee.is_nan(a) or ieee.is_nan(b)
                specials.add(ieee.NAN if is_nan else (a ^ b) & ieee.SIGN | ieee.INFINITY)
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
    shape, members = reduced(inputs[0], attributes["dims"])
    return shape, [_sum(members(index)) for index in indices(shape)]


@inexact
def scatter_add(inputs: Inputs, attributes: Attributes) -> tuple[Index, list[Real]]:
    x, index = inputs
    dim, size = attributes["dim"], attributes["size"]
    shape = moved(x.shape, dim, size)
    groups: dict[Index, list[int]] = {}
    for at in indices(x.shape):
        groups.setdefault(moved(at, dim, index.broadcast(at)), []).append(x[at])
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
        x = inputs[0].wide
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
