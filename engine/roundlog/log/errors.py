"""The errors of the log."""

from __future__ import annotations

from pathlib import Path


class LogError(ValueError):
    """A log that cannot be written, or a file that is not the log it has to be.

    path: the file. offset: the byte of the file where it shows, None if no single byte is to blame.
    reason: the message without path and offset.
    """

    def __init__(self, path: Path, offset: int | None, reason: str) -> None:
        place = f"{path}" if offset is None else f"{path}: byte {offset}"
        super().__init__(f"{place}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[LogError], tuple[Path, int | None, str]]:
        # An error that another process has raised is otherwise made again from its message alone.
        return type(self), (self.path, self.offset, self.reason)


class PayloadError(ValueError):
    """Entries that have no payload, or a payload that has no entries; the message says which rule is broken.

    The writer and the reader turn it into a LogError, which knows the file.
    """
