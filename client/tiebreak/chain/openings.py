"""Openings as the adjudicator takes them (contracts/src/adjudication/Openings.sol)."""

from __future__ import annotations

from collections.abc import Sequence

from roundlog.adjudication.adjudicate import Tree
from roundlog.adjudication.openings import OperandOpening
from roundlog.descriptors import Descriptor

from tiebreak.chain import records


def opening_arguments(descriptor: Descriptor, openings: Sequence[OperandOpening]) -> tuple[records.ChunkOpening, ...]:
    """The openings of one element (`roundlog.adjudication.openings.prove`), in the contract's order.

    An operand's chunk names the first input that is this value. The row of a data set stands at its own place in the
    data root; a state's chunk follows the opening of the slot's tensor root.
    """
    values = [item.value for item in descriptor.inputs]
    arguments: list[records.ChunkOpening] = []

    def add(place: int, chunk: int, data: bytes, proof: Sequence[bytes]) -> None:
        arguments.append(records.ChunkOpening(input=place, chunk=chunk, data=data, proof=tuple(proof)))

    for opening in openings:
        chunk = opening.chunk
        if chunk.tree == Tree.VALUE:
            add(values.index(chunk.tensor), chunk.index, opening.payload, opening.siblings)
        elif chunk.tree == Tree.STATE:
            add(0, chunk.tensor, opening.tensor_root, opening.state_siblings)
            add(1, chunk.index, opening.payload, opening.siblings)
        else:
            place = chunk.tensor if chunk.tree == Tree.ROW else chunk.index
            add(0, place, opening.payload, opening.siblings)
    return tuple(sorted(arguments, key=lambda argument: (argument.input, argument.chunk)))
