"""The one error of this room."""

from pathlib import Path


class StorageError(ValueError):
    """A file that is missing or is not what it has to be. The message names the file and says what is wrong.

    path: the file. reason: the message without the path.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
