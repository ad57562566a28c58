"""A role's directory that is full or read-only for a while: a hook in the role's process refuses to open its files for
writing."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(["os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree"])


class Disk:
    """The disk below `directory`, which is made. sign: the file that tells the hook what is wrong with the disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sign = directory.with_name(directory.name + ".disk")
        directory.mkdir(parents=True)

    def fill(self) -> None:
        self._say("full")

    def make_read_only(self) -> None:
        self._say("read-only")

    def heal(self) -> None:
        self.sign.unlink(missing_ok=True)

    def _say(self, what: str) -> None:
        part = self.sign.with_suffix(".partial")
        part.write_text(what)
        part.replace(self.sign)


def obey(directory: Path, sign: Path) -> None:
    """Makes, in a role's process, every attempt to write below `directory` fail while `sign` says so."""
    below, errors = str(directory) + os.sep, {"full": errno.ENOSPC, "read-only": errno.EROFS}

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & _WRITING) if isinstance(flags, int) else isinstance(mode, str) and mode != "r"
        elif event in _CHANGES:
            path, writes = arguments[0], True
        else:
            return
        if not writes or not isinstance(path, (str, bytes, os.PathLike)):
            return
        if os.path.abspath(os.fsdecode(path)).startswith(below):  # noqa: PTH100  PurePath would call the hook again
            try:
                descriptor = os.open(sign, os.O_RDONLY)
            except FileNotFoundError:
                return
            what = os.read(descriptor, 64).decode()
            os.close(descriptor)
            number = errors.get(what, errno.EIO)
            raise OSError(number, os.strerror(number), os.fsdecode(path))

    sys.addaudithook(hook)
