"""Owners of the optimizer's state: each of its tensors lives on one rank, which alone computes the updates that need it
(as in ZeRO, Rajbhandari et al. 2020, stage 1).

A program does not say what its optimizer is. So an *update* is whatever leads from the state to the state and nowhere
else: tensors of the state that only updates read, the operators that read them, and the stores these lead to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from roundlog.execution.microbatch.analysis import Analysis
from roundlog.operators import OperatorKind, operator
from roundlog.operators.registry import integer
from roundlog.program import Program


@dataclass(frozen=True, slots=True)
class Ownership:
    """The parts of a step and of its state that one rank alone computes and keeps."""

    operators: dict[int, int]
    """Operators that one rank computes, stores included -> the rank."""
    kept: dict[int, int]
    """Slots of the state that live on one rank -> the rank."""
    handed_out: dict[int, int]
    """Slots of the state that every rank needs and one computes -> the rank."""
    readers: dict[int, int]
    """Sums over the batch that only one rank reads, such as most gradients -> the rank."""

    def left_to_others(self, rank: int) -> frozenset[int]:
        """Operators that this rank does not compute."""
        return frozenset(index for index, owner in self.operators.items() if owner != rank)


@dataclass(slots=True)
class _Update:
    """Slots of the state whose next values are computed together, as bits of a number."""

    slots: int
    kept: int
    """The slots among them that nothing else reads."""


def ownership(program: Program, analysis: Analysis, size: int) -> Ownership:
    """The owners among so many ranks, by bytes, largest first. All analyses of a program for ranks give the same."""
    readers = _readers(program)
    reaches = _reached(program, analysis, readers)
    updates: list[_Update] = []
    for index, node in enumerate(program.nodes):
        # Numbers, such as counts of steps, are on every rank: what all updates read would give them all one owner.
        if node.op != "state" or node.type.numel < 2 or not all(one in reaches for one in readers[index]):
            continue
        own = 1 << integer(node.attributes, "slot")
        found = _Update(reduce(or_, (reaches[one] for one in readers[index]), own), own)
        for other in [one for one in updates if one.slots & found.slots]:
            updates.remove(other)
            found = _Update(found.slots | other.slots, found.kept | other.kept)
        updates.append(found)
    owners = _shared_out(program, updates, size)
    update_of = {slot: one for one in updates for slot in _slots(one.slots)}
    computed = {}
    for index, slots in reaches.items():
        first = next(_slots(slots))
        # Every rank computes the operators that lead to stores of several updates.
        if first in update_of and not slots & ~update_of[first].slots:
            computed[index] = owners[first]
    kept = {slot for one in updates for slot in _slots(one.kept)}
    read_by = {index: {computed.get(one) for one in readers[index]} for index in analysis.parts}
    return Ownership(
        operators=computed,
        kept={slot: owners[slot] for slot in sorted(kept)},
        handed_out={slot: owners[slot] for slot in sorted(owners) if slot not in kept},
        readers={index: rank for index, (rank, *more) in read_by.items() if rank is not None and not more},
    )


def _readers(program: Program) -> list[list[int]]:
    """The operators that read each value, in program order."""
    found: list[list[int]] = [[] for _ in program.nodes]
    for index, node in enumerate(program.nodes):
        for value in node.inputs:
            found[value].append(index)
    return found


def _reached(program: Program, analysis: Analysis, readers: Sequence[Sequence[int]]) -> dict[int, int]:
    """Operators of whole values that lead to stores and nowhere else -> the slots of these. They read no samples, so
    that no rank waits for another one in them."""
    layouts = analysis.layouts
    found: dict[int, int] = {}
    for index in reversed(range(len(program.nodes))):
        node = program.nodes[index]
        if operator(node.op).kind == OperatorKind.SOURCE or layouts[index] is not None:
            continue
        if any(layouts[value] is not None for value in node.inputs):
            continue
        if node.op == "store":
            found[index] = 1 << integer(node.attributes, "slot")
        elif readers[index] and all(one in found for one in readers[index]):
            found[index] = reduce(or_, (found[one] for one in readers[index]))
    return found


def _shared_out(program: Program, updates: list[_Update], size: int) -> dict[int, int]:
    """Slots of updates -> the rank that owns them."""
    nbytes = {integer(node.attributes, "slot"): node.type.nbytes for node in program.nodes if node.op == "state"}
    weighed = [(sum(nbytes[slot] for slot in _slots(one.kept)), one) for one in updates]
    loads, found = [0] * size, {}
    for weight, one in sorted(weighed, key=lambda item: (-item[0], next(_slots(item[1].slots)))):
        rank = loads.index(min(loads))
        loads[rank] += weight
        found.update(dict.fromkeys(_slots(one.slots), rank))
    return found


def _slots(bits: int) -> Iterator[int]:
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1
