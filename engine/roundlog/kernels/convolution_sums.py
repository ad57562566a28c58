"""Single elements of convolutions and of their gradients, nearly exactly (see `roundlog.kernels.summing`).

The letters are those of `roundlog.operators.convolution`: x[N, C, H, W], w[O, C/groups, I, J], g[N, O, P, Q]. All
arrays are contiguous, and the caller answers for the indices. There are three loops for single elements because each
walks over other axes: one loop over general strides would test in every term which of the three it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from roundlog.kernels.threads import in_parts

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


def geometry(
    size: Sequence[int],
    kernel: Sequence[int],
    out: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> I64:
    """int64[12]: H, W, I, J, P, Q, strides, paddings, dilations."""
    return np.array([*size, *kernel, *out, *stride, *padding, *dilation], dtype=np.int64)


@njit(inline="always")
def _add(s: float, e: float, m: float, p: float) -> Any:
    # TwoSum (Knuth): t + error = s + p exactly.
    t = s + p
    v = t - s
    error = (s - (t - v)) + (p - v)
    return t, e + error, m + abs(error)


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_forward(
    x: Any, w: Any, g: Any, channels: int, outputs: int, groups: int, elements: Any, out: Any, start: int, stop: int
) -> None:
    h, wd, taps, wide, outs, across, sh, sw, ph, pw, dh, dw = g
    inner = channels // groups
    for r in range(start, stop):
        rest, q = elements[r] // across, elements[r] % across
        rest, p = rest // outs, rest % outs
        n, o = rest // outputs, rest % outputs
        first = n * channels + o // (outputs // groups) * inner
        s, e, m = 0.0, 0.0, 0.0
        for c in range(inner):
            for i in range(taps):
                y = p * sh + i * dh - ph
                if y < 0 or y >= h:
                    continue
                for j in range(wide):
                    v = q * sw + j * dw - pw
                    if 0 <= v < wd:
                        a = np.float64(x[((first + c) * h + y) * wd + v])
                        s, e, m = _add(s, e, m, a * np.float64(w[((o * inner + c) * taps + i) * wide + j]))
        out[0, r], out[1, r], out[2, r] = s, e, m


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_input(
    gradient: Any,
    w: Any,
    g: Any,
    channels: int,
    outputs: int,
    groups: int,
    elements: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    h, wd, taps, wide, outs, across, sh, sw, ph, pw, dh, dw = g
    inner, each = channels // groups, outputs // groups
    for r in range(start, stop):
        rest, v = elements[r] // wd, elements[r] % wd
        rest, y = rest // h, rest % h
        n, channel = rest // channels, rest % channels
        group, c = channel // inner, channel % inner
        s, e, m = 0.0, 0.0, 0.0
        for o in range(group * each, (group + 1) * each):
            for i in range(taps):
                above = y + ph - i * dh
                if above < 0 or above % sh != 0 or above // sh >= outs:
                    continue
                for j in range(wide):
                    left = v + pw - j * dw
                    if left >= 0 and left % sw == 0 and left // sw < across:
                        a = np.float64(gradient[((n * outputs + o) * outs + above // sh) * across + left // sw])
                        s, e, m = _add(s, e, m, a * np.float64(w[((o * inner + c) * taps + i) * wide + j]))
        out[0, r], out[1, r], out[2, r] = s, e, m


@njit(cache=True, nogil=True, error_model="numpy")
def _sum_weight(
    gradient: Any,
    x: Any,
    g: Any,
    channels: int,
    outputs: int,
    groups: int,
    samples: int,
    elements: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    h, wd, taps, wide, outs, across, sh, sw, ph, pw, dh, dw = g
    inner = channels // groups
    for r in range(start, stop):
        rest, j = elements[r] // wide, elements[r] % wide
        rest, i = rest // taps, rest % taps
        o, c = rest // inner, rest % inner
        channel = o // (outputs // groups) * inner + c
        s, e, m = 0.0, 0.0, 0.0
        for n in range(samples):
            for p in range(outs):
                y = p * sh + i * dh - ph
                if y < 0 or y >= h:
                    continue
                for q in range(across):
                    v = q * sw + j * dw - pw
                    if 0 <= v < wd:
                        a = np.float64(gradient[((n * outputs + o) * outs + p) * across + q])
                        s, e, m = _add(s, e, m, a * np.float64(x[((n * channels + channel) * h + y) * wd + v]))
        out[0, r], out[1, r], out[2, r] = s, e, m


def _sums(loop: Any, elements: I64, terms: int, *operands: object) -> F64:
    """float64[3, n]: sums, their rounding errors and the errors' magnitudes, by one of the loops above."""
    out = np.empty((3, len(elements)))
    in_parts(lambda start, stop: loop(*operands, elements, out, start, stop), len(elements), len(elements) * terms * 8)
    return out


def sum_forward(x: F32, w: F32, shape: I64, groups: int, elements: I64) -> F64:
    """float64[3, n]: sums, their rounding errors and the errors' magnitudes, for these flat elements of the convolution
    of x float32[N, C, H, W] with w float32[O, C/groups, I, J]."""
    channels, outputs = x.shape[1], w.shape[0]
    operands = x.reshape(-1), w.reshape(-1), shape, channels, outputs, groups
    return _sums(_sum_forward, elements, w.size // outputs, *operands)


def sum_input(gradient: F32, w: F32, shape: I64, groups: int, elements: I64) -> F64:
    """float64[3, n], as `sum_forward`, for elements of the gradient of x. gradient: float32[N, O, P, Q]."""
    channels, outputs = w.shape[1] * groups, w.shape[0]
    operands = gradient.reshape(-1), w.reshape(-1), shape, channels, outputs, groups
    return _sums(_sum_input, elements, w.size // channels, *operands)


def sum_weight(gradient: F32, x: F32, shape: I64, groups: int, elements: I64) -> F64:
    """float64[3, n], as `sum_forward`, for elements of the gradient of w. gradient: float32[N, O, P, Q]."""
    samples, channels, outputs = x.shape[0], x.shape[1], gradient.shape[1]
    operands = gradient.reshape(-1), x.reshape(-1), shape, channels, outputs, groups, samples
    return _sums(_sum_weight, elements, gradient.size // outputs, *operands)
