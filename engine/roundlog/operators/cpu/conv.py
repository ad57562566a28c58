"""Convolutions of FP32 numbers and their gradients on the CPU. What they compute and how well is said in
`roundlog.operators.convolution`; the letters are the same.

They are computed tile by tile, as products are (`roundlog.operators.cpu.gemm`): windows are read from the images while
these are packed, and the norms that bounds are made of are found on the way. `forward_runs`, `to_input_runs` and
`to_weight_runs` are the two runs of numbers that an element is the sum of products of, as
`roundlog.kernels.exact_products` reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels import gemm_microkernel
from roundlog.kernels.exact_products import Runs, numbered
from roundlog.kernels.gemm_tiles import OutputPlace, Product, certify_part, sum_part
from roundlog.kernels.marking import AmbiguousPart
from roundlog.kernels.scratch import empty
from roundlog.kernels.threads import one_by_one, threads_for
from roundlog.kernels.tile_packing import Images, lines_of
from roundlog.operators.bounds import Ambiguous
from roundlog.operators.cpu.gemm import parts_of
from roundlog.operators.summation import SLACK, additions_of_taps, block_within, blocked_gamma, gamma, longest_block

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shape:
    """One convolution."""

    samples: int
    channels: int
    outputs: int
    groups: int
    geometry: I64
    """int64[12]: H, W, I, J, P, Q, strides, paddings, dilations."""

    @property
    def image(self) -> int:
        """H W."""
        return int(self.geometry[0] * self.geometry[1])

    @property
    def taps(self) -> int:
        """I J."""
        return int(self.geometry[2] * self.geometry[3])

    @property
    def places(self) -> int:
        """P Q."""
        return int(self.geometry[4] * self.geometry[5])

    @property
    def plain(self) -> bool:
        """Whether every output position reads the input position of the same number: 1 x 1, stride 1, no padding."""
        return self.taps == 1 and tuple(self.geometry[6:10]) == (1, 1, 0, 0)

    @property
    def work(self) -> int:
        """Cost of the multiplications, in elements that are read and written."""
        return self.samples * self.places * self.outputs * (self.channels // self.groups) * self.taps // 16

    def flattened(self) -> Shape:
        """Shape with a plain convolution's images as single lines, which are written out in long runs."""
        return replace(self, geometry=_lines(self.places)) if self.plain else self


def _lines(places: int) -> I64:
    return np.array([1, places, 1, 1, 1, places, 1, 1, 0, 0, 1, 1], dtype=np.int64)


