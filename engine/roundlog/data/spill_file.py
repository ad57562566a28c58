"""Tensors that are written into a file, so that they take no memory until they are read again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from roundlog.data.field import DataError
from roundlog.storage import read_into

_LARGE = 1 << 20
"""Bytes of a tensor from which on it costs less to read it again than to keep it."""


class SpillFile:
    """A file without a name, which goes when nobody has it open. It lies where temporary files do."""

    def __init__(self, what: str) -> None:
        """what: is kept in it, for messages. Raises DataError if the file cannot be made."""
        self._what, self._size = what, 0
        self.place = Path(tempfile.gettempdir())
        """The folder."""
        with self._writing():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open for as long as its tensors are in use)
            self.reader = os.fdopen(os.dup(self._file.fileno()), "rb")
        """The file, open for reading."""

    def append(self, tensor: torch.Tensor) -> int:
        """Writes a tensor on the CPU behind all others. Returns its first byte. Raises DataError if there is no
        room."""
        # Modes of a trace, or of a run in FP64, have no business here.
        with _disable_current_modes():
            whole = tensor.detach().contiguous()
            # A single element may have any stride, and is contiguous.
            data = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy()
        start = self._size
        with self._writing():
            self._file.write(data.data)
            self._file.flush()
        self._size += len(data)
        return start

    def put(self, tensor: torch.Tensor) -> SpilledTensor:
        """As `append`."""
        return SpilledTensor(self, self.append(tensor), tensor.shape, tensor.dtype)

    def kept(self, tensor: torch.Tensor) -> torch.Tensor | SpilledTensor:
        """A copy of a tensor, in memory if it is small. Raises DataError if there is no room."""
        return tensor.detach().clone() if tensor.nbytes < _LARGE else self.put(tensor)

    def read(self, start: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Tensor on the CPU that was written from byte `start` on. Raises StorageError if it cannot be read."""
        with _disable_current_modes():
            found = torch.empty(shape, dtype=dtype)
            read_into(found.view(-1).view(torch.uint8).numpy().data, self.reader, self.place, start)
        return found

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"{self._what} cannot be kept in {self.place} ({error.strerror}): set TMPDIR to a folder with room for "
                "them"
            ) from error


@dataclass(frozen=True, slots=True)
class SpilledTensor:
    """A tensor in a file."""

    file: SpillFile
    start: int
    shape: torch.Size
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        """A copy of its own. Raises StorageError if it cannot be read."""
        return self.file.read(self.start, self.shape, self.dtype)


Key = TypeVar("Key")


class SpilledTensors(Mapping[Key, torch.Tensor]):
    """Tensors by name or number. Those that lie in a file are read each time that they are asked for."""

    def __init__(self, tensors: Mapping[Key, torch.Tensor | SpilledTensor]) -> None:
        """tensors: not copied; what is put there or removed later counts."""
        self._tensors = tensors

    def __getitem__(self, key: Key) -> torch.Tensor:
        """Raises StorageError if it cannot be read."""
        found = self._tensors[key]
        return found if isinstance(found, torch.Tensor) else found.tensor()

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
