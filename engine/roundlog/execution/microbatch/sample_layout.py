"""Layouts: the place of the samples of the batch in a value."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from roundlog.program import Node, TensorType
from roundlog.rounding import Window

Samples = tuple[int, int]
"""A range of samples, (first, last): first <= s < last."""


def ranges(batch: int, count: int) -> list[Samples]:
    """`count` nearly equal parts of a batch."""
    return [(batch * i // count, batch * (i + 1) // count) for i in range(count)]


@dataclass(frozen=True, slots=True)
class Layout:
    """The axis of a value that holds the samples. `axis` has size outer * batch * chunk and counts (o, s, c) in
    row-major order, where s is the sample. Stacked and joined values have an `outer` above 1, flattened ones a `chunk`
    above 1."""

    axis: int
    outer: int
    chunk: int

    def sliced(self, shape: tuple[int, ...], samples: int) -> tuple[int, ...]:
        """Shape of the part that `samples` samples own."""
        return (*shape[: self.axis], self.outer * samples * self.chunk, *shape[self.axis + 1 :])

    def unfolded(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape with `axis` split in two: outer at `axis`, samples and chunk at `axis` + 1."""
        return (*shape[: self.axis], self.outer, shape[self.axis] // self.outer, *shape[self.axis + 1 :])

    def part(self, whole: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """The part that samples first <= s < last own: a view where that is possible."""
        unfolded = whole.reshape(self.unfolded(tuple(whole.shape)))
        part = unfolded.narrow(self.axis + 1, first * self.chunk, (last - first) * self.chunk)
        return part.flatten(self.axis, self.axis + 1)

    def window(self, shape: tuple[int, ...], first: int, last: int) -> Window:
        """The part that samples first <= s < last own, by the flat indices of its elements."""
        return Window(self.unfolded(shape), self.axis + 1, first * self.chunk, last * self.chunk)


def on_axis(shape: tuple[int, ...], axis: int, batch: int, chunk: int) -> Layout | None:
    """The layout on `axis` with this chunk; None if there is none."""
    outer, rest = divmod(shape[axis], batch * chunk)
    return None if rest or not outer else Layout(axis, outer, chunk)


def regrouped(layout: Layout, before: tuple[int, ...], after: tuple[int, ...]) -> Layout | None:
    """The layout after a reshape from `before` to `after`; None if the samples do not divide one axis of `after`."""
    batch = before[layout.axis] // (layout.outer * layout.chunk)
    # In row-major order the axes are (axes before the samples, samples, axes after them).
    outer = prod(before[: layout.axis]) * layout.outer
    for axis, size in enumerate(after):
        on_the_axis, rest = divmod(outer, prod(after[:axis]))
        if not rest and size % (on_the_axis * batch) == 0:
            return Layout(axis, on_the_axis, size // (on_the_axis * batch))
    return None


def sliced_type(kind: TensorType, layout: Layout | None, samples: int) -> TensorType:
    """Type of the part that `samples` samples own; without a layout, of the whole value."""
    return kind if layout is None else TensorType(layout.sliced(kind.shape, samples), kind.dtype)


def sliced_node(node: Node, layout: Layout, samples: int, inputs: tuple[int, ...]) -> Node:
    """The operator that computes the part of `node` that `samples` samples own, from these parts of its inputs."""
    kind = sliced_type(node.type, layout, samples)
    attributes = dict(node.attributes)
    if "shape" in attributes:
        # reshape and expand name the shape of their output.
        attributes["shape"] = kind.shape
    if node.op == "slice" and attributes["dim"] == layout.axis:
        # A slice of the axis of the samples takes whole batches of it.
        batch = node.type.shape[layout.axis] // (layout.outer * layout.chunk)
        for name in ("start", "stop"):
            position = attributes[name]
            assert isinstance(position, int)
            attributes[name] = position // batch * samples
    return Node(node.op, inputs, attributes, kind, node.source)
