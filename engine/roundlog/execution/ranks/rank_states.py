"""States in parts, one a rank: all have the weights, and each the optimizer's state that it owns.

A rank's part lies in one memory from the first step to the last, and each step's result is written into it. Memory
that a step takes beside it is free again when the step ends, and serves the next one as a whole.

Each tensor of the optimizer's state lives on one rank, its *owner*, which alone computes the updates that need it (as
in ZeRO, Rajbhandari et al. 2020, stage 1). A program does not say what its optimizer is. So an *update* is whatever
leads from the state to the state and nowhere else: tensors of the state that only updates read, the operators that
read them, and the stores these lead to."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from math import prod
from operator import or_

import torch

from roundlog.commitments import MerkleTree, tensor_root
from roundlog.execution.batches import LazyStates
from roundlog.execution.microbatch.analysis import Analysis
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.orders import Giver, OrderKind, RankOrder
from roundlog.operators import OperatorKind, operator
from roundlog.operators.registry import integer
from roundlog.program import Program, TensorType


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
        """Return the operators that this rank does not compute."""
        return frozenset(index for index, owner in self.operators.items() if owner != rank)


@dataclass(slots=True)
class _Update:
    """Slots of the state whose next values are computed together, as bits of a number."""

    slots: int
    kept: int
    """The slots among them that nothing else reads."""


def ownership(program: Program, analysis: Analysis, size: int) -> Ownership:
    """Share updates out among `size` ranks, by bytes, largest first. All analyses of a program for ranks give the
    same owners."""
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
    """Return the operators that read each value, in program order."""
    found: list[list[int]] = [[] for _ in program.nodes]
    for index, node in enumerate(program.nodes):
        for value in node.inputs:
            found[value].append(index)
    return found


def _reached(program: Program, analysis: Analysis, readers: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return operators of whole values that lead to stores and nowhere else -> the slots of these. They read no
    samples, so that no rank waits for another one in them."""
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
    """Return slots of updates -> the rank that owns them."""
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


