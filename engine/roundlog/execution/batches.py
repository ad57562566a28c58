"""The batches of a run: which rows, in which order, is a function of the spec alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Protocol, overload

import torch

from roundlog.randomness import batch_rows
from roundlog.spec import TrainingSpec

CPU = torch.device("cpu")


class BatchSource(Protocol):
    """Where a run gets the data of a step."""

    def load(self, step: int, device: torch.device = CPU) -> Sequence[torch.Tensor]:
        """One tensor [batch_size, ...] a field, in program order, on the device."""


class LazyBatch(Sequence[torch.Tensor]):
    """A batch of which only those rows are in memory that somebody holds: a field is put together when it is asked for,
    as a whole or in part."""

    def __init__(self, fields: Sequence[torch.Tensor], rows: torch.Tensor, device: torch.device) -> None:
        """fields: the dataset; rows: int64[batch_size]."""
        self._fields, self._rows, self._device = fields, rows, device

    def __len__(self) -> int:
        return len(self._fields)

    @overload
    def __getitem__(self, slot: int) -> torch.Tensor: ...

    @overload
    def __getitem__(self, slot: slice) -> Sequence[torch.Tensor]: ...

    def __getitem__(self, slot: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        if isinstance(slot, slice):
            return LazyBatch(self._fields[slot], self._rows, self._device)
        return self._fields[slot][self._rows].to(self._device)

    def samples(self, slot: int, positions: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Those samples of a field, by their positions in the batch, int64[n]. memory: of the field's dtype, flat, on
        the CPU; where they may be put."""
        field, rows = self._fields[slot], self._rows[positions]
        shape = (len(rows), *field.shape[1:])
        out = None if memory is None else memory[: prod(shape)].view(shape)
        return torch.index_select(field, 0, rows, out=out).to(self._device)


class Batches:
    """The batches that the spec prescribes: swap-or-not order over the committed dataset."""

    def __init__(self, dataset: Mapping[str, torch.Tensor], spec: TrainingSpec) -> None:
        self.dataset = dataset
        self.spec = spec

    def rows(self, step: int) -> torch.Tensor:
        """int64[batch_size]: which rows of the dataset the samples of a step are."""
        spec = self.spec
        return torch.from_numpy(batch_rows(spec.seed, step, spec.batch_size, spec.data_rows))

    def load(self, step: int, device: torch.device = CPU) -> Sequence[torch.Tensor]:
        return LazyBatch(list(self.dataset.values()), self.rows(step), device)
