"""Base classes of tensor sequences that load each tensor when it is read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import overload

import torch

from roundlog.commitments import state_root


class LazyTensors(Sequence[torch.Tensor]):
    """A sequence whose tensors are loaded one at a time, each when it is read; a slice loads all of its tensors."""

    @abstractmethod
    def tensor(self, slot: int) -> torch.Tensor:
        """The tensor at `slot`, counted from 0; loaded by this call. Raises IndexError behind the last one."""

    @overload
    def __getitem__(self, slot: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, slot: slice) -> Sequence[torch.Tensor]: ...

    def __getitem__(self, slot: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        if isinstance(slot, slice):
            return [self.tensor(position) for position in range(*slot.indices(len(self)))]
        return self.tensor(slot)


class TensorsOf(LazyTensors):
    """The tensors of a mapping that may load each when it is asked for."""

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        self._named, self._names = named, list(named)

    def __len__(self) -> int:
        return len(self._names)

    def tensor(self, slot: int) -> torch.Tensor:
        return self._named[self._names[slot]]


class LazyStates(LazyTensors):
    """A state of which this process does not hold every tensor."""

    @abstractmethod
    def root(self) -> bytes:
        """Its state root."""


def held(states: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """A state whose tensors are all in memory."""
    return list(states) if isinstance(states, LazyTensors) else states


def root_of(states: Sequence[torch.Tensor]) -> bytes:
    """The state root, of 32 bytes, of a state that may be lazy."""
    return states.root() if isinstance(states, LazyStates) else state_root(states)
