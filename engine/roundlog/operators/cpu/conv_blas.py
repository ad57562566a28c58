"""Convolutions of FP32 numbers and their gradients by numpy's BLAS, panel by panel: windows written out, multiplied,
rounded and marked while they are in the cache, every panel by one thread. `roundlog.operators.cpu.conv` says when.

`forward_runs`, `to_input_runs` and `to_weight_runs` are the two runs of numbers that an element is the sum of
products of, as `roundlog.kernels.exact_products` reads them. The letters are those of
`roundlog.operators.convolution`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic.formats import interval_factor
from roundlog.kernels.convolution_sums import add_columns, write_columns
from roundlog.kernels.exact_products import Runs, numbered
from roundlog.kernels.marking import AmbiguousPart, mark_product
from roundlog.kernels.scratch import scratch
from roundlog.kernels.threads import in_parts, one_by_one, threads_for
from roundlog.operators.bounds import Ambiguous, ProductBound
from roundlog.operators.summation import blocks

PANEL = 1 << 19
"""FP64 elements of one panel of columns, or of the output: 4 MiB."""

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """One convolution."""

    samples: int
    channels: int
    outputs: int
    groups: int
    geometry: I64
    """See `roundlog.kernels.convolution_sums.geometry`."""

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

    def identity(self) -> I64:
        """The geometry of the convolution that writes the positions of g itself as columns."""
        return _lines(self.places)

    def flattened(self) -> Shape:
        """Shape with a plain convolution's images as single lines, which are written out in long runs."""
        return replace(self, geometry=_lines(self.places)) if self.plain else self


def _lines(places: int) -> I64:
    return np.array([1, places, 1, 1, 1, places, 1, 1, 0, 0, 1, 1], dtype=np.int64)


def flat(x: torch.Tensor, from_channel: int) -> npt.NDArray[np.float32]:
    """f32[N, C, H, W] as memory from one channel on."""
    memory: npt.NDArray[np.float32] = x.contiguous().reshape(-1).numpy()
    return memory[from_channel * prod(x.shape[2:]) :]


def _multiply(a: F64, b: F64, first: bool) -> F64:
    """a[M, K] @ b[K, N] into the scratch buffer y, or added to what is there."""
    y = scratch("y", a.shape[0], b.shape[1]).numpy()
    # Numbers that are not finite are found where outputs are marked.
    with np.errstate(all="ignore"):
        if first:
            np.matmul(a, b, out=y)
        else:
            product = scratch("t", *y.shape).numpy()
            np.matmul(a, b, out=product)
            np.add(y, product, out=y)
    return y


def _widened(w: torch.Tensor) -> F64:
    """f32[O, ...] -> f64[O, K], in memory that all panels share."""
    source = w.contiguous().reshape(len(w), -1).numpy()
    wide = scratch("shared", *source.shape).numpy()

    def rows(start: int, stop: int) -> None:
        wide[start:stop] = source[start:stop]

    in_parts(rows, len(wide), wide.size)
    return wide


