"""Sums over the batch that are taken part by part, so that their inputs are never in memory as a whole.

A contraction is cut only in such a way that no term goes through more additions than in the whole contraction. Its
error bound is then that of the whole, and an auditor finds the same ambiguous elements as the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator

from roundlog.execution.microbatch.layout import Samples, ranges, sliced_type
from roundlog.execution.microbatch.rules import Needs
from roundlog.operators import Summation, operator
from roundlog.program import Node, TensorType


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
    found = next(_within_bound(node, inputs, needs, batch, micro_batches), None)
    if found is None:
        return None
    output = node.type
    whole = sum(kind.nbytes for kind in inputs) + max(kind.nbytes for kind in inputs)
    whole += summation(node).workspace(inputs, node.attributes, output)
    return found if bytes_in_parts(node, inputs, needs, found) < whole else None


def bytes_in_parts(node: Node, inputs: list[TensorType], needs: Needs, parts: tuple[Samples, ...]) -> int:
    """Bytes needed beside the output to sum these parts: an upper bound."""
    part = _sliced(inputs, needs, max(last - first for first, last in parts))
    # A slice is reordered while it is read, so it is in memory twice.
    read = sum(kind.nbytes for kind in part) + max(kind.nbytes for kind in part)
    return read + summation(node).part_workspace(part, node.attributes, node.type)


def terms_of(node: Node, inputs: list[TensorType]) -> int:
    """Number of terms of the whole sum."""
    return summation(node).terms([kind.shape for kind in inputs], node.attributes)


def _within_bound(
    node: Node, inputs: list[TensorType], needs: Needs, batch: int, micro_batches: int
) -> Iterator[tuple[Samples, ...]]:
    """Ways to cut a sum that keep its bound: smaller parts first, then larger ones, down to two."""
    counts = [*range(micro_batches, min(2 * micro_batches, batch) + 1), *range(micro_batches - 1, 1, -1)]
    for count in counts:
        parts = ranges(batch, count)
        if keeps_bound(node, inputs, needs, parts):
            yield tuple(parts)


def keeps_bound(node: Node, inputs: list[TensorType], needs: Needs, parts: list[Samples]) -> bool:
    """Whether a sum that is taken in these parts keeps the bound of the whole. The parts' sums may be added up in any
    order."""
    # Along the axis of the samples, all samples have the same number of terms.
    each = terms_of(node, _sliced(inputs, needs, 1))
    return summation(node).keeps_bound([each * (last - first) for first, last in parts])


def _sliced(inputs: list[TensorType], needs: Needs, samples: int) -> list[TensorType]:
    return [sliced_type(kind, need, samples) for kind, need in zip(inputs, needs, strict=True)]
