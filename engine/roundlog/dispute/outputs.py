"""The outputs of one disputed step, so that it is executed once for all that is opened of it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, MutableMapping
from pathlib import Path

import torch

from roundlog.commitments import tensor_bytes
from roundlog.program import Program


class OutputsOnDisk(MutableMapping[int, torch.Tensor]):
    """Outputs of operators in a nameless file, which is gone with this object or the process, whatever ends it."""

    def __init__(self, program: Program, directory: Path) -> None:
        """directory: on a disk, not in memory. Raises OSError, also where the disk has less than twice the room that
        all outputs take."""
        self._types = [node.type for node in program.nodes]
        self._offsets: list[int] = []
        size = 0
        for kind in self._types:
            self._offsets.append(size)
            size += kind.nbytes
        if shutil.disk_usage(directory).free < 2 * size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))
        self._written: dict[int, None] = {}
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  (lives as long as this object)

    def __setitem__(self, operator: int, output: torch.Tensor) -> None:
        """Keeps an output, whatever its device. Raises OSError."""
        self._file.seek(self._offsets[operator])
        self._file.write(tensor_bytes(output))
        self._file.flush()
        self._written[operator] = None

    def __getitem__(self, operator: int) -> torch.Tensor:
        """The output as it was kept, on the CPU. Raises KeyError for one that was not, OSError."""
        if operator not in self._written:
            raise KeyError(operator)
        kind = self._types[operator]
        if not kind.nbytes:
            return torch.empty(kind.shape, dtype=kind.dtype.torch_dtype)
        self._file.seek(self._offsets[operator])
        data = self._file.read(kind.nbytes)
        if len(data) != kind.nbytes:
            raise OSError(errno.EIO, "the file of a step's outputs was cut short: execute the step again")
        return torch.frombuffer(bytearray(data), dtype=kind.dtype.torch_dtype).reshape(kind.shape)

    def __delitem__(self, operator: int) -> None:
        del self._written[operator]

    def __iter__(self) -> Iterator[int]:
        return iter(self._written)

    def __len__(self) -> int:
        return len(self._written)


class SomeOutputs(dict[int, torch.Tensor]):
    """Outputs of some operators in memory; the others are let go."""

    def __init__(self, operators: Collection[int] = ()) -> None:
        super().__init__()
        self._operators = frozenset(operators)

    def __setitem__(self, operator: int, output: torch.Tensor) -> None:
        if operator in self._operators:
            super().__setitem__(operator, output)