def _even(size: int, parts: int) -> list[tuple[int, int]]:
    """range(size) in so many nearly equal parts, none of them empty."""
    parts = max(1, min(size, parts))
    return list(pairwise(size * i // parts for i in range(parts + 1)))


def _panels(samples: int, places: int, size: int) -> list[tuple[int, int]]:
    """Ranges of output positions (n, p, q): whole samples, or parts of one, about `size` positions each."""
    if places > size:
        parts = -(-places // size)
        inside = [(places * i // parts, places * (i + 1) // parts) for i in range(parts)]
        return [(n * places + a, n * places + b) for n in range(samples) for a, b in inside]
    several = max(1, size // places)
    return [(n * places, min(n + several, samples) * places) for n in range(0, samples, several)]


def forward(
    x: torch.Tensor, w: torch.Tensor, shape: Shape, bound: ProductBound, scale: float
) -> tuple[torch.Tensor, Ambiguous]:
    """g and what is marked in it."""
    p, q = (int(size) for size in shape.geometry[4:6])
    out = torch.empty((shape.samples, shape.outputs, p, q), dtype=torch.float32)
    shape = shape.flattened()
    inner, each, places = shape.channels // shape.groups, shape.outputs // shape.groups, shape.places
    cut, positions = blocks(inner * shape.taps), shape.samples * places
    columns = bound.columns.reshape(shape.samples, shape.groups, places).numpy()
    wide, rows, target = _widened(w), bound.rows.numpy(), out.view(-1).numpy()
    sources = [flat(x, group * inner) for group in range(shape.groups)]
    size = max(256, PANEL // max(cut[0][1], each))
    threads = threads_for(positions, shape.work)
    if threads > shape.groups:
        size = min(size, -(-positions // threads))
    panels = [(group, *panel) for group in range(shape.groups) for panel in _panels(shape.samples, places, size)]
    found: list[AmbiguousPart] = []

    def panel(number: int) -> None:
        group, first, last = panels[number]
        outputs = slice(group * each, (group + 1) * each)
        for start, stop in cut:
            b = scratch("b", stop - start, last - first).numpy()
            write_columns(sources[group], shape.channels, shape.geometry, start, first, last, b)
            y = _multiply(wide[outputs, start:stop], b, start == 0)
        n, place = divmod(first, places)
        found.append(
            mark_product(
                y,
                rows[outputs],
                np.ascontiguousarray(columns[:, group].reshape(-1)[None, first:last]),
                interval_factor(scale),
                target,
                first=(n * shape.outputs + group * each) * places + place,
                pitch=places,
                run=min(places, last - first),
                skip=shape.outputs * places,
            )
        )

    one_by_one(panel, len(panels), shape.work)
    return out, Ambiguous.collect(found)


def to_input(
    g: torch.Tensor, w: torch.Tensor, shape: Shape, bound: ProductBound, scale: float
) -> tuple[torch.Tensor, Ambiguous]:
    """The gradient of x and what is marked in it."""
    height, width = (int(size) for size in shape.geometry[:2])
    out = torch.empty((shape.samples, shape.channels, height, width), dtype=torch.float32)
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    cut, identity = blocks(each), shape.identity()
    columns = bound.columns.reshape(shape.samples, shape.groups, shape.image).numpy()
    wide, limits, target = _widened(w), bound.rows.numpy(), out.view(-1).numpy()
    sources = [flat(g, group * each) for group in range(shape.groups)]
    some = max(1, PANEL // max(1, shape.places * max(shape.taps, min(each, cut[0][1]))))
    threads = threads_for(shape.samples, shape.work)
    if threads > shape.groups:
        some = min(some, -(-shape.samples // threads))
    panels = [
        (group, n, min(n + some, shape.samples)) for group in range(shape.groups) for n in range(0, shape.samples, some)
    ]
    found: list[AmbiguousPart] = []

    def panel(number: int) -> None:
        group, n, last = panels[number]
        samples = last - n
        b = scratch("b", each, samples * shape.places).numpy()
        write_columns(sources[group], shape.outputs, identity, 0, n * shape.places, last * shape.places, b)
        of_positions = np.ascontiguousarray(columns[n:last, group]).reshape(1, -1)
        several = samples * max(shape.places * shape.taps, shape.image) * inner
        for c, end in _even(inner, -(-several // PANEL)):
            for start, stop in cut:
                a = wide[group * each + start : group * each + stop, c * shape.taps : end * shape.taps]
                y = _multiply(a.T, b[start:stop], start == 0)
            if not shape.plain:
                image = scratch("t", end - c, samples * shape.image).numpy()
                image.fill(0.0)
                add_columns(y, samples, shape.geometry, image)
                y = image
            channel = group * inner + c
            found.append(
                mark_product(
                    y,
                    limits[channel : channel + end - c],
                    of_positions,
                    interval_factor(scale),
                    target,
                    first=(n * shape.channels + channel) * shape.image,
                    pitch=shape.image,
                    run=shape.image,
                    skip=shape.channels * shape.image,
                )
            )

    one_by_one(panel, len(panels), shape.work)
    return out, Ambiguous.collect(found)


def to_weight(
    g: torch.Tensor, x: torch.Tensor, shape: Shape, bound: ProductBound, scale: float
) -> tuple[torch.Tensor, Ambiguous]:
    """The gradient of w and what is marked in it."""
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    out = torch.empty((shape.outputs, inner, *(int(size) for size in shape.geometry[2:4])), dtype=torch.float32)
    terms = inner * shape.taps
    limits, columns, target = bound.rows.numpy(), bound.columns.numpy(), out.view(-1).numpy()
    found: list[AmbiguousPart] = []

    def mark(outputs: slice, rows: slice, y: F64) -> None:
        found.append(
            mark_product(
                y,
                limits[outputs],
                np.ascontiguousarray(columns[outputs.start // each, rows])[None],
                interval_factor(scale),
                target,
                first=outputs.start * terms + rows.start,
                pitch=terms,
            )
        )

    _weight_panels(g, x, shape, mark)
    return out, Ambiguous.collect(found)


def weight_sums(g: torch.Tensor, x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The gradient of w, f64."""
    inner = shape.channels // shape.groups
    out = torch.empty((shape.outputs, inner * shape.taps), dtype=torch.float64)

    def keep(outputs: slice, rows: slice, y: F64) -> None:
        out.numpy()[outputs, rows] = y

    _weight_panels(g, x, shape, keep)
    return out.reshape(shape.outputs, inner, *(int(size) for size in shape.geometry[2:4]))


def _weight_panels(g: torch.Tensor, x: torch.Tensor, shape: Shape, use: Callable[[slice, slice, F64], None]) -> None:
    """The gradient of w as [O, C/groups * I * J], panel by panel: `use` takes which rows (those of a group), which
    columns, and their sums, and is called from several threads. A thread has some columns for itself or, where there
    are few of them and many positions to sum over, some of the positions."""
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    shape = shape.flattened()
    cut, identity, terms = blocks(shape.samples * shape.places), shape.identity(), inner * shape.taps
    sources = [(flat(g, group * each), flat(x, group * inner)) for group in range(shape.groups)]
    threads = threads_for(shape.outputs * terms, shape.work)
    if shape.groups >= threads or each * terms > 2 * PANEL or len(cut) < 2 * threads:
        parts = -(-terms // max(1, PANEL // max(cut[0][1], each)))
        panels, shares = _even(terms, -(-parts // threads) * threads), [(0, len(cut))]
    else:
        panels, shares = [(0, terms)], _even(len(cut), threads)
    tasks = [(group, *panel, *share) for group in range(shape.groups) for panel in panels for share in shares]
    # Added up in the same order on every run, so that a run writes the same log again.
    sums: list[F64] = [np.empty(0)] * len(tasks)

    def task(number: int) -> None:
        group, row, end, first, last = tasks[number]
        of_g, of_x = sources[group]
        for start, stop in cut[first:last]:
            a, b = scratch("a", each, stop - start).numpy(), scratch("b", end - row, stop - start).numpy()
            write_columns(of_g, shape.outputs, identity, 0, start, stop, a)
            write_columns(of_x, shape.channels, shape.geometry, row, start, stop, b)
            y = _multiply(a, b.T, start == cut[first][0])
        if len(shares) == 1:
            use(slice(group * each, (group + 1) * each), slice(row, end), y)
        else:
            # A thread that takes two shares needs its scratch memory for the second one.
            sums[number] = y.copy()

    one_by_one(task, len(tasks), shape.work)
    if len(shares) > 1:
        for group in range(shape.groups):
            total, *others = sums[group * len(shares) : (group + 1) * len(shares)]
            for more in others:
                np.add(total, more, out=total)
            use(slice(group * each, (group + 1) * each), slice(0, terms), total)


Both = tuple[Runs, Runs, I64, I64]
"""Runs of the two factors, and for every chosen element which of them, int64[n] each."""


def _flat(x: torch.Tensor) -> npt.NDArray[np.float32]:
    memory: npt.NDArray[np.float32] = x.contiguous().view(-1).numpy()
    return memory


def _origins(first: I64, y: I64 | int, x: I64 | int) -> I64:
    return np.stack(np.broadcast_arrays(first, y, x), axis=1).astype(np.int64)


def forward_runs(x: torch.Tensor, w: torch.Tensor, shape: Shape, elements: I64) -> Both:
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


def to_input_runs(g: torch.Tensor, w: torch.Tensor, shape: Shape, elements: I64) -> Both:
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
