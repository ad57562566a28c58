"""Openings as the adjudicator takes them (contracts/src/adjudication/Openings.sol)."""

from __future__ import annotations

from collections.abc import Sequence

from roundlog.adjudication import Descriptor
from roundlog.adjudication.adjudicate import Tree
from roundlog.adjudication.openings import Opening

OpeningArgument = tuple[int, int, bytes, list[bytes]]
"""The struct Opening: input, chunk, data, proof."""


def opening_arguments(descriptor: Descriptor, openings: Sequence[Opening]) -> list[OpeningArgument]:
    """The openings of one element (`roundlog.adjudication.openings.prove`), in the contract's order.

    An operand's chunk names the first input that is this value. The row of a data set stands at its own place in the
    data root; a state's chunk follows the opening of the slot's tensor root.
    """
    values = [item.value for item in descriptor.inputs]
    arguments: list[OpeningArgument] = []
    for opening in openings:
        chunk = opening.chunk
        if chunk.tree == Tree.VALUE:
            arguments.append((values.index(chunk.tensor), chunk.index, opening.payload, opening.siblings))
        elif chunk.tree == Tree.STATE:
            arguments.append((0, chunk.tensor, opening.tensor_root, opening.state_siblings))
            arguments.append((1, chunk.index, opening.payload, opening.siblings))
        else:
            place = chunk.tensor if chunk.tree == Tree.ROW else chunk.index
            arguments.append((0, place, opening.payload, opening.siblings))
    return sorted(arguments, key=lambda argument: argument[:2])
