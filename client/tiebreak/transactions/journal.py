"""The journal of an account: every transaction that was signed, written down before it is sent.

    <directory>/journal/<chain id>-<genesis>-<account>/<nonce>.json   one intention a file
    <directory>/journal/lock    held by the process that sends
    <directory>/reserve         bytes without a meaning; cut when the disk is full, and filled again when there is room

A process that is killed, or a disk that is full, leaves the old file or the new one. All transactions of an intention
have its nonce, and the chain takes one of them.

A stranger can fill the disk of everybody who follows jobs. Nothing is paid that is not on record, and a party that
cannot pay for an appeal or a challenge loses what it defends. So those records, and nothing else, take the reserve.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar, TypeVar

from eth_typing import ChecksumAddress
from pydantic import ConfigDict, TypeAdapter
from roundlog.storage import lock_file, open_regular, replace_file, sync_directory

from tiebreak.rpc.chain_errors import JournalError, JournalInUse

T = TypeVar("T")

HEX = ConfigDict(ser_json_bytes="hex", val_json_bytes="hex")
"""Settings of records in which bytes stand as hex digits."""

SIZE = 1 << 20
"""Bytes of the reserve, or a quarter of a smaller disk: enough for some two hundred payments."""

_SLICE = 16 << 10
"""Bytes that are given up at a time, so that others who write to the disk do not get all of them."""

_PART = 4
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """The reserve in a directory; with None there is none, for commands that keep no record. Threads may share it."""

    def __init__(self, directory: Path | None, size: int = SIZE) -> None:
        self._path = None if directory is None else directory / "reserve"
        self._size = size
        self._lock = threading.Lock()
        self.missing = 0
        """Bytes that it has less than it should: the disk is, or was a moment ago, full."""

    def fill(self) -> None:
        """Fill the reserve as far as the disk has room for it. Never raises: a role works without it, too."""
        if self._path is None:
            return
        with self._lock:
            try:
                self._fill(self._path)
            except OSError:
                self.missing = max(1, self.missing)

    def write(self, write: Callable[[], T]) -> T:
        """Return the result of `write`, which is called again after some of the reserve was given up if the disk is
        full.

        Raises what it raises, and so the error of a full disk if nothing of the reserve is left."""
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in _FULL or not self._give_up():
                    raise

    def _give_up(self) -> bool:
        """Return whether a part of the reserve could be given up."""
        if self._path is None:
            return False
        with self._lock:
            try:
                size = self._path.stat().st_size
                if not size:
                    return False
                os.truncate(self._path, max(0, size - _SLICE))
            except OSError:
                return False
            self.missing += min(size, _SLICE)
            return True

    def _fill(self, path: Path) -> None:
        disk = shutil.disk_usage(path.parent)
        wanted = min(self._size, disk.total // _PART)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # As much again stays free, since others write, too, and would have it given up at once.
            if size < wanted and disk.free > 2 * (wanted - size):
                # Random bytes take their space on disks that compress as well.
                size += os.pwrite(descriptor, os.urandom(wanted - size), size)
                # Nobody reads them: synced for the error of disks that say only then that they are full.
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.missing = max(0, wanted - size)


@dataclass(frozen=True, slots=True)
class Signed:
    """One signed transaction; fees in wei per gas."""

    __pydantic_config__: ClassVar = HEX
    hash: bytes
    raw: bytes
    max_fee: int
    priority_fee: int


@dataclass(slots=True, kw_only=True)
class Entry:
    """One intention. `since`: the newest block when it was signed first; `heard`: its end was told to the caller."""

    __pydantic_config__: ClassVar = HEX
    purpose: str
    nonce: int
    to: ChecksumAddress | None
    data: bytes
    value: int
    gas: int
    since: int
    signed: list[Signed] = field(default_factory=list)
    heard: bool = False


_ENTRIES = TypeAdapter(Entry)
"""Reads and writes entries as JSON."""


class Journal:
    """The journal in `directory`; with None it is kept in memory only, for commands that end at once.

    Raises JournalInUse if another process holds it, JournalError if the directory cannot be used.
    """

    def __init__(self, directory: Path | None, name: str, reserve: Reserve) -> None:
        """name: chain and account; a plain file name. reserve: the disk's, which payments may take."""
        self._place = None if directory is None else directory / "journal" / name
        self._reserve = reserve
        self._lock: BinaryIO | None = None
        if directory is not None and self._place is not None:
            # The whole directory: roles of two accounts would write over each other's records as well.
            self._lock = _locked(directory, self._place)
            reserve.fill()

    def load(self) -> list[Entry]:
        """Return all entries in the order of their nonces. A file that is damaged is set aside under another name."""
        if self._place is None:
            return []
        found: list[Entry] = []
        for path in sorted(self._place.glob("*.json")):
            try:
                with open_regular(path) as file:
                    entry = _ENTRIES.validate_json(file.read())
                if path != self._path(entry.nonce):
                    raise ValueError(path.name)
            except OSError as error:
                raise JournalError(f"{path} cannot be read ({error.strerror}): check the disk.") from error
            except ValueError:
                path.replace(path.with_suffix(".damaged"))
            else:
                found.append(entry)
        return sorted(found, key=lambda entry: entry.nonce)

    def write(self, entry: Entry) -> None:
        """Remember an entry as it is now. Raises JournalError."""
        if self._place is None:
            return
        try:
            # A move is sent without a record where there is no room for one.
            if entry.value:
                self._reserve.write(lambda: self._put(entry))
            else:
                self._put(entry)
        except OSError as error:
            raise JournalError(
                f"{self._place} cannot be written ({error.strerror}), and nothing is paid that is not on record: make "
                "room there."
            ) from error

    def _put(self, entry: Entry) -> None:
        with replace_file(self._path(entry.nonce), private=True) as file:
            file.write(_ENTRIES.dump_json(entry))

    def remove(self, entry: Entry) -> None:
        """Forget an entry that has ended for good. An entry that cannot be removed is looked at again by the next
        process, which does no harm."""
        if self._place is not None:
            try:
                self._path(entry.nonce).unlink(missing_ok=True)
            except OSError:
                return

    def close(self) -> None:
        """Let another process send."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _path(self, nonce: int) -> Path:
        assert self._place is not None
        return self._place / f"{nonce:012d}.json"


def _locked(directory: Path, place: Path) -> BinaryIO:
    try:
        place.mkdir(parents=True, exist_ok=True)
        for made in (place.parent, directory, directory.parent):
            with suppress(PermissionError):  # a folder of many users may not be read
                sync_directory(made)
        return lock_file(place.parent / "lock")
    except BlockingIOError as error:
        raise JournalInUse(
            f"another process works in {directory}: stop it, or give each its own directory (--dir)."
        ) from error
    except OSError as error:
        raise JournalError(
            f"the journal {place} cannot be opened ({error.strerror}): choose a directory that you may write to."
        ) from error
