"""The batches of a run: which rows, in which order, is a function of the spec alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from roundlog.randomness import batch_rows
from roundlog.spec import TrainingSpec


class BatchSource(Protocol):
    """Where a run gets the data of a step."""

    def load(self, step: int) -> list[torch.Tensor]:
        """One tensor [batch_size, ...] a field, in program order."""


class Batches:
    """The batches that the spec prescribes: swap-or-not order over the committed dataset."""

    def __init__(self, dataset: Mapping[str, torch.Tensor], spec: TrainingSpec) -> None:
        self.dataset = dataset
        self.spec = spec

    def load(self, step: int) -> list[torch.Tensor]:
        spec = self.spec
        rows = torch.from_numpy(batch_rows(spec.seed, step, spec.batch_size, spec.data_rows))
        return [field[rows] for field in self.dataset.values()]
