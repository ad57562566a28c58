"""Functions of FP64 numbers by additions, multiplications, divisions and roots alone, in one order, without FMA: IEEE
754 rounds each of these, so that every machine has the same bits. No C library and no vector function takes part.

exp, log, sine and cosine lie within a few units in the last place of the true ones, `quantile` within 1e-15 of the true
one relatively (Wichura, Algorithm AS 241, *Applied Statistics* 37, 1988). The logarithm's coefficients are those of
fdlibm (Sun Microsystems, 1993)."""

from __future__ import annotations

from math import factorial, inf, nan, pi, sqrt
from typing import Any

import numpy as np
from numba import njit

from roundlog.kernels.elementary import LN2_HIGH, LN2_LOW, LOG2_E, of_word, word_of

_ROOT_OF_HALF = 0x3FE6A09E667F3BCD
_BIAS = 1023
_LEAST_NORMAL = 2.0**-1022
_L1, _L2, _L3, _L4, _L5, _L6, _L7 = (
    float.fromhex(text)
    for text in (
        "0x1.5555555555593p-1",
        "0x1.999999997fa04p-2",
        "0x1.2492494229359p-2",
        "0x1.c71c51d8e78afp-3",
        "0x1.7466496cb03dep-3",
        "0x1.39a09d078c69fp-3",
        "0x1.2f112df3e5244p-3",
    )
)
_LN2_HIGH_33 = float.fromhex("0x1.62e42feep-1")
_LN2_REST_33 = float.fromhex("0x1.a39ef35793c76p-33")
_HALF_PI = (float.fromhex("0x1.921fb544p0"), float.fromhex("0x1.0b4611a6p-34"), float.fromhex("0x1.3198a2ep-69"))
"""pi / 2 in three parts of 33 bits or less: their products with integers of 20 bits are exact."""
_HALF_PI_REST = float.fromhex("0x1.b839a252049c1p-104")
_P1, _P2, _P3 = _HALF_PI

MOST_TURNED = 2.0**20
"""Largest argument of `turn`."""

