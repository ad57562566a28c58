"""Convolutions of FP32 numbers and their gradients on the CPU, panel by panel: windows written out, multiplied, rounded
and marked while they are in the cache. What they compute and how well is said in `roundlog.operators.convolution`; the
letters are the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from roundlog.arithmetic.interval import interval_factor
from roundlog.kernels.marking import mark_product
from roundlog.kernels.patches import add_columns, write_columns
from roundlog.kernels.scratch import scratch
from roundlog.operators.bound import ProductBound
from roundlog.operators.marking import Marked
from roundlog.operators.terms import blocks

PANEL = 1 << 19
"""FP64 elements of one panel of columns, or of the output: 4 MiB."""

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """One convolution."""

    samples: int
    channels: int
    outputs: int
    groups: int
    geometry: I64
    """See `roundlog.kernels.patches.geometry`."""

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

    def identity(self) -> I64:
        """The geometry of the convolution that writes the positions of g itself as columns."""
        p, q = self.geometry[4:6]
        return np.array([p, q, 1, 1, p, q, 1, 1, 0, 0, 1, 1], dtype=np.int64)


def flat(x: torch.Tensor, from_channel: int) -> npt.NDArray[np.float32]:
    """f32[N, C, H, W] as memory from one channel on."""
    memory: npt.NDArray[np.float32] = x.contiguous().reshape(-1).numpy()
    return memory[from_channel * prod(x.shape[2:]) :]


def multiply(a: torch.Tensor, b: torch.Tensor, first: bool) -> torch.Tensor:
    """a[M, K] @ b[K, N] into the scratch buffer y, or added to what is there."""
    y = scratch("y", a.shape[0], b.shape[1])
    if first:
        return torch.mm(a, b, out=y)
    return y.add_(torch.mm(a, b, out=scratch("t", a.shape[0], b.shape[1])))


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
) -> tuple[torch.Tensor, Marked]:
    """g and what is marked in it."""
    p, q = (int(size) for size in shape.geometry[4:6])
    out = torch.empty((shape.samples, shape.outputs, p, q), dtype=torch.float32)
    inner, each, places = shape.channels // shape.groups, shape.outputs // shape.groups, shape.places
    cut, found = blocks(inner * shape.taps), []
    columns = bound.columns.reshape(shape.samples, shape.groups, places).numpy()
    wide = scratch("a", shape.outputs, inner * shape.taps).copy_(w.reshape(shape.outputs, -1))
    for group in range(shape.groups):
        source = flat(x, group * inner)
        outputs = slice(group * each, (group + 1) * each)
        for first, last in _panels(shape.samples, places, max(256, PANEL // max(cut[0][1], each))):
            for start, stop in cut:
                b = scratch("b", stop - start, last - first)
                write_columns(source, shape.channels, shape.geometry, start, first, last, b.numpy())
                y = multiply(wide[outputs, start:stop], b, start == 0)
            n, place = divmod(first, places)
            limits = columns[:, group].reshape(-1)[None, first:last]
            found.append(
                mark_product(
                    y.numpy(),
                    bound.rows[outputs].numpy(),
                    np.ascontiguousarray(limits),
                    interval_factor(scale),
                    out.view(-1).numpy(),
                    first=(n * shape.outputs + group * each) * places + place,
                    pitch=places,
                    run=min(places, last - first),
                    skip=shape.outputs * places,
                )
            )
    return out, Marked.collect(found)


def to_input(
    g: torch.Tensor, w: torch.Tensor, shape: Shape, bound: ProductBound, scale: float
) -> tuple[torch.Tensor, Marked]:
    """The gradient of x and what is marked in it."""
    height, width = (int(size) for size in shape.geometry[:2])
    out = torch.empty((shape.samples, shape.channels, height, width), dtype=torch.float32)
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    cut, found = blocks(each), []
    columns = bound.columns.reshape(shape.samples, shape.groups, shape.image).numpy()
    wide = scratch("a", shape.outputs, inner * shape.taps).copy_(w.reshape(shape.outputs, -1))
    some = max(1, PANEL // max(1, shape.places * max(shape.taps, min(each, cut[0][1]))))
    for group in range(shape.groups):
        source = flat(g, group * each)
        for n in range(0, shape.samples, some):
            samples = min(some, shape.samples - n)
            positions = n * shape.places, (n + samples) * shape.places
            batch = max(1, PANEL // (samples * max(shape.places * shape.taps, shape.image)))
            for c in range(0, inner, batch):
                channels = min(batch, inner - c)
                rows = slice(c * shape.taps, (c + channels) * shape.taps)
                for start, stop in cut:
                    b = scratch("b", stop - start, positions[1] - positions[0])
                    write_columns(source, shape.outputs, shape.identity(), start, *positions, b.numpy())
                    a = wide[group * each + start : group * each + stop, rows]
                    y = multiply(a.T, b, start == 0)
                if not shape.plain:
                    image = scratch("t", channels, samples * shape.image).zero_()
                    add_columns(y.numpy(), samples, shape.geometry, image.numpy())
                    y = image
                channel = group * inner + c
                found.append(
                    mark_product(
                        y.numpy(),
                        bound.rows[channel : channel + channels].numpy(),
                        np.ascontiguousarray(columns[n : n + samples, group]).reshape(1, -1),
                        interval_factor(scale),
                        out.view(-1).numpy(),
                        first=(n * shape.channels + channel) * shape.image,
                        pitch=shape.image,
                        run=shape.image,
                        skip=shape.channels * shape.image,
                    )
                )
    return out, Marked.collect(found)


def to_weight(
    g: torch.Tensor, x: torch.Tensor, shape: Shape, bound: ProductBound, scale: float
) -> tuple[torch.Tensor, Marked]:
    """The gradient of w and what is marked in it."""
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    out = torch.empty((shape.outputs, inner, *(int(size) for size in shape.geometry[2:4])), dtype=torch.float32)
    terms = inner * shape.taps
    found = [
        mark_product(
            y.numpy(),
            bound.rows[outputs].numpy(),
            np.ascontiguousarray(bound.columns[outputs.start // each, rows].numpy())[None],
            interval_factor(scale),
            out.view(-1).numpy(),
            first=outputs.start * terms + rows.start,
            pitch=terms,
        )
        for outputs, rows, y in _weight_panels(g, x, shape)
    ]
    return out, Marked.collect(found)


def weight_sums(g: torch.Tensor, x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """The gradient of w, f64."""
    inner = shape.channels // shape.groups
    out = torch.empty((shape.outputs, inner * shape.taps), dtype=torch.float64)
    for outputs, rows, y in _weight_panels(g, x, shape):
        out[outputs, rows] = y
    return out.reshape(shape.outputs, inner, *(int(size) for size in shape.geometry[2:4]))


def _weight_panels(g: torch.Tensor, x: torch.Tensor, shape: Shape) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """The gradient of w as [O, C/groups * I * J], panel by panel: which rows (those of a group), which columns, and
    their sums in the scratch buffer y."""
    inner, each = shape.channels // shape.groups, shape.outputs // shape.groups
    cut = blocks(shape.samples * shape.places)
    terms = inner * shape.taps
    size = max(1, PANEL // max(cut[0][1], each))
    for group in range(shape.groups):
        of_g, of_x = flat(g, group * each), flat(x, group * inner)
        for row in range(0, terms, size):
            rows = min(size, terms - row)
            for start, stop in cut:
                a, b = scratch("a", each, stop - start), scratch("b", rows, stop - start)
                write_columns(of_g, shape.outputs, shape.identity(), 0, start, stop, a.numpy())
                write_columns(of_x, shape.channels, shape.geometry, row, start, stop, b.numpy())
                y = multiply(a, b.T, start == 0)
            yield slice(group * each, (group + 1) * each), slice(row, row + rows), y
