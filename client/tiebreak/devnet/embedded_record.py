"""The record of an embedded chain on disk: all that its blocks follow from, one JSON object a line.

The first line has the instant of the genesis block. Then come blocks, each with its instant and its transaction if it
has one, and the seconds by which the chain's clock is ahead of the wall clock. For development only: lines are handed
to the system and not synced, so that a killed process loses nothing, and a power failure may.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from roundlog.storage import open_regular

from tiebreak.rpc.chain_errors import DevnetError

_LATEST = 2**40
"""Largest instant and offset, in seconds."""


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One line of a record: a block at `timestamp` (with its signed `transaction` as hex, if it has one), or a new
    `offset` of the clock."""

    timestamp: int = 0
    transaction: str | None = None
    offset: int | None = None


class ChainRecord:
    """A record in the file `path`, which is made if it is not there. Raises DevnetError if it cannot be used, or is not
    a record. A last line that was cut off by a kill is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with open_regular(path) as file:
                content = file.read()
        except OSError as error:
            raise DevnetError(f"{path} cannot be used ({error.strerror}): choose another place.") from error
        whole = content[: content.rfind(b"\n") + 1]
        self.length = len(whole)
        """Bytes of the file, for `cut`."""
        if len(whole) < len(content):
            self.cut(self.length)
        lines = whole.splitlines()
        self._events = lines[1:]
        if lines:
            self.genesis = self._number(self._object(lines[0]), "genesis")
        else:
            self.genesis = int(time.time())
            self._append({"genesis": self.genesis})

    @property
    def events(self) -> Iterator[RecordedEvent]:
        """The events that the record held when it was opened. Raises DevnetError at a line that is none."""
        for line in self._events:
            found = self._object(line)
            if "offset" in found:
                yield RecordedEvent(offset=self._number(found, "offset"))
                continue
            transaction = found.get("transaction")
            if transaction is not None and not re.fullmatch("0x([0-9a-fA-F]{2})+", str(transaction)):
                raise self.damaged("a transaction is no hex")
            yield RecordedEvent(self._number(found, "block"), None if transaction is None else str(transaction))

    def add(self, event: RecordedEvent) -> None:
        """Adds a line. Raises DevnetError, and then the record is as it was."""
        if event.offset is not None:
            self._append({"offset": event.offset})
        else:
            line: dict[str, object] = {"block": event.timestamp}
            self._append(line if event.transaction is None else line | {"transaction": event.transaction})

    def cut(self, length: int) -> None:
        """Takes back all that came after the record had `length` bytes. Raises DevnetError."""
        try:
            os.ftruncate(self._descriptor, length)
        except OSError as error:
            raise DevnetError(f"{self._path} cannot be written ({error.strerror}): make room on its disk.") from error
        self.length = length

    def close(self) -> None:
        os.close(self._descriptor)

    def damaged(self, why: str) -> DevnetError:
        """The error for a record that cannot be played."""
        return DevnetError(f"{self._path} is damaged ({why}): delete it to begin with a new chain.")

    def _append(self, line: dict[str, object]) -> None:
        raw = json.dumps(line).encode() + b"\n"
        try:
            written = os.write(self._descriptor, raw)
        except OSError as error:
            raise DevnetError(f"{self._path} cannot be written ({error.strerror}): make room on its disk.") from error
        if written != len(raw):
            self.cut(self.length)
            raise DevnetError(f"{self._path} cannot be written: make room on its disk.")
        self.length += len(raw)

    def _object(self, line: bytes) -> dict[str, object]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self.damaged("a line is no JSON object")
        return found

    def _number(self, line: dict[str, object], name: str) -> int:
        number = line.get(name)
        least = -_LATEST if name == "offset" else 0
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number < _LATEST:
            raise self.damaged(f"{name} is missing, or no time")
        return number
