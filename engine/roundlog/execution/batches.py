"""Batches of a run, whose rows, and the order of the rows, depend on the spec alone; and sequences that load each
tensor when it is read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import overload

import torch

from roundlog.commitments import state_root
from roundlog.data import Field
from roundlog.randomness import batch_rows
from roundlog.spec import TrainingSpec


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
    """A state whose tensors are not all held by this process."""

    @abstractmethod
    def root(self) -> bytes:
        """Its state root."""


def in_memory(states: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """A state whose tensors are all in memory."""
    return list(states) if isinstance(states, LazyTensors) else states


def root_of(states: Sequence[torch.Tensor]) -> bytes:
    """The state root, of 32 bytes, of a state that may be lazy."""
    return states.root() if isinstance(states, LazyStates) else state_root(states)


CPU = torch.device("cpu")


class LazyBatch(LazyTensors):
    """A batch that takes no memory by itself: each read gathers the rows of one field, all of them or some samples."""

    def __init__(self, fields: Sequence[Field], rows: torch.Tensor, device: torch.device) -> None:
        """fields: the dataset; rows: int64[batch_size]."""
        self._fields, self._rows, self._device = fields, rows, device

    def __len__(self) -> int:
        return len(self._fields)

    def tensor(self, slot: int) -> torch.Tensor:
        return self._fields[slot].take(self._rows).to(self._device)

    def samples(self, slot: int, positions: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Some samples of a field. positions: int64[n], of the samples in the batch. memory: a flat tensor of the
        field's dtype on the CPU that they may be written into."""
        field, rows = self._fields[slot], self._rows[positions]
        shape = (len(rows), *field.shape[1:])
        out = None if memory is None else memory[: prod(shape)].view(shape)
        return field.take(rows, out).to(self._device)


class Batches:
    """Batches that the spec prescribes: rows of the committed dataset in swap-or-not order."""

    def __init__(self, dataset: Mapping[str, Field], spec: TrainingSpec) -> None:
        self.dataset = dataset
        self.spec = spec

    def rows(self, step: int) -> torch.Tensor:
        """Rows of the dataset that form the batch of a step: int64[batch_size]."""
        spec = self.spec
        return torch.from_numpy(batch_rows(spec.seed, step, spec.batch_size, spec.data_rows))

    def load(self, step: int, device: torch.device = CPU) -> Sequence[torch.Tensor]:
        """The batch of a step: one tensor [batch_size, ...] a field, in program order, on the device."""
        return LazyBatch(list(self.dataset.values()), self.rows(step), device)
