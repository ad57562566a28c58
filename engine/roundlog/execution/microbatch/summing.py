"""Which sums over the batch are taken part by part, and in which parts: so that nobody holds their inputs as a whole.

A contraction is only cut so that every term goes through no more additions than in the whole one: its bound is then
that of the whole, and what a trainer has logged by that bound is what an auditor looks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from roundlog.execution.microbatch.layout import Samples, ranges, sliced_type
from roundlog.execution.microbatch.rules import Needs
from roundlog.operators import Summation, operator
from roundlog.program import Node, TensorType


def summation(node: Node) -> Summation:
    """The operator of a node that is summed part by part."""
    found = operator(node.op)
    assert isinstance(found, Summation)
    return found


def parts_of(
    node: Node, inputs: list[TensorType], needs: Needs, batch: int, micro_batches: int
) -> tuple[Samples, ...] | None:
    """The samples of every part, whose inputs have these layouts: about as many as micro-batches. None if there is no
    way to cut the sum, or no memory to be won by it."""
    found = next(_within_bound(node, inputs, needs, batch, micro_batches), None)
    if found is None:
        return None
    output = node.type
    whole = sum(kind.nbytes for kind in inputs) + max(kind.nbytes for kind in inputs)
    whole += summation(node).workspace(inputs, node.attributes, output)
    return found if bytes_in_parts(node, inputs, needs, found) < whole else None


def bytes_in_parts(node: Node, inputs: list[TensorType], needs: Needs, parts: tuple[Samples, ...]) -> int:
    """What is needed beside the output to sum these parts, an upper bound."""
    part = _sliced(inputs, needs, max(last - first for first, last in parts))
    # A slice is put in order while it is read.
    read = sum(kind.nbytes for kind in part) + max(kind.nbytes for kind in part)
    return read + summation(node).part_workspace(part, node.attributes, node.type)


def terms_of(node: Node, inputs: list[TensorType]) -> int:
    """The length of the whole sum."""
    return summation(node).terms([kind.shape for kind in inputs], node.attributes)


def _within_bound(
    node: Node, inputs: list[TensorType], needs: Needs, batch: int, micro_batches: int
) -> Iterator[tuple[Samples, ...]]:
    """Smaller parts first, then larger ones, until there is one only."""
    counts = [*range(micro_batches, min(2 * micro_batches, batch) + 1), *range(micro_batches - 1, 1, -1)]
    # Along the axis of the samples, every sample has as many terms.
    each = terms_of(node, _sliced(inputs, needs, 1))
    for count in counts:
        parts = ranges(batch, count)
        if summation(node).keeps_bound([each * (last - first) for first, last in parts]):
            yield tuple(parts)


def _sliced(inputs: list[TensorType], needs: Needs, samples: int) -> list[TensorType]:
    return [sliced_type(kind, need, samples) for kind, need in zip(inputs, needs, strict=True)]