_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13, _E14 = (1 / factorial(i) for i in range(2, 15))
_S3, _S5, _S7, _S9, _S11, _S13, _S15, _S17 = (-((-1) ** (i // 2 + 1)) / factorial(i) for i in range(3, 18, 2))
_C2, _C4, _C6, _C8, _C10, _C12, _C14, _C16 = (((-1) ** (i // 2)) / factorial(i) for i in range(2, 17, 2))


@njit(inline="always")
def log(x: Any) -> Any:
    """The natural logarithm; NaN below 0."""
    if not x > 0.0:
        return -inf if x == 0.0 else nan
    if x == inf:
        return inf
    k = 0
    if x < _LEAST_NORMAL:
        x, k = x * 2.0**54, -54
    word = word_of(x)
    e = (word - _ROOT_OF_HALF) >> 52
    f = of_word(word - (e << 52)) - 1.0
    k += e
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    r = z * (_L1 + w * (_L3 + w * (_L5 + w * _L7))) + w * (_L2 + w * (_L4 + w * _L6))
    half = 0.5 * f * f
    return k * _LN2_HIGH_33 - ((half - (s * (half + r) + k * _LN2_REST_33)) - f)


@njit(inline="always")
def exp(x: Any) -> Any:
    if x != x:
        return x
    if x > 709.8:
        return inf
    if x < -745.2:
        return 0.0
    k = np.floor(x * LOG2_E + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    tail = _E8 + r * (_E9 + r * (_E10 + r * (_E11 + r * (_E12 + r * (_E13 + r * _E14)))))
    q = r + r * r * (_E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * (_E7 + r * tail))))))
    half = np.int64(k) // 2
    other = np.int64(k) - half
    return ((1.0 + q) * of_word((half + _BIAS) << 52)) * of_word((other + _BIAS) << 52)


@njit(inline="always")
def _sine(r: Any) -> Any:
    """Taylor's series for |r| <= pi / 4."""
    z = r * r
    tail = _S11 + z * (_S13 + z * (_S15 + z * _S17))
    return r + r * (z * (_S3 + z * (_S5 + z * (_S7 + z * (_S9 + z * tail)))))


@njit(inline="always")
def _cosine(r: Any) -> Any:
    z = r * r
    tail = _C10 + z * (_C12 + z * (_C14 + z * _C16))
    return 1.0 + z * (_C2 + z * (_C4 + z * (_C6 + z * (_C8 + z * tail))))


@njit(inline="always")
def turn(r: Any, quarter: Any) -> Any:
    """(sine, cosine) of r + quarter * pi / 2; |r| <= pi / 4."""
    s, c = _sine(r), _cosine(r)
    if quarter & 1:
        s, c = c, -s
    if quarter & 2:
        s, c = -s, -c
    return s, c


@njit(inline="always")
def sine_cosine(x: Any) -> Any:
    """(sine, cosine) of x radians, |x| <= MOST_TURNED; NaN beyond."""
    if not abs(x) <= MOST_TURNED:
        return nan, nan
    n = np.floor(x * (2.0 / pi) + 0.5)
    r = ((x - n * _P1) - n * _P2) - n * _P3 - n * _HALF_PI_REST
    return turn(r, np.int64(n))


@njit(inline="always")
def power(x: Any, y: Any) -> Any:
    """x to the power of y, as IEEE 754's pow has its special cases."""
    if y == 0.0 or x == 1.0:
        return 1.0
    if x != x or y != y:
        return nan
    is_whole = np.floor(y) == y
    is_odd = is_whole and abs(y) < 2.0**53 and np.int64(y) & 1 == 1
    if x == 0.0 or abs(x) == inf:
        size = 0.0 if (x == 0.0) == (y > 0.0) else inf
        return -size if is_odd and (x < 0.0 or 1.0 / x < 0.0) else size
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
    if x == -1.0:
        return -1.0 if is_odd else 1.0
    size = exp(y * log(abs(x)))
    return -size if x < 0.0 and is_odd else size


@njit(inline="always")
def quantile(q: Any, tail: Any) -> Any:
    """The normal quantile of 1/2 + q. tail: min(1/2 + q, 1/2 - q)."""
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        a = ((2.5090809287301226727e3 * r + 3.3430575583588128105e4) * r + 6.7265770927008700853e4) * r
        a = ((a + 4.5921953931549871457e4) * r + 1.3731693765509461125e4) * r + 1.9715909503065514427e3
        a = ((a * r + 1.3314166789178437745e2) * r + 3.3871328727963666080e0) * q
        b = ((5.2264952788528545610e3 * r + 2.8729085735721942674e4) * r + 3.9307895800092710610e4) * r
        b = ((b + 2.1213794301586595867e4) * r + 5.3941960214247511077e3) * r + 6.8718700749205790830e2
        return a / ((b * r + 4.2313330701600911252e1) * r + 1.0)
    if not tail > 0.0:
        return (inf if q > 0.0 else -inf) if tail == 0.0 else nan
    r = np.sqrt(-log(tail))
    if r <= 5.0:
        r = r - 1.6
        a = ((7.7454501427834140764e-4 * r + 2.27238449892691845833e-2) * r + 2.41780725177450611770e-1) * r
        a = ((a + 1.27045825245236838258e0) * r + 3.64784832476320460504e0) * r + 5.76949722146069140550e0
        a = (a * r + 4.63033784615654529590e0) * r + 1.42343711074968357734e0
        b = ((1.05075007164441684324e-9 * r + 5.475938084995344946e-4) * r + 1.51986665636164571966e-2) * r
        b = ((b + 1.48103976427480074590e-1) * r + 6.89767334985100004550e-1) * r + 1.67638483018380384940e0
        b = (b * r + 2.05319162663775882187e0) * r + 1.0
    else:
        r = r - 5.0
        a = ((2.01033439929228813265e-7 * r + 2.71155556874348757815e-5) * r + 1.24266094738807843860e-3) * r
        a = ((a + 2.65321895265761230930e-2) * r + 2.96560571828504891230e-1) * r + 1.78482653991729133580e0
        a = (a * r + 5.46378491116411436990e0) * r + 6.65790464350110377720e0
        b = ((2.04426310338993978564e-15 * r + 1.42151175831644588870e-7) * r + 1.84631831751005468180e-5) * r
        b = ((b + 7.86869131145613259100e-4) * r + 1.48753612908506148525e-2) * r + 1.36929880922735805310e-1
        b = (b * r + 5.99832206555887937690e-1) * r + 1.0
    return a / b if q >= 0.0 else -(a / b)


_ROOT_OF_TWO = sqrt(2.0)
_LOG, _EXP, _SIN, _COS, _ERFINV = range(5)
CODES = {"log": _LOG, "exp": _EXP, "sin": _SIN, "cos": _COS, "erfinv": _ERFINV}


@njit(cache=True, nogil=True, error_model="numpy")
def of_all(code: int, x: Any, out: Any) -> None:
    """out[i] = a function of x[i]; float64[n], or float32[n], which is rounded once more."""
    for i in range(len(x)):
        v = np.float64(x[i])
        if code == _LOG:
            y = log(v)
        elif code == _EXP:
            y = exp(v)
        elif code == _SIN:
            y = sine_cosine(v)[0]
        elif code == _COS:
            y = sine_cosine(v)[1]
        else:
            y = quantile(0.5 * v, 0.5 * (1.0 - abs(v))) / _ROOT_OF_TWO
        out[i] = y


@njit(cache=True, nogil=True, error_model="numpy")
def powers(x: Any, y: Any, out: Any) -> None:
    """out[i] = x[i] to the power of y[i]."""
    for i in range(len(x)):
        out[i] = power(np.float64(x[i]), np.float64(y[i]))
