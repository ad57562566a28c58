"""Numbers of a task before its first step: draws and elementwise functions that have the same bits on every machine,
and the mode of `portable`, in which other operators that have not are noted.

Functions of FP64 take additions, multiplications, divisions and roots alone, in one order, without FMA: IEEE 754 rounds
each of these. They lie within a few units in the last place of the true ones. The logarithm's coefficients are fdlibm's
(Sun Microsystems, 1993), the normal quantile's those of Wichura, Algorithm AS 241, *Applied Statistics* 37, 1988.

A call's random numbers are a stream of Philox, whose key is two integers of PyTorch's generator: its Mersenne Twister
computes with integers alone. Element i takes word i, 32 bits or 64 for FP64, as a number of [0, 1) in FP64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from math import ceil, factorial, inf, nan, pi, prod
from typing import Any, Literal, cast

import numpy as np
import torch
from numba import njit, vectorize
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roundlog.capture.errors import place_of_call
from roundlog.kernels.elementary import LN2_HIGH, LN2_LOW, LOG2_E, of_word, word_of
from roundlog.kernels.threads import in_parts, own_threads
from roundlog.operators import operator
from roundlog.operators.registry import Inexact
from roundlog.randomness.philox import BLOCK
from roundlog.rounding import Recorder

_L1, _L2, _L3, _L4 = map(
    float.fromhex, ("0x1.5555555555593p-1", "0x1.999999997fa04p-2", "0x1.2492494229359p-2", "0x1.c71c51d8e78afp-3")
)
_L5, _L6, _L7 = map(float.fromhex, ("0x1.7466496cb03dep-3", "0x1.39a09d078c69fp-3", "0x1.2f112df3e5244p-3"))
_LN2_HIGH_33, _LN2_REST_33 = map(float.fromhex, ("0x1.62e42feep-1", "0x1.a39ef35793c76p-33"))
_P1, _P2, _P3, _P4 = map(
    float.fromhex, ("0x1.921fb544p0", "0x1.0b4611a6p-34", "0x1.3198a2ep-69", "0x1.b839a252049c1p-104")
)
"""pi / 2 in parts: products of the first three, of 33 bits or less, with integers of 20 bits are exact."""
_ROOT_OF_HALF, _ROOT_OF_TWO, _LEAST_NORMAL = 0x3FE6A09E667F3BCD, 2.0**0.5, 2.0**-1022
_EXP = np.array([1 / factorial(i) for i in range(14, 1, -1)])
_SINE = np.array([(-1) ** (i // 2) / factorial(i) for i in range(17, 2, -2)])
_COSINE = np.array([(-1) ** (i // 2) / factorial(i) for i in range(16, 1, -2)])
_QUANTILE = """
    2509.0809287301227 33430.57558358813 67265.7709270087 45921.95393154987 13731.69376550946 1971.5909503065513
    133.14166789178438 3.3871328727963665 5226.495278852854 28729.085735721943 39307.89580009271 21213.794301586597
    5394.196021424751 687.1870074920579 42.31333070160091 1 0.0007745450142783414 0.022723844989269184
    0.2417807251774506 1.2704582524523684 3.6478483247632045 5.769497221460691 4.630337846156546 1.4234371107496835
    1.0507500716444169e-09 0.0005475938084995345 0.015198666563616457 0.14810397642748008 0.6897673349851
    1.6763848301838038 2.053191626637759 1 2.0103343992922881e-07 2.7115555687434876e-05 0.0012426609473880784
    0.026532189526576124 0.29656057182850487 1.7848265399172913 5.463784911164114 6.657904643501103
    2.0442631033899397e-15 1.421511758316446e-07 1.8463183175100548e-05 0.0007868691311456133 0.014875361290850615
    0.1369298809227358 0.599832206555888 1
