"""The one error of this room."""

from __future__ import annotations

from pathlib import Path


class StorageError(ValueError):
    """A file that is missing or is not what it has to be. The message names the file and says what is wrong.

    path: the file. reason: the message without the path.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[StorageError], tuple[Path, str]]:
        # Workers raise it in other processes, and an error is otherwise made again from its message alone.
        return type(self), (self.path, self.reason)