class KeptStates:
    """This rank's part of the newest state."""

    def __init__(self, program: Program, ranks: Ranks, owners: Ownership) -> None:
        self._ranks, self._owners = ranks, owners
        # Stores stand in the order of the slots.
        self._types = [node.type for node in program.nodes if node.op == "store"]
        self._mine = [owners.kept.get(slot, ranks.rank) == ranks.rank for slot in range(len(self._types))]
        self.tensors: list[torch.Tensor] = []
        """One tensor a slot; those that other ranks keep have no memory, and mean nothing. Empty before `begin`."""
        self._handed_out: list[tuple[torch.Tensor, int]] = []
        """The memory of the slots that one rank computes for all, and that rank."""

    def begin(self, states: Sequence[torch.Tensor] | None, count: int) -> None:
        """Take this rank's part of a state of `count` tensors that rank 0 sends; the other ranks give None. All ranks
        call it. states: each tensor is read once."""
        if not self.tensors:
            self._set_up()
        for slot in range(count):
            kept = self.tensors[slot]
            state = kept if self._mine[slot] else self._memory_of(self._types[slot])
            if states is not None:
                state.copy_(states[slot])
            self._ranks.broadcast(state.view(-1))

    def _set_up(self) -> None:
        """Allocate all slots. Slots that a rank hands out lie one behind the other: they are one message."""
        self.tensors = [
            self._memory_of(kind) if mine else _elsewhere(kind)
            for kind, mine in zip(self._types, self._mine, strict=True)
        ]
        by_message = sorted(self._owners.handed_out, key=lambda slot: (*self._message(slot), slot))
        for (owner, _), group in groupby(by_message, self._message):
            slots = list(group)
            dtype, shapes = self.tensors[slots[0]].dtype, [self._types[slot].shape for slot in slots]
            memory = torch.empty(sum(map(prod, shapes)), dtype=dtype, device=self._ranks.device)
            for slot, shape, part in zip(slots, shapes, memory.split(list(map(prod, shapes))), strict=True):
                self.tensors[slot] = part.view(shape)
            self._handed_out.append((memory, owner))

    def _message(self, slot: int) -> tuple[int, str]:
        """Return (owner, dtype) of a slot that one rank hands out."""
        return self._owners.handed_out[slot], self._types[slot].dtype.name

    def complete(self, slots: Sequence[int], computed: list[torch.Tensor]) -> None:
        """Write the next state over this one, and broadcast the slots that one rank computes for all. All ranks call
        it. computed: these slots of the next state; emptied, so that their memory is free."""
        if not self.tensors:
            self._set_up()
        kept = set(map(_span, self.tensors))
        for place, (slot, value) in enumerate(zip(slots, computed, strict=True)):
            # A step may store a slot, or a view of it, in another one, which must not change before it is copied.
            first, last = _span(value)
            if value is not self.tensors[slot] and any(first < end and start < last for start, end in kept):
                computed[place] = value.clone()
        for slot in reversed(slots):
            value = computed.pop()
            if value is not self.tensors[slot]:
                self.tensors[slot].copy_(value)
        self._ranks.broadcast_together(self._handed_out)

    def everybodys(self) -> list[torch.Tensor]:
        """Return the tensors that every rank has."""
        return [state for slot, state in enumerate(self.tensors) if slot not in self._owners.kept]

    def give_slot(self, slot: int) -> torch.Tensor:
        """Return a copy of one tensor that a single rank keeps. All ranks call it."""
        owner = self._owners.kept[slot]
        is_here = owner == self._ranks.rank
        state = self.tensors[slot].clone() if is_here else self._memory_of(self._types[slot])
        self._ranks.broadcast(state.view(-1), owner)
        return state

    def roots(self) -> dict[int, bytes]:
        """Return the tensor roots of the slots that single ranks keep. All ranks call it."""
        kept = self._owners.kept
        mine = b"".join(tensor_root(self.tensors[slot]) for slot, owner in kept.items() if owner == self._ranks.rank)
        told = [io.BytesIO(one) for one in self._ranks.gather_bytes(mine)]
        return {slot: told[owner].read(32) for slot, owner in kept.items()}

    def _memory_of(self, kind: TensorType) -> torch.Tensor:
        return torch.empty(kind.shape, dtype=kind.dtype.torch_dtype, device=self._ranks.device)

    def is_here(self, slot: int) -> bool:
        """Return whether this rank has a slot."""
        return self._mine[slot]


class SharedStates(LazyStates):
    """A whole state for rank 0: what other ranks keep is fetched when it is read, while the ranks still have it."""

    def __init__(self, kept: KeptStates, orders: Giver, are_there: Callable[[SharedStates], bool]) -> None:
        """are_there: whether the ranks, this one included, still have this state."""
        self._kept, self._orders, self._are_there = kept, orders, are_there

    def __len__(self) -> int:
        return len(self._kept.tensors)

    def tensor(self, slot: int) -> torch.Tensor:
        """Return a copy, which stays when the ranks go on."""
        slot = range(len(self))[slot]
        self._require()
        if self._kept.is_here(slot):
            return self._kept.tensors[slot].clone()
        with self._orders.given(RankOrder(OrderKind.SLOT, slot)):
            return self._kept.give_slot(slot)

    def root(self) -> bytes:
        """Return the state root. Every rank computes the tensor roots of what it keeps."""
        self._require()
        with self._orders.given(RankOrder(OrderKind.ROOTS)):
            elsewhere = self._kept.roots()
        return MerkleTree(
            [elsewhere[slot] if slot in elsewhere else tensor_root(one) for slot, one in enumerate(self._kept.tensors)]
        ).root

    def _require(self) -> None:
        if not self._are_there(self):
            raise RuntimeError("the ranks have gone on to another state: read a state before the next step is executed")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return (first, end) of the memory in which a tensor lies, by its address."""
    try:
        memory = tensor.untyped_storage()
        return memory.data_ptr(), memory.data_ptr() + memory.nbytes()
    except RuntimeError:
        # Its device has no addresses: it may lie anywhere.
        return 0, 1 << 64


def _elsewhere(kind: TensorType) -> torch.Tensor:
    """Return a tensor of this type without memory or meaning, where another rank keeps one."""
    return torch.empty((), dtype=kind.dtype.torch_dtype).expand(kind.shape)
