"""The two runs of numbers that every element of a convolution, or of a gradient of one, is the sum of products of, as
`roundlog.kernels.exact_products` reads them. The letters are those of `roundlog.operators.convolution`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from roundlog.kernels.exact_products import Runs, numbered
from roundlog.operators.cpu.conv_blas import Shape

I64 = npt.NDArray[np.int64]
Both = tuple[Runs, Runs, I64, I64]
"""Runs of the two factors, and for every chosen element which of them, int64[n] each."""


def _flat(x: torch.Tensor) -> npt.NDArray[np.float32]:
    memory: npt.NDArray[np.float32] = x.contiguous().view(-1).numpy()
    return memory


def _origins(first: I64, y: I64 | int, x: I64 | int) -> I64:
    return np.stack(np.broadcast_arrays(first, y, x), axis=1).astype(np.int64)


def forward(x: torch.Tensor, w: torch.Tensor, shape: Shape, elements: I64) -> Both:
    """Kernels, and windows of the images; elements: int64[n], flat indices of g."""
    h, wd, i, j, p, q, sh, sw, ph, pw, dh, dw = shape.geometry.tolist()
    groups, inner = shape.groups, shape.channels // shape.groups
    plane, place = np.divmod(elements, p * q)
    sample, o = np.divmod(plane, shape.outputs)
    group = o // (shape.outputs // groups)
    kernels, of_w = numbered(o, shape.outputs)
    windows, of_x = numbered((sample * groups + group) * (p * q) + place, shape.samples * groups * p * q)
    plane, place = np.divmod(windows, p * q)
    terms = inner * i * j
    return (
        Runs.strided(_flat(w), kernels * terms, terms, 1),
        Runs(
            _flat(x),
            _origins(plane * (inner * h * wd), place // q * sh - ph, place % q * sw - pw),
            (inner, h * wd, i, dh, 1, h, wd, j, dw, 1, wd, 1),
        ),
        of_w,
        of_x,
    )


def to_input(g: torch.Tensor, w: torch.Tensor, shape: Shape, elements: I64) -> Both:
    """Runs of the kernels' numbers for a channel, and of gradients around a position; elements: flat indices of x."""
    h, wd, i, j, p, q, sh, sw, ph, pw, dh, dw = shape.geometry.tolist()
    groups, inner, each = shape.groups, shape.channels // shape.groups, shape.outputs // shape.groups
    plane, place = np.divmod(elements, h * wd)
    sample, channel = np.divmod(plane, shape.channels)
    kernels, of_w = numbered(channel, shape.channels)
    windows, of_g = numbered((sample * groups + channel // inner) * (h * wd) + place, shape.samples * groups * h * wd)
    plane, place = np.divmod(windows, h * wd)
    return (
        Runs(
            _flat(w),
            _origins((kernels // inner * each * inner + kernels % inner) * (i * j), 0, 0),
            (each, inner * i * j, i, 1, 1, i, j, j, 1, 1, j, 1),
        ),
        Runs(
            _flat(g),
            _origins(plane * (each * p * q), place // wd + ph, place % wd + pw),
            (each, p * q, i, -dh, sh, p, q, j, -dw, sw, q, 1),
        ),
        of_w,
        of_g,
    )


def to_weight(g: torch.Tensor, x: torch.Tensor, shape: Shape, elements: I64) -> Both:
    """Gradients of one output channel, and what a tap reads of a channel; elements: flat indices of w."""
    h, wd, i, j, p, q, sh, sw, ph, pw, dh, dw = shape.geometry.tolist()
    channels, outputs, inner = shape.channels, shape.outputs, shape.channels // shape.groups
    line, tap = np.divmod(elements, i * j)
    o, c = np.divmod(line, inner)
    gradients, of_g = numbered(o, outputs)
    taps, of_x = numbered((o // (outputs // shape.groups) * inner + c) * (i * j) + tap, channels * i * j)
    channel, tap = np.divmod(taps, i * j)
    return (
        Runs(
            _flat(g),
            _origins(gradients * (p * q), 0, 0),
            (shape.samples, outputs * p * q, 1, 0, 1, 1, 0, p * q, 1, 1, p * q, 1),
        ),
        Runs(
            _flat(x),
            _origins(channel * (h * wd), tap // j * dh - ph, tap % j * dw - pw),
            (shape.samples, channels * h * wd, p, sh, 1, h, wd, q, sw, 1, wd, 1),
        ),
        of_g,
        of_x,
    )