def forward(x: torch.Tensor, w: torch.Tensor, shape: Shape, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """g and what is marked in it."""
    lanes = gemm_microkernel.tile_lanes()
    out = empty((shape.samples, shape.outputs, *_pair(shape, 4)), torch.float32)
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    shape = shape.flattened()
    terms = inner * shape.taps
    # Terms are taken tap by tap.
    weights = _dense(w.reshape(shape.outputs, inner, shape.taps).mT)
    size, images = _pair(shape, 4), _dense(x)
    columns = _places(shape.samples, shape.outputs, size, *map(np.arange, size))
    products = [
        (
            Product(
                lines_of(weights, group * each * terms, terms, 1),
                _windows(images, group * inner, inner, shape).positions(),
                (0, each),
                (0, len(columns)),
                terms,
                longest_block(terms),
                blocked_gamma(terms),
            ),
            OutputPlace(out.view(-1).numpy(), group * each * shape.places, shape.places, columns=columns),
        )
        for group in range(shape.groups)
    ]
    return out, _certified(lanes, products, scale, shape.work)


def to_input(g: torch.Tensor, w: torch.Tensor, shape: Shape, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """The gradient of x and what is marked in it. Positions that lie a stride apart are read by the same taps, and are
    computed together."""
    lanes = gemm_microkernel.tile_lanes()
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    additions = additions_of_taps(each, shape.taps)
    out = empty((shape.samples, shape.channels, *_pair(shape, 0)), torch.float32)
    shape = shape.flattened()
    classes = list(product(*(_classes(shape, axis) for axis in (0, 1))))
    if sum(len(rows.positions) * len(columns.positions) for rows, columns in classes) < shape.image:
        # No tap reads the others.
        out.zero_()
    by_channel = w.reshape(shape.groups, each, inner * shape.taps).mT
    # torch transposes a matrix faster than several.
    by_channel = by_channel[0].contiguous() if shape.groups == 1 else by_channel.contiguous()
    by_channel = by_channel.view(shape.channels, *_pair(shape, 2), each)
    norms = np.linalg.norm(by_channel.reshape(shape.channels, -1).double().numpy(), axis=1)
    limits = norms * gamma(additions + 1) * SLACK
    gradients, products = _dense(g), []
    for rows, columns in classes:
        taps = np.array(list(product(rows.offsets, columns.offsets)), dtype=np.int64)
        # All, unless positions lie a stride apart.
        chosen = by_channel if len(taps) == shape.taps else by_channel[:, rows.taps][:, :, columns.taps]
        terms, weights = len(taps) * each, _dense(chosen)
        places = _places(shape.samples, shape.channels, _pair(shape, 0), rows.positions, columns.positions)
        for group in range(shape.groups):
            windows = Images(
                gradients,
                group * each * shape.places,
                shape.outputs * shape.places,
                shape.places,
                _pair(shape, 4),
                (len(rows.positions), len(columns.positions)),
                (1, 1),
                each,
                taps,
            )
            products.append(
                (
                    Product(
                        lines_of(weights, group * inner * terms, terms, 1),
                        windows.positions(),
                        (0, inner),
                        (0, len(places)),
                        terms,
                        block_within(terms, additions),
                        rows_of_bound=limits[group * inner : (group + 1) * inner],
                    ),
                    OutputPlace(out.view(-1).numpy(), group * inner * shape.image, shape.image, columns=places),
                )
            )
    return out, _certified(lanes, products, scale, shape.work)


def to_weight(g: torch.Tensor, x: torch.Tensor, shape: Shape, scale: float) -> tuple[torch.Tensor, Ambiguous]:
    """The gradient of w and what is marked in it."""
    lanes = gemm_microkernel.tile_lanes()
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    out = empty((shape.outputs, inner, *_pair(shape, 2)), torch.float32)
    columns = _by_taps(shape).reshape(-1)
    products = [
        (part, OutputPlace(out.view(-1).numpy(), group * each * len(columns), len(columns), columns=columns))
        for group, part in enumerate(_weight_products(g, x, shape))
    ]
    return out, _certified(lanes, products, scale, shape.work)


def weight_sums(g: torch.Tensor, x: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """The gradient of w, f64, and the squared norms that its bound is made of."""
    lanes = gemm_microkernel.tile_lanes()
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    columns = _by_taps(shape).reshape(-1)
    y = torch.empty((shape.groups, each, len(columns)), dtype=torch.float64)
    of_g = torch.empty((shape.groups, each), dtype=torch.float64)
    of_x = torch.empty((shape.groups, len(columns)), dtype=torch.float64)
    products = _weight_products(g, x, shape)
    parts = _parts(lanes, products, shape.work)

    def sum_up(number: int) -> None:
        group, part = parts[number]
        rows, chosen = slice(*part.rows), columns[slice(*part.columns)]
        sums, rows_energy, columns_energy = sum_part(lanes, part)
        y[group].numpy()[rows, chosen] = sums
        # Several parts find the same squared norms, to the bit.
        of_g[group].numpy()[rows], of_x[group].numpy()[chosen] = rows_energy, columns_energy

    one_by_one(sum_up, len(parts), shape.work)
    return y.reshape(shape.outputs, inner, *_pair(shape, 2)), (of_g.reshape(-1), of_x)


def _weight_products(g: torch.Tensor, x: torch.Tensor, shape: Shape) -> list[Product]:
    """For every group, the channels of g, and what each tap reads of the channels of x, tap by tap."""
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    shape = shape.flattened()
    terms, places = shape.samples * shape.places, (1, shape.places)
    gradients, images = _dense(g), _dense(x)
    one_tap = np.zeros((1, 2), dtype=np.int64)

    def channels(group: int) -> Images:
        first, sample = group * each * shape.places, shape.outputs * shape.places
        return Images(gradients, first, sample, shape.places, places, places, (1, 1), each, one_tap)

    return [
        Product(
            channels(group).at_taps(),
            _windows(images, group * inner, inner, shape).at_taps(),
            (0, each),
            (0, inner * shape.taps),
            terms,
            longest_block(terms),
            blocked_gamma(terms),
        )
        for group in range(shape.groups)
    ]


def _pair(shape: Shape, at: int) -> Range:
    """Two numbers of the geometry."""
    return int(shape.geometry[at]), int(shape.geometry[at + 1])


def _dense(x: torch.Tensor) -> F32:
    """Memory of a tensor, flat and in its own order: a copy, unless it lies so."""
    memory: F32 = x.contiguous().view(-1).numpy()
    return memory


def _windows(images: F32, channel: int, channels: int, shape: Shape) -> Images:
    """Windows of some channels of x."""
    (taps_down, taps_across), (ph, pw), (dh, dw) = (_pair(shape, at) for at in (2, 8, 10))
    down, across = np.arange(taps_down) * dh - ph, np.arange(taps_across) * dw - pw
    taps = np.stack([down.repeat(taps_across), np.tile(across, taps_down)], axis=1)
    sample, first = shape.channels * shape.image, channel * shape.image
    size, out, stride = _pair(shape, 0), _pair(shape, 4), _pair(shape, 6)
    return Images(images, first, sample, shape.image, size, out, stride, channels, taps)


def _by_taps(shape: Shape) -> I64:
    """int64[taps, channels of a group]: the places of a kernel's numbers, as they lie channel by channel."""
    return np.arange(shape.channels // shape.groups * shape.taps).reshape(-1, shape.taps).T


def _places(samples: int, channels: int, size: Range, rows: I64, columns: I64) -> I64:
    """int64[samples * rows * columns]: where these positions of the first channel lie, in images of this size and of so
    many channels."""
    height, width = size
    first = np.arange(samples) * (channels * height * width)
    return (first[:, None, None] + (rows * width)[:, None] + columns).reshape(-1)


@dataclass(frozen=True, slots=True)
class _Class:
    """Rows, or columns, of x that are read by the same taps: they lie a stride apart."""

    positions: I64
    taps: I64
    offsets: I64
    """Position of g at which each tap reads the first of them; the next is read at the next one."""


def _classes(shape: Shape, axis: int) -> list[_Class]:
    """Classes of the positions along an axis of x that are read at all."""
    size, taps, stride, padding, dilation = (int(shape.geometry[2 * number + axis]) for number in (0, 1, 3, 4, 5))
    shifts = np.arange(taps) * dilation - padding
    found = []
    for first in np.unique(shifts % stride).tolist():
        chosen = np.flatnonzero(shifts % stride == first)
        if first < size:
            found.append(_Class(np.arange(first, size, stride), chosen, (first - shifts[chosen]) // stride))
    return found


def _parts(lanes: int, products: list[Product], work: int) -> list[tuple[int, Product]]:
    """Parts of products, and which of these they are of."""
    found = []
    for number, whole in enumerate(products):
        rows, columns = whole.size
        threads = threads_for(rows * columns, work)
        threads = threads if threads > len(products) else 1
        for _, row, column in parts_of(lanes, 1, rows, columns, threads):
            limits = None if whole.rows_of_bound is None else whole.rows_of_bound[slice(*row)]
            found.append((number, replace(whole, rows=row, columns=column, rows_of_bound=limits)))
    return found


def _certified(lanes: int, products: list[tuple[Product, OutputPlace]], scale: float, work: int) -> Ambiguous:
    parts = _parts(lanes, [whole for whole, _ in products], work)
    places, factor = [place for _, place in products], interval_factor(scale)
    found: list[AmbiguousPart] = []

    def certify(number: int) -> None:
        of, part = parts[number]
        place = places[of]
        first, columns = place.first + part.rows[0] * place.row, place.columns[slice(*part.columns)]
        found.append(certify_part(lanes, part, factor, replace(place, first=first, columns=columns)))

    one_by_one(certify, len(parts), work)
    return Ambiguous.collect(found)


Both = tuple[Runs, Runs, I64, I64]
"""Runs of the two inputs, and for every chosen element which of them, int64[n] each."""


def _origins(first: I64, y: I64 | int, x: I64 | int) -> I64:
    return np.stack(np.broadcast_arrays(first, y, x), axis=1).astype(np.int64)


def forward_runs(x: torch.Tensor, w: torch.Tensor, shape: Shape, elements: I64) -> Both:
    """Windows of the images, and kernels; elements: int64[n], flat indices of g."""
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
        Runs(
            _dense(x),
            _origins(plane * (inner * h * wd), place // q * sh - ph, place % q * sw - pw),
            (inner, h * wd, i, dh, 1, h, wd, j, dw, 1, wd, 1),
        ),
        Runs.strided(_dense(w), kernels * terms, terms, 1),
        of_x,
        of_w,
    )


def to_input_runs(g: torch.Tensor, w: torch.Tensor, shape: Shape, elements: I64) -> Both:
    """Runs of gradients around a position, and of the kernels' numbers for a channel; elements: flat indices of x."""
    h, wd, i, j, p, q, sh, sw, ph, pw, dh, dw = shape.geometry.tolist()
    groups, inner, each = shape.groups, shape.channels // shape.groups, shape.outputs // shape.groups
    plane, place = np.divmod(elements, h * wd)
    sample, channel = np.divmod(plane, shape.channels)
    kernels, of_w = numbered(channel, shape.channels)
    windows, of_g = numbered((sample * groups + channel // inner) * (h * wd) + place, shape.samples * groups * h * wd)
    plane, place = np.divmod(windows, h * wd)
    return (
        Runs(
            _dense(g),
            _origins(plane * (each * p * q), place // wd + ph, place % wd + pw),
            (each, p * q, i, -dh, sh, p, q, j, -dw, sw, q, 1),
        ),
        Runs(
            _dense(w),
            _origins((kernels // inner * each * inner + kernels % inner) * (i * j), 0, 0),
            (each, inner * i * j, i, 1, 1, i, j, j, 1, 1, j, 1),
        ),
        of_g,
        of_w,
    )


def to_weight_runs(g: torch.Tensor, x: torch.Tensor, shape: Shape, elements: I64) -> Both:
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
            _dense(g),
            _origins(gradients * (p * q), 0, 0),
            (shape.samples, outputs * p * q, 1, 0, 1, 1, 0, p * q, 1, 1, p * q, 1),
        ),
        Runs(
            _dense(x),
            _origins(channel * (h * wd), tap // j * dh - ph, tap % j * dw - pw),
            (shape.samples, channels * h * wd, p, sh, 1, h, wd, q, sw, 1, wd, 1),
        ),
        of_g,
        of_x,
    )
