"""Windows of images, written out as FP64 columns (im2col) and added back from them (col2im).

The letters are those of `roundlog.operators.convolution`: x[N, C, H, W], w[O, C/groups, I, J], g[N, O, P, Q].
"""

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


@njit(cache=True, nogil=True, error_model="numpy")
def _write_columns(
    x: Any, channels: int, g: Any, row: int, first: int, last: int, out: Any, start: int, stop: int
) -> None:
    """x: the memory of [N, channels, H, W] from the first channel that is meant; rows row + start .. row + stop."""
    h, w, taps, wide, outs, across, sh, sw, ph, pw, dh, dw = g
    for k in range(start, stop):
        c, tap = (row + k) // (taps * wide), (row + k) % (taps * wide)
        i, j = tap // wide, tap % wide
        target = out[k]
        at = first
        while at < last:
            n, place = at // (outs * across), at % (outs * across)
            p, q = place // across, place % across
            length = min(across - q, last - at)
            y = p * sh + i * dh - ph
            into = target[at - first : at - first + length]
            if y < 0 or y >= h:
                into[:] = 0.0
            else:
                line = ((n * channels + c) * h + y) * w
                left = q * sw + j * dw - pw
                if sw == 1:
                    # The part of the line that lies inside the image is one run.
                    begin = min(max(0, -left), length)
                    end = max(min(length, w - left), begin)
                    into[:begin] = 0.0
                    into[end:] = 0.0
                    source = x[line + left + begin : line + left + end]
                    inside = into[begin:end]
                    for t in range(end - begin):
                        inside[t] = np.float64(source[t])
                else:
                    for t in range(length):
                        column = left + t * sw
                        into[t] = np.float64(x[line + column]) if 0 <= column < w else 0.0
            at += length


def write_columns(x: F32, channels: int, shape: I64, row: int, first: int, last: int, out: F64) -> None:
    """x: flat float32, [N, channels, H, W] from the first channel on that is meant. Writes to
    out: float64[R, last - first], whose row r is (c, i, j) number row + r and whose columns are the output positions
    (n, p, q) from `first`."""
    in_parts(
        lambda start, stop: _write_columns(x, channels, shape, row, first, last, out, start, stop),
        len(out),
        out.size,
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _add_columns(columns: Any, samples: int, g: Any, image: Any, start: int, stop: int) -> None:
    h, w, taps, wide, outs, across, sh, sw, ph, pw, dh, dw = g
    for c in range(start, stop):
        for i in range(taps):
            for j in range(wide):
                source = columns[(c * taps + i) * wide + j]
                for n in range(samples):
                    for p in range(outs):
                        y = p * sh + i * dh - ph
                        if y < 0 or y >= h:
                            continue
                        line = image[c, (n * h + y) * w : (n * h + y + 1) * w]
                        part = source[(n * outs + p) * across : (n * outs + p + 1) * across]
                        left = j * dw - pw
                        if sw == 1:
                            begin = min(max(0, -left), across)
                            end = max(min(across, w - left), begin)
                            into, add = line[left + begin : left + end], part[begin:end]
                            for t in range(end - begin):
                                into[t] += add[t]
                        else:
                            for q in range(across):
                                column = left + q * sw
                                if 0 <= column < w:
                                    line[column] += part[q]


def add_columns(columns: F64, samples: int, shape: I64, image: F64) -> None:
    """columns: float64[channels * I * J, samples * P * Q], added to image: float64[channels, samples * H * W]."""
    in_parts(lambda start, stop: _add_columns(columns, samples, shape, image, start, stop), len(image), columns.size)
