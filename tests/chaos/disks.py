"""A role's directory that is full or read-only for a while: a small file system of its own where this process may
mount one, and in any case a hook in the role's process that refuses to open files for writing."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

_MIB = 64
_CLONE_NEWNS = 0x20000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(["os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree"])


def own_mounts() -> bool:
    """Gives this process mounts of its own, which end with it; False where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(_CLONE_NEWNS) != 0:
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, check=False).returncode == 0


class Disk:
    """The disk below `directory`, which is made."""

    def __init__(self, directory: Path, *, mounted: bool) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self._sign = directory.with_name(directory.name + ".disk")
        options = ["mount", "-t", "tmpfs", "-o", f"size={_MIB}m", "none", str(directory)]
        self._mounted = mounted and subprocess.run(options, capture_output=True, check=False).returncode == 0

    @property
    def sign(self) -> Path:
        """The file that tells the hook what is wrong with the disk."""
        return self._sign

    def fill(self) -> None:
        if not self._mounted:
            self._say("full")
            return
        try:
            with (self.directory / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
        except OSError:
            pass  # full now, or read-only before

    def make_read_only(self) -> None:
        remount = ["mount", "-o", "remount,ro", str(self.directory)]
        # Refused while a file is open for writing, in which case the hook has to do.
        if not self._mounted or subprocess.run(remount, capture_output=True, check=False).returncode != 0:
            self._say("read-only")

    def heal(self) -> None:
        self._sign.unlink(missing_ok=True)
        if self._mounted:
            remount = ["mount", "-o", "remount,rw", str(self.directory)]
            subprocess.run(remount, capture_output=True, check=False)
            (self.directory / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", str(self.directory)], capture_output=True, check=False)

    def _say(self, what: str) -> None:
        part = self._sign.with_suffix(".partial")
        part.write_text(what)
        part.replace(self._sign)


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
