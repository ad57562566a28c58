"""Slices: layouts, which say where the samples of the batch lie in a value, and slicing rules, the parts of its inputs
that an operator reads to compute the part of its output that some samples own.

Every rule is a statement about the operator alone, for any samples: *the part of the output under `wanted` is the
operator applied to the parts of the inputs under these layouts* (None: to the input as it is). The analysis decides
whether the values have these layouts. An operator without a rule is computed as a whole, which is always right.

Where a step runs whole, the same rules cut single operators that would need much memory beside their values
(`slices_of`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from roundlog.arithmetic.formats import torch_dtype
from roundlog.definitions import InputReads
from roundlog.number_format import Format
from roundlog.operators import Inexact, Summation, operator
from roundlog.operators.registry import Tensors, integer, ints
from roundlog.program import Node, Program, TensorType
from roundlog.rounding import Window, WindowRounding

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


Needs = tuple[Layout | None, ...]
Rule = Callable[[Node, list[TensorType], Layout], Needs | None]


def needs(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs | None:
    """The layout (or None) in which each input is read; None if the operator has no rule for `wanted`."""
    if not node.type.numel or not all(kind.numel for kind in inputs):
        # Empty tensors take no memory, so they are never cut.
        return None
    reads = operator(node.op).definition.reads
    rule = RULES.get(node.op) if reads is InputReads.OWN_RULE else _RULES.get(reads)
    return None if rule is None else rule(node, inputs, wanted)


def _broadcast(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs:
    """InputReads.PLACE: axes are aligned at the end, and axes of size 1 are read by all samples."""
    found: list[Layout | None] = []
    for kind in inputs:
        axis = wanted.axis - (len(node.type.shape) - len(kind.shape))
        wide = axis >= 0 and kind.shape[axis] == node.type.shape[wanted.axis]
        found.append(replace(wanted, axis=axis) if wide else None)
    return tuple(found)


def _reshape(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs | None:
    found = regrouped(wanted, node.type.shape, inputs[0].shape)
    return None if found is None else (found,)


def _permute(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs:
    return (replace(wanted, axis=ints(node.attributes, "dims")[wanted.axis]),)


def _other_axis(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs | None:
    """InputReads.LINE: flip, sum, argmax, ..."""
    worked = ints(node.attributes, "dims") if "dims" in node.attributes else (integer(node.attributes, "dim"),)
    return None if wanted.axis in worked else (wanted,) * len(inputs)


def _cat(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs | None:
    """cat: along the axis of the samples, whole batches are joined."""
    if integer(node.attributes, "dim") != wanted.axis:
        return (wanted,) * len(inputs)
    batch = node.type.shape[wanted.axis] // (wanted.outer * wanted.chunk)
    found = tuple(on_axis(kind.shape, wanted.axis, batch, wanted.chunk) for kind in inputs)
    return None if None in found else found


def _slice(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs | None:
    """slice: along the axis of the samples, whole batches only."""
    axis = integer(node.attributes, "dim")
    if axis != wanted.axis:
        return (wanted,)
    start, stop, step = (integer(node.attributes, name) for name in ("start", "stop", "step"))
    batch = node.type.shape[axis] // (wanted.outer * wanted.chunk)
    if step != 1 or start % (batch * wanted.chunk) or stop % (batch * wanted.chunk):
        return None
    found = on_axis(inputs[0].shape, axis, batch, wanted.chunk)
    return None if found is None else (found,)


def _pad(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs | None:
    padded = ints(node.attributes, "low")[wanted.axis] or ints(node.attributes, "high")[wanted.axis]
    return None if padded else (wanted, None)


def _gather(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs:
    """gather: along its own axis every index may point anywhere."""
    return (None if wanted.axis == integer(node.attributes, "dim") else wanted, wanted)


def _take(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs:
    rank = len(inputs[1].shape)
    return (None, wanted) if wanted.axis < rank else (replace(wanted, axis=wanted.axis - rank + 1), None)


def _scatter_add(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs | None:
    if wanted.axis == integer(node.attributes, "dim"):
        return None
    return (wanted, None if inputs[1].shape[wanted.axis] == 1 else wanted)


def _matmul(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs:
    """matmul and tensor_core_matmul, a[.., M, K] @ b[.., K, N]: rows come from rows of a, columns from columns of b,
    batches from both."""
    rank = len(node.type.shape)
    return (
        None if wanted.axis == rank - 1 else wanted,
        None if wanted.axis == rank - 2 else wanted,
    )


def _first_axis_of_first(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs | None:
    """conv2d and conv2d_grad_input: images are convolved one by one, with the same weights."""
    return (wanted, None) if wanted.axis == 0 else None


def _planes(node: Node, inputs: list[TensorType], wanted: Layout) -> Needs | None:
    """max_pool_index works in every plane by itself."""
    return (wanted,) if wanted.axis < 2 else None


def _sum_parts(node: Node, inputs: list[TensorType], own: Needs) -> Iterator[Needs]:
    if own[0] is not None and own[0].axis in ints(node.attributes, "dims"):
        yield (own[0],)


def _scatter_add_parts(node: Node, inputs: list[TensorType], own: Needs) -> Iterator[Needs]:
    for layout in own:
        if layout is not None and layout.axis == integer(node.attributes, "dim"):
            yield (layout, layout)


def _matmul_parts(node: Node, inputs: list[TensorType], own: Needs) -> Iterator[Needs]:
    rank = len(node.type.shape)
    for layout, axis in zip(own, (rank - 1, rank - 2), strict=True):
        if layout is not None and layout.axis == axis:
            yield replace(layout, axis=rank - 1), replace(layout, axis=rank - 2)


def _samples_of_both(node: Node, inputs: list[TensorType], own: Needs) -> Iterator[Needs]:
    for layout in own:
        if layout is not None and layout.axis == 0:
            yield (layout, layout)


PARTS: dict[str, Callable[[Node, list[TensorType], Needs], Iterator[Needs]]] = {
    "sum": _sum_parts,
    "scatter_add": _scatter_add_parts,
    "matmul": _matmul_parts,
    "conv2d_grad_weight": _samples_of_both,
}
"""Rules for sums along the axis of the samples, by operator. Given the layouts `own` of the inputs, each yields layouts
under which *the operator's output is the sum of its outputs for the parts*. tensor_core_matmul has none: a sum that
depends on the order of its terms cannot be cut."""

RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "permute": _permute,
    "slice": _slice,
    "cat": _cat,
    "pad": _pad,
    "gather": _gather,
    "take": _take,
    "scatter_add": _scatter_add,
    "matmul": _matmul,
    "tensor_core_matmul": _matmul,
    "conv2d": _first_axis_of_first,
    "conv2d_grad_input": _first_axis_of_first,
    "max_pool_index": _planes,
}
"""Slicing rules of operators that no kind of reads describes."""

_RULES: dict[InputReads, Rule] = {InputReads.PLACE: _broadcast, InputReads.LINE: _other_axis}


# Sums over the batch that are taken part by part, so that their inputs are never in memory as a whole. A contraction is
# cut only in such a way that no term goes through more additions than in the whole contraction. Its error bound is then
# that of the whole, and an auditor finds the same ambiguous elements as the trainer.


def summation(node: Node) -> Summation:
    """The summation operator of a node that is summed part by part."""
    found = operator(node.op)
    assert isinstance(found, Summation)
    return found


def parts_of(
    node: Node, inputs: list[TensorType], needs: Needs, batch: int, micro_batches: int
) -> tuple[Samples, ...] | None:
    """The samples of every part of a sum whose inputs have these layouts, about one part for each micro-batch. None if
    the sum cannot be cut, or cutting saves no memory."""
    # Smaller parts first, then larger ones, down to two.
    counts = (*range(micro_batches, min(2 * micro_batches, batch) + 1), *range(micro_batches - 1, 1, -1))
    found = next((parts for count in counts if keeps_bound(node, inputs, needs, parts := ranges(batch, count))), None)
    if found is None:
        return None
    output = node.type
    whole = sum(kind.nbytes for kind in inputs) + max(kind.nbytes for kind in inputs)
    whole += summation(node).workspace(inputs, node.attributes, output)
    return tuple(found) if bytes_in_parts(node, inputs, needs, found) < whole else None


def bytes_in_parts(node: Node, inputs: list[TensorType], needs: Needs, parts: Sequence[Samples]) -> int:
    """Bytes needed beside the output to sum these parts: an upper bound."""
    part = _sliced(inputs, needs, max(last - first for first, last in parts))
    # A slice is reordered while it is read, so it is in memory twice.
    read = sum(kind.nbytes for kind in part) + max(kind.nbytes for kind in part)
    return read + summation(node).part_workspace(part, node.attributes, node.type)


def terms_of(node: Node, inputs: list[TensorType]) -> int:
    """Number of terms of the whole sum."""
    return summation(node).terms([kind.shape for kind in inputs], node.attributes)


def keeps_bound(node: Node, inputs: list[TensorType], needs: Needs, parts: list[Samples]) -> bool:
    """Whether a sum that is taken in these parts keeps the bound of the whole. The parts' sums may be added up in any
    order."""
    # Along the axis of the samples, all samples have the same number of terms.
    each = terms_of(node, _sliced(inputs, needs, 1))
    return summation(node).keeps_bound([each * (last - first) for first, last in parts])


def _sliced(inputs: list[TensorType], needs: Needs, samples: int) -> list[TensorType]:
    return [sliced_type(kind, need, samples) for kind, need in zip(inputs, needs, strict=True)]


WORKSPACE = 1 << 28
"""Bytes beside inputs and output above which an inexact operator is computed in slices of its output."""


@dataclass(frozen=True, slots=True)
class OperatorSlices:
    """Parts of an inexact operator's output that are computed one after the other: positions of one axis."""

    layout: Layout
    needs: Needs
    count: int
    workspace: int
    """Bytes that the largest of them needs beside inputs and output."""

    def round(self, rounding: WindowRounding, index: int, node: Node, inputs: Tensors, format: Format) -> torch.Tensor:
        """The output of operator `index`, as `Rounding.round` gives it, on the device of its inputs."""
        op, shape = operator(node.op), node.type.shape
        assert isinstance(op, Inexact)
        result = torch.empty(shape, dtype=torch_dtype(format), device=inputs[0].device)
        for first, last in ranges(shape[self.layout.axis], self.count):
            part = [x if one is None else one.part(x, first, last) for x, one in zip(inputs, self.needs, strict=True)]
            window = self.layout.window(shape, first, last)
            rounded = rounding.round(index, op, part, node.attributes, format, window)
            self.layout.part(result, first, last).copy_(rounded)
        return result


