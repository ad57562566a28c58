"""Fields that stay in a file: nothing of them is in memory but the rows that are read."""

from __future__ import annotations

import os
from io import BufferedReader
from pathlib import Path
from typing import Any

from roundlog.data.stored_field import StoredField
from roundlog.program import FieldType
from roundlog.storage import StorageError, open_regular, read_at


class FileField(StoredField):
    """A field whose bytes stand one behind the other in a file, from a byte on.

    The file stays open, and is read by position (pread), never mapped: a mapped file that somebody truncates ends the
    process by SIGBUS, and its pages count as the process's memory."""

    def __init__(self, kind: FieldType, rows: int, path: Path, offset: int, file: BufferedReader | None = None) -> None:
        """file: the one at `path`, already open. Raises StorageError if it cannot be opened or is too short."""
        super().__init__(kind, rows)
        self.path, self.offset = path, offset
        try:
            self._file = open_regular(path) if file is None else file
            size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise StorageError(path, f"cannot be read: {error.strerror}") from error
        if size < offset + self.nbytes:
            raise StorageError(path, f"has {size} bytes where its field needs {offset + self.nbytes}")

    def read(self, start: int, size: int) -> memoryview:
        return read_at(self._file, self.path, self.offset + start, size)

    def changed(self, start: int) -> StorageError:
        return changed_at(self.path, self.offset + start)

    def recut(self, kind: FieldType, rows: int) -> FileField:
        return FileField(kind, rows, self.path, self.offset, self._file)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileField, (self.kind, self.rows, self.path, self.offset)


def changed_at(path: Path, start: int) -> StorageError:
    """The error that a file has other bytes at byte `start` than when it was summarised."""
    return StorageError(path, f"has changed, at byte {start} or soon after, since its root was taken: restore it")