"""
_QUANTILES = np.array(_QUANTILE.split(), np.float64).reshape(6, 8)
"""Numerator and denominator, highest power first: in the middle, in the tails, and far out in them."""


@njit(inline="always")
def _polynomial(coefficients: Any, x: Any) -> Any:
    """By Horner's scheme, highest power first."""
    y = coefficients[0]
    for i in range(1, len(coefficients)):
        y = y * x + coefficients[i]
    return y


@njit(inline="always")
def _log(x: Any) -> Any:
    """The natural logarithm of a normal number above 0."""
    word = word_of(x)
    k = (word - _ROOT_OF_HALF) >> 52
    f = of_word(word - (k << 52)) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    r = z * (_L1 + w * (_L3 + w * (_L5 + w * _L7))) + w * (_L2 + w * (_L4 + w * _L6))
    half = 0.5 * f * f
    return k * _LN2_HIGH_33 - ((half - (s * (half + r) + k * _LN2_REST_33)) - f)


@njit(inline="always")
def _exp(x: Any) -> Any:
    if not -745.2 <= x <= 709.8:
        return inf if x > 0.0 else 0.0
    k = np.floor(x * LOG2_E + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    q = r + r * r * _polynomial(_EXP, r)
    half = np.int64(k) // 2
    other = np.int64(k) - half
    return ((1.0 + q) * of_word((half + 1023) << 52)) * of_word((other + 1023) << 52)


@njit(inline="always")
def _turn(r: Any, quarter: Any) -> Any:
    """(sine, cosine) of r + quarter * pi / 2, by Taylor's series; |r| <= pi / 4."""
    z = r * r
    s, c = r + r * (z * _polynomial(_SINE, z)), 1.0 + z * _polynomial(_COSINE, z)
    if quarter & 1:
        s, c = c, -s
    if quarter & 2:
        s, c = -s, -c
    return s, c


@vectorize(cache=True)  # type: ignore[no-untyped-call, untyped-decorator]
def _sine(quarter: Any, x: Any) -> Any:
    """The sine of x + quarter * pi / 2, |x| <= 2^20: float64[...]."""
    n = np.floor(x * (2.0 / pi) + 0.5)
    return _turn(((x - n * _P1) - n * _P2) - n * _P3 - n * _P4, np.int64(n + quarter))[0]


@vectorize(cache=True)  # type: ignore[no-untyped-call, untyped-decorator]
def _power(x: Any, y: Any) -> Any:
    """float64[...], float64[...] -> float64[...]: x to the power of y, as IEEE 754's pow has its special cases."""
    if not _LEAST_NORMAL <= abs(x) < inf or not abs(y) < inf:
        return x**y  # a special case, of which every library gives the same number
    is_whole = np.floor(y) == y
    if x < 0.0 and not is_whole:
        return nan
    if abs(y) <= 64.0 and is_whole:
        base, count, result = x, np.int64(abs(y)), 1.0
        while count:
            if count & 1:
                result = result * base
            base = base * base
            count >>= 1
        return 1.0 / result if y < 0.0 else result
    if y == 0.5:
        return np.sqrt(x)
    size = _exp(y * _log(abs(x)))
    return -size if x < 0.0 and abs(y) % 2.0 == 1.0 else size


@vectorize(cache=True)  # type: ignore[no-untyped-call, untyped-decorator]
def _erfinv(x: Any) -> Any:
    """float64[...] -> float64[...]: the inverse of the error function."""
    q, tail = 0.5 * x, 0.5 * (1.0 - abs(x))
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        return _polynomial(_QUANTILES[0], r) * q / _polynomial(_QUANTILES[1], r) / _ROOT_OF_TWO
    if not tail > 0.0:
        return x * inf if tail == 0.0 else nan
    r = np.sqrt(-_log(tail))
    row, r = (2, r - 1.6) if r <= 5.0 else (4, r - 5.0)
    y = _polynomial(_QUANTILES[row], r) / _polynomial(_QUANTILES[row + 1], r)
    return (y if q >= 0.0 else -y) / _ROOT_OF_TWO


Arguments = dict[str, Any]
"""Name -> what a call of an operator gives for it, or its default."""


@njit(cache=True, nogil=True, error_model="numpy")
def _uniform(units: Any, out: Any, low: float, high: float) -> None:
    """low <= x < high, but where rounding to the dtype leaves no number between them."""
    for i in range(len(units)):
        out[i] = low + (high - low) * units[i]
        if not out[i] < high:
            out[i] = low


@njit(cache=True, nogil=True, error_model="numpy")
def _normal(units: Any, out: Any, mean: float, deviation: float) -> None:
    """Box and Muller 1958, both numbers of a pair."""
    for i in range(0, len(units) - 1, 2):
        radius = np.sqrt(-2.0 * _log(1.0 - units[i]))
        t = 4.0 * units[i + 1]
        q = np.floor(t + 0.5)
        s, c = _turn((t - q) * (pi / 2), np.int64(q))
        out[i], out[i + 1] = mean + deviation * (radius * c), mean + deviation * (radius * s)


def _words(given: Arguments) -> Callable[[int], np.random.Philox]:
    """The stream of a call from a block on. Moves the call's generator on."""
    key = torch.empty(2, dtype=torch.int64).random_(generator=given.get("generator")).numpy().astype(np.uint64)
    return lambda start: np.random.Philox(key=key, counter=start)


def _drawn(fill: Callable[[Any, Any, float, float], None], a: float, b: float, given: Arguments) -> torch.Tensor | None:
    """What a call draws by `fill`, from numbers of [0, 1); None if that is of no real dtype of floating point."""
    like: torch.Tensor | None = given.get("self")
    dtype = given.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
    if not dtype.is_floating_point:
        return None
    shape, layout = given["size"] if like is None else like.shape, given.get("memory_format", torch.preserve_format)
    wide, words = dtype == torch.float64, _words(given)
    each = BLOCK // 2 if wide else BLOCK
    blocks = -(-prod(shape) // each)
    out = np.empty(blocks * each, np.float64 if wide else np.float32)

    def part(start: int, stop: int) -> None:
        stream = words(start)
        for begin in range(start, stop, 2048):  # words stay in the cache until they are numbers
            end = min(begin + 2048, stop)
            raw = stream.random_raw(BLOCK // 2 * (end - begin)).astype("<u8", copy=False)
            units = (raw >> np.uint64(11) if wide else raw.view("<u4")).astype(np.float64)
            units *= 2.0**-53 if wide else 2.0**-32
            fill(units, out[begin * each : end * each], a, b)

    in_parts(part, blocks, 16 * out.size)
    numbers = torch.from_numpy(out[: prod(shape)]).reshape(tuple(shape)).to(dtype)
    if fill is _uniform and dtype.itemsize < 4:  # rounded once more
        numbers.masked_fill_(numbers.double() >= b, a)
    if like is None or (like.is_contiguous() and layout == torch.preserve_format):
        return numbers
    return torch.empty_like(like, dtype=dtype, memory_format=layout).copy_(numbers)


def _draw_normal(given: Arguments) -> torch.Tensor | None:
    mean, deviation = given.get("mean", 0.0), given.get("std", 1.0)
    if isinstance(mean, torch.Tensor) or isinstance(deviation, torch.Tensor) or not deviation >= 0:
        return None
    return _drawn(_normal, float(mean), float(deviation), given)


def _draw_uniform(given: Arguments) -> torch.Tensor | None:
    low, high = float(given.get("from", 0.0)), float(given.get("to", 1.0))
    return _drawn(_uniform, low, high, given) if 0 <= high - low <= torch.finfo(torch.float32).max else None


def _permutation(given: Arguments) -> torch.Tensor:
    """The order of as many words of 64 bits."""
    order = np.argsort(_words(given)(0).random_raw(int(given["n"])), kind="stable")
    return torch.from_numpy(order).to(given["dtype"] or torch.int64)


def _function(name: str, given: Arguments) -> torch.Tensor | None:
    """An elementary function of FP32, or of integers, as programs compute it: rounded correctly."""
    x = given["self"].detach()
    x = x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
    if x.dtype == torch.float64 and name in ("sin", "cos") and not bool((x.abs() > 2.0**20).any()):
        return _strict(partial(_sine, name == "cos"), ("self",), given)
    if x.dtype != torch.float32:
        return None
    with own_threads():
        found = Recorder(0).round(0, cast(Inexact, operator(name)), [x.contiguous()], {})
    return torch.empty_like(x).copy_(found)


def _strict(function: Callable[..., Any], names: Sequence[str], given: Arguments) -> torch.Tensor | None:
    """A function of FP32 or FP64, by one of FP64. names: of its arguments."""
    operands = [given[name] for name in names]
    dtype = torch.result_type(operands[0], operands[-1])
    if dtype not in (torch.float32, torch.float64):
        return None
    with np.errstate(all="ignore"):
        numbers = function(*(torch.as_tensor(x, dtype=torch.float64).detach().numpy() for x in operands))
    return torch.from_numpy(np.asarray(numbers)).to(dtype)


def _arange(given: Arguments) -> torch.Tensor | None:
    start, end, step = given.get("start", 0), given["end"], given.get("step", 1)
    is_whole = all(isinstance(item, int) for item in (start, end, step))
    dtype = given["dtype"] or (torch.int64 if is_whole else torch.get_default_dtype())
    count = (end - start) / step if step else inf
    if not dtype.is_floating_point or not 0 <= count < inf:
        return None
    return torch.from_numpy(float(start) + np.arange(ceil(count)) * float(step)).to(dtype)


def _linspace(given: Arguments) -> torch.Tensor | None:
    start, end, steps = given["start"], given["end"], given["steps"]
    dtype = given["dtype"] or torch.get_default_dtype()
    if not dtype.is_floating_point or steps < 0 or not all(isinstance(item, int | float) for item in (start, end)):
        return None
    step, i = (end - start) / max(steps - 1, 1), np.arange(steps)
    # From both ends to the middle, as PyTorch's.
    return torch.from_numpy(np.where(i < max(steps // 2, 1), start + i * step, end - (steps - 1 - i) * step)).to(dtype)


OWN: dict[str, Callable[[Arguments], torch.Tensor | None]] = {
    **{name: partial(_function, name) for name in ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos")},
    **dict.fromkeys(("erfinv", "special_erfinv"), partial(_strict, _erfinv, ("self",))),
    "pow": partial(_strict, _power, ("self", "exponent")),
    "arange": _arange,
    "linspace": _linspace,
    **dict.fromkeys(("normal", "randn", "randn_like"), _draw_normal),
    **dict.fromkeys(("rand", "rand_like", "uniform"), _draw_uniform),
    "randperm": _permutation,
}
"""Operator without overload and underscore -> what a call of it gives; None where PyTorch's own is as good, where there
is nothing else, or where PyTorch says what is wrong with the arguments."""

_NAMES = """
    _local_scalar_dense _sparse_coo_tensor_with_dims_and_tensors _to_copy _to_dense _unsafe_view abs add all
    amax amin any arange argmax argmin cat ceil clamp clamp_max clamp_min clone constant_pad_nd copy cumprod cumsum
    diagonal_copy div embedding empty empty_like empty_strided eq equal eye fill flip floor floor_divide fmod frac full
    full_like gather ge gt index index_copy index_fill index_put index_select isfinite isinf isnan le lt masked_fill
    masked_select max maximum min minimum mul nan_to_num ne neg new_empty new_full new_ones new_zeros ones ones_like
    random reciprocal relu remainder repeat repeat_interleave resize roll round rsqrt rsub scalar_tensor scatter
    searchsorted set sgn sign sqrt square stack sub topk tril triu trunc where zero zeros zeros_like
"""
_EXACT = frozenset(_NAMES.split())
"""Names without overload, and without the underscore of what writes in place, of operators that move real numbers,
compare them, or compute what IEEE 754 rounds once; `rsqrt` is a root and a division, `cumsum` adds one after the other
in FP64. With a factor (alpha), some machines round once and others twice; what accumulates does so in any order."""


class PortableNumbers(TorchDispatchMode):
    """While this is active, operators on the CPU give the same bits on every machine, or are noted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.unportable: dict[str, str] = {}
        """Operator that PyTorch computed itself, with bits of this machine -> ` (at net.py:12)`, where it was first."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        device = torch.device(kwargs.get("device") or "cpu").type
        has_numbers = device != "meta" and not any(isinstance(x, FakeTensor) or x.is_meta for x in tensors)
        if _active.get() is not self or not has_numbers or not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        name, given = func._schema.name.removeprefix("aten::"), _bound(func, args, kwargs)
        base, in_place = name.removesuffix("_"), name.endswith("_")
        is_here = device == "cpu" and all(x.is_cpu and x.layout == torch.strided for x in tensors)
        own = OWN[base](given) if is_here and base in OWN else None
        target = args[0] if in_place else given.get("out")
        if own is None or (target is not None and not torch.can_cast(own.dtype, target.dtype)):
            result = func(*args, **kwargs)
            kinds = [x.dtype for x in [*tensors, *tree_leaves(result)] if isinstance(x, torch.Tensor)]
            is_real = base in _EXACT and not any(kind.is_complex for kind in kinds)
            is_exact = func.is_view or (is_real and given.get("alpha", 1) == 1 and not given.get("accumulate"))
            if not is_exact and any(kind.is_floating_point or kind.is_complex for kind in kinds):
                self.unportable.setdefault(f"aten.{base}", place_of_call())
            return result
        if target is None:
            return own
        return (target if in_place else target.resize_(own.shape)).copy_(own)


_active: ContextVar[PortableNumbers | Literal[False] | None] = ContextVar("roundlog.capture.portable", default=None)
"""The mode that counts; False inside `torchs_own`."""


@contextmanager
def _having(mode: PortableNumbers | Literal[False] | None) -> Iterator[None]:
    token = _active.set(mode)
    try:
        yield
    finally:
        _active.reset(token)


@contextmanager
def portable() -> Iterator[PortableNumbers | None]:
    """While this lasts, draws and elementwise functions of this thread have the same bits on every machine, as a task's
    should until `Job.from_task`. Random numbers are others than PyTorch's own for the same seed. Gives the mode, which
    notes the operators that computed with this machine's bits; None inside `torchs_own`. Can stand before a function,
    as `@portable()`."""
    if (outer := _active.get()) is not None:
        yield outer or None
        return
    numbers = PortableNumbers()
    with numbers, _having(numbers):
        yield numbers


def torchs_own() -> AbstractContextManager[None]:
    """While this lasts, `portable` does nothing: tensors have the bits that PyTorch's kernels give on this machine."""
    return _having(False)


def paused() -> AbstractContextManager[None]:
    """While this lasts, a `portable` around it does nothing: a step is traced, or run as its user would run it."""
    return _having(_active.get() and None)


def _bound(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Argument name -> what a call gives for it, or its default; new numbers are of the dtype they are written into."""
    bound = {}
    for position, argument in enumerate(func._schema.arguments):
        # The default of randperm's dtype is a number.
        default = argument.default_value if argument.has_default_value() and argument.name != "dtype" else None
        bound[argument.name] = args[position] if position < len(args) else kwargs.get(argument.name, default)
    out = bound.get("out")
    return {"dtype": None if out is None else out.dtype} | {key: x for key, x in bound.items() if x is not None}