def slices_of(program: Program, index: int) -> OperatorSlices | None:
    """The slices in which an inexact operator needs at most WORKSPACE, or as little as it can, beside its inputs and
    output. None if it needs no more as a whole, or has no rule for any axis."""
    node = program.nodes[index]
    op, inputs = operator(node.op), [program.nodes[value].type for value in node.inputs]
    assert isinstance(op, Inexact)
    whole, best = op.workspace(inputs, node.attributes, node.type), None
    if whole <= WORKSPACE:
        return None

    def needed(layout: Layout, need: Needs, positions: int) -> int:
        part = [sliced_type(kind, one, positions) for kind, one in zip(inputs, need, strict=True)]
        return op.workspace(part, node.attributes, sliced_type(node.type, layout, positions))

    for axis, size in enumerate(node.type.shape):
        layout = Layout(axis, 1, 1)
        if (need := needs(node, inputs, layout)) is None:
            continue
        # Smaller slices do not save the bytes that even a slice of one position needs.
        least = needed(layout, need, 1)
        count = min(size, -(-(whole - least) // max(WORKSPACE - least, WORKSPACE // 4)))
        bytes = needed(layout, need, -(-size // max(count, 1)))
        if best is None or bytes < best.workspace:
            best = OperatorSlices(layout, need, max(count, 1), bytes)
    return best if best is not None and best.workspace < whole else None
