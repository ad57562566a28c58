"""Slices on disk: values that one sweep keeps for later parts, so that they take no memory in between."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch

from roundlog.execution.microbatch.layout import Layout
from roundlog.program import TensorType


class Scratch:
    """A file of slices without a name, which disappears with the process. Every value is stored sample by sample, so
    that any range of samples is one range of bytes."""

    def __init__(self, directory: Path, values: Mapping[int, tuple[TensorType, Layout]], batch: int) -> None:
        """directory: on a disk, not in memory. Raises OSError."""
        self._values = dict(values)
        self._batch = batch
        self._offsets: dict[int, int] = {}
        self.bytes = 0
        for value, (kind, _) in self._values.items():
            self._offsets[value] = self.bytes
            self.bytes += kind.nbytes
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  (lives as long as this object)

    def __contains__(self, value: int) -> bool:
        return value in self._values

    def write(self, value: int, first: int, part: torch.Tensor) -> None:
        """Writes the part of a value that samples from `first` on own. Raises OSError."""
        kind, layout = self._values[value]
        unfolded = part.detach().cpu().reshape(layout.unfolded(tuple(part.shape)))
        data = memoryview(unfolded.movedim(layout.axis + 1, 0).numpy().tobytes())
        at = self._offsets[value] + first * (kind.nbytes // self._batch)
        while len(data):
            written = os.pwrite(self._file.fileno(), data, at)
            data, at = data[written:], at + written

    def read(self, value: int, first: int, last: int, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Reads the part of a value that samples first <= s < last own. memory: a flat tensor of the value's dtype to
        read into. Raises OSError."""
        kind, layout = self._values[value]
        shape = layout.sliced(kind.shape, last - first)
        unfolded = layout.unfolded(shape)
        axis = layout.axis + 1
        if memory is None:
            memory = torch.empty(prod(shape), dtype=kind.dtype.torch_dtype)
        ordered = memory[: prod(shape)].view(unfolded[axis], *unfolded[:axis], *unfolded[axis + 1 :])
        data = ordered.numpy().data.cast("B")
        at = self._offsets[value] + first * (kind.nbytes // self._batch)
        while len(data):
            count = os.preadv(self._file.fileno(), [data], at)
            if not count:
                raise OSError(f"the scratch file ends at byte {at}: has something cut it short?")
            data, at = data[count:], at + count
        return ordered.movedim(0, axis).reshape(shape)
