"""Openings as the adjudicator takes them (contracts/src/adjudication/Openings.sol)."""

from __future__ import annotations

from collections.abc import Sequence

from roundlog.adjudication.adjudicate import Tree
from roundlog.adjudication.openings import OperandOpening
from roundlog.descriptors import Descriptor

from tiebreak.chain import records


def opening_arguments(descriptor: Descriptor, openings: Sequence[OperandOpening]) -> tuple[records.ChunkOpening, ...]:
    """The openings of one element (`roundlog.adjudication.openings.prove`), in the contract's order.

    An operand's chunk names the first input that is this value. A chunk of a state or of a field of data follows the
    opening of the tensor root of its slot or field.
    """
    values = [item.value for item in descriptor.inputs]
    arguments: list[records.ChunkOpening] = []

    def add(place: int, chunk: int, data: bytes, proof: Sequence[bytes]) -> None:
        arguments.append(records.ChunkOpening(input=place, chunk=chunk, data=data, proof=tuple(proof)))

    for opening in openings:
        chunk = opening.chunk
        if chunk.tree == Tree.VALUE:
            add(values.index(chunk.tensor), chunk.index, opening.payload, opening.siblings)
        elif chunk.tree in (Tree.STATE, Tree.FIELD):
            add(0, chunk.tensor, opening.tensor_root, opening.above)
            add(1, chunk.index, opening.payload, opening.siblings)
        else:
            add(0, chunk.index, opening.payload, opening.siblings)
    return tuple(sorted(arguments, key=lambda argument: (argument.input, argument.chunk)))
