"""States of which every rank keeps its part: all have the weights, and each the optimizer's state that it owns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from roundlog.commitments import MerkleTree, tensor_root
from roundlog.execution.lazy_tensors import LazyStates
from roundlog.execution.ranks.group import Ranks
from roundlog.execution.ranks.orders import Giver, Order, OrderKind
from roundlog.execution.ranks.ownership import Ownership
from roundlog.execution.ranks.reads import TOGETHER
from roundlog.program import Program, TensorType


class KeptStates:
    """This rank's part of the states."""

    def __init__(self, program: Program, ranks: Ranks, owners: Ownership) -> None:
        self._ranks, self._owners = ranks, owners
        # Stores stand in the order of the slots.
        self._types = [node.type for node in program.nodes if node.op == "store"]
        self._mine = [owners.kept.get(slot, ranks.rank) == ranks.rank for slot in range(len(self._types))]
        self._messages = self._handed_out_together()

    def begin(self, states: Sequence[torch.Tensor] | None, count: int) -> list[torch.Tensor]:
        """This rank's part of a state of so many tensors that rank 0 sends; the other ranks give None. All ranks call
        it."""
        found = []
        for slot in range(count):
            kind = self._types[slot]
            state = self._received(kind) if states is None else states[slot]
            flat = state.contiguous().view(-1)
            self._ranks.broadcast(flat)
            found.append(state if self._mine[slot] else _elsewhere(kind))
        return found

    def complete(self, slots: Sequence[int], computed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """This rank's part of the next state. computed: these slots of it, which this rank has computed. All ranks call
        it, and hand out what all need."""
        found = [_elsewhere(kind) for kind in self._types]
        for slot, state in zip(slots, computed, strict=True):
            found[slot] = state
        messages = []
        for owner, together in self._messages:
            dtype, sizes = self._types[together[0]].dtype.torch_dtype, [self._types[slot].numel for slot in together]
            if owner == self._ranks.rank:
                flat = torch.cat([found[slot].reshape(-1) for slot in together])
            else:
                flat = torch.empty(sum(sizes), dtype=dtype, device=self._ranks.device)
            messages.append((flat, owner))
            for slot, state in zip(together, flat.split(sizes), strict=True):
                found[slot] = state.view(self._types[slot].shape)
        self._ranks.broadcast_together(messages)
        return found

    def _handed_out_together(self) -> list[tuple[int, list[int]]]:
        """The owner, and the slots that it hands out in one message, of every message."""
        found: list[tuple[int, list[int]]] = []
        size = 0
        for slot, owner in sorted(self._owners.handed_out.items(), key=lambda item: (item[1], item[0])):
            kind = self._types[slot]
            size += kind.nbytes
            before = found[-1] if found and size <= TOGETHER else None
            if before is not None and before[0] == owner and self._types[before[1][0]].dtype == kind.dtype:
                before[1].append(slot)
            else:
                found.append((owner, [slot]))
                size = kind.nbytes
        return found

    def everybodys(self, states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that every rank has."""
        return [state for slot, state in enumerate(states) if slot not in self._owners.kept]

    def give_slot(self, slot: int, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """One tensor that a single rank keeps. All ranks call it."""
        kind, owner = self._types[slot], self._owners.kept[slot]
        is_here = owner == self._ranks.rank
        state = states[slot].contiguous() if is_here else self._received(kind)
        self._ranks.broadcast(state.view(-1), owner)
        return state

    def roots(self, states: Sequence[torch.Tensor]) -> dict[int, bytes]:
        """The tensor roots of the slots that single ranks keep. All ranks call it."""
        kept = self._owners.kept
        mine = b"".join(tensor_root(states[slot]) for slot, owner in kept.items() if owner == self._ranks.rank)
        told = self._ranks.gather_bytes(mine)
        left = [iter([one[i : i + 32] for i in range(0, len(one), 32)]) for one in told]
        return {slot: next(left[owner]) for slot, owner in kept.items()}

    def _received(self, kind: TensorType) -> torch.Tensor:
        """Memory for a tensor that another rank sends."""
        return torch.empty(kind.shape, dtype=kind.dtype.torch_dtype, device=self._ranks.device)

    def is_here(self, slot: int) -> bool:
        """Whether this rank has a slot."""
        return self._mine[slot]


class SharedStates(LazyStates):
    """A whole state for rank 0: what other ranks keep is fetched when it is read, while they still have it."""

    def __init__(
        self, kept: KeptStates, orders: Giver, mine: list[torch.Tensor], are_there: Callable[[SharedStates], bool]
    ) -> None:
        """mine: rank 0's part. are_there: whether the other ranks still have their parts of this state."""
        self._kept, self._orders, self._are_there = kept, orders, are_there
        self.mine = mine

    def __len__(self) -> int:
        return len(self.mine)

    def tensor(self, slot: int) -> torch.Tensor:
        if self._kept.is_here(range(len(self))[slot]):
            return self.mine[slot]
        self._require()
        with self._orders.given(Order(OrderKind.SLOT, slot)):
            return self._kept.give_slot(slot, self.mine)

    def root(self) -> bytes:
        """The state root. Every rank computes the tensor roots of what it keeps."""
        self._require()
        with self._orders.given(Order(OrderKind.ROOTS)):
            elsewhere = self._kept.roots(self.mine)
        return MerkleTree(
            [elsewhere[slot] if slot in elsewhere else tensor_root(one) for slot, one in enumerate(self.mine)]
        ).root

    def _require(self) -> None:
        if not self._are_there(self):
            raise RuntimeError("the ranks have gone on to another state: read a state before the next step is executed")


def _elsewhere(kind: TensorType) -> torch.Tensor:
    """A tensor of this type without memory or meaning, where another rank keeps one."""
    return torch.empty((), dtype=kind.dtype.torch_dtype).expand(kind.shape)
