"""The place beside a destination where fetched content is put together, and left for the next attempt if it does not
come whole; and the space on its disk, which is looked at before a stranger's content is written there."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from roundlog.storage import lock_file

from tiebreak.store.dagpb import Cid
from tiebreak.store.store_errors import (
    ContentMissing,
    CorruptBlock,
    DestinationExists,
    FetchTooSlow,
    NoSpace,
    StoreUnavailable,
    unusable,
)

_RESERVE = 32 << 20
_RESERVED_PART = 20
"""Bytes that fetched content leaves free, or this part of a small disk: what a process has to write down meanwhile
needs less."""

_MAY_PASS = (StoreUnavailable, FetchTooSlow, ContentMissing, CorruptBlock)
"""Errors after which the next attempt may find what is missing, and so what has come is left for it."""


def disk_bytes(file: Path) -> int:
    """Return the bytes of the disk that a file takes; 0 if there is none."""
    try:
        return file.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def size_of(directory: Path) -> int:
    """Return the bytes of the disk that all files below a directory take. Files that vanish meanwhile are not
    counted."""
    return sum(disk_bytes(Path(parent) / name) for parent, _, names in os.walk(directory) for name in names)


def require_space(place: Path | int, need: int) -> None:
    """Raise NoSpace unless so many bytes more fit the disk of a path, or of an open file, and leave enough of it."""
    if need <= 0:
        return
    disk = shutil.disk_usage(place)
    have = disk.free - min(_RESERVE, disk.total // _RESERVED_PART)
    if need > have:
        raise NoSpace(
            f"the content needs {need} bytes of the disk, which has {max(0, have)} for it and keeps the rest free: "
            "make room there."
        )


@contextmanager
def staged(dest: Path, cid: Cid) -> Iterator[Path]:
    """Give a path beside `dest` for the content `cid`, which becomes `dest` when the `with` block ends well.

    When it ends by an error that may pass, or the process is killed, what is there stays for the next attempt, which
    must check it: it may have been cut off or damaged. Another error removes it. One process at a time fetches the same
    to the same place. Raises DestinationExists, StoreUnavailable.
    """
    if os.path.lexists(dest):
        raise DestinationExists(f"{dest} exists already: choose another place or remove it.")
    partial = _partial(dest, cid)
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        lock = _claim(partial)
    except OSError as error:
        raise unusable(f"nothing can be written to {dest.parent}", error) from error
    stays = False
    try:
        yield partial / "content"
        _publish(partial / "content", dest)
    except BaseException as error:
        stays = isinstance(error, _MAY_PASS) or not isinstance(error, Exception)
        if isinstance(error, OSError):
            raise unusable(f"the content cannot be written beside {dest}", error) from error
        raise
    finally:
        if not (stays and any(path.is_file() and path.stat().st_size for path in partial.rglob("*"))):
            shutil.rmtree(partial, ignore_errors=True)
        lock.close()


def _publish(content: Path, dest: Path) -> None:
    # The name is not synced: who loses it with the power fetches the content again.
    try:
        if content.is_dir():
            content.rename(dest)  # fails on a directory that is not empty, as it should
        else:
            dest.hardlink_to(content)  # unlike rename, this never replaces a file
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
            raise
        raise DestinationExists(
            f"{dest} cannot take the fetched content ({error.strerror}): choose another place."
        ) from error


def _claim(partial: Path) -> BinaryIO:
    """Lock the directory of an unfinished fetch, made if it is not there.

    A directory that somebody else could have made or filled is not taken: its name can be foretold. Raises
    StoreUnavailable, OSError."""
    with suppress(FileExistsError):
        partial.mkdir(mode=0o700)
    try:
        found = partial.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise StoreUnavailable(f"{partial}, where content is put together, may be somebody else's: remove it.")
        return lock_file(partial / "lock")
    except (BlockingIOError, FileNotFoundError) as error:  # FileNotFoundError: it has just ended
        raise StoreUnavailable(f"another process fetches to {partial}: try again when it has ended.") from error


def set_back(dest: Path, cid: str) -> None:
    """Make the damaged directory at `dest` the beginning of the next fetch of `cid` to there, which checks all of it
    and fetches what is wrong. What cannot be moved is removed. Raises InvalidCid, OSError."""
    partial = _partial(dest, Cid.parse(cid))
    if dest.is_symlink() or not dest.is_dir():
        dest.unlink()
        return
    try:
        partial.mkdir(mode=0o700)
        dest.rename(partial / "content")
    except OSError:
        shutil.rmtree(dest)


def _partial(dest: Path, cid: Cid) -> Path:
    """Return the directory beside `dest` in which `cid` is put together."""
    return dest.with_name(f".{dest.name[:40]}.{cid.digest.hex()[:16]}.partial")
