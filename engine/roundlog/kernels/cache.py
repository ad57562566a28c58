"""Cache of compiled loops between processes: in a place of our own, named after the sources they are made of.

numba unpickles what it finds in its cache, so whoever can write there can run code here. And it looks at the file of a
loop alone to tell whether its machine code is fresh, although loops contain constants and code from other files.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from warnings import warn

import numba.core.caching
import numba.misc.appdirs
from numba.core import config

# numba's types do not go as far.
caching: Any = numba.core.caching
appdirs: Any = numba.misc.appdirs

_PREFIX = "roundlog_"


def _is_ours_alone(place: Path) -> bool:
    """Make a directory if it is not there. Return whether it is this user's, and nobody else can write to it."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = place.lstat()
    closed = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and closed


def place_for(package: Path, digest: str, chosen: str) -> Path:
    """The directory for the loops of a package (its folder) whose sources have this digest. chosen: the directory that
    the user wants it in, or nothing. The first of these that is ours alone: in what was chosen, in the package, in the
    user's cache; and where none is, one that lives as long as this process. What earlier sources have left beside it is
    removed."""
    # Several installations may share a directory.
    ours = f"{_PREFIX}{sha256(os.fsencode(package)).hexdigest()[:8]}_"
    place, inside = Path(ours + digest[:16]), package / "__pycache__"
    shared = [Path(chosen)] if chosen else []
    for parent in (*shared, inside, Path(appdirs.AppDirs(appname="roundlog", appauthor=False).user_cache_dir)):
        with suppress(OSError):
            if not _is_ours_alone(parent / place):
                continue
            tempfile.TemporaryFile(dir=parent / place).close()
            for other in parent.glob(f"{_PREFIX if parent == inside else ours}*"):
                if other != parent / place:
                    shutil.rmtree(other, ignore_errors=True)
            return parent / place
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    warn(
        "compiled loops are not kept, so every process compiles them anew: set NUMBA_CACHE_DIR to a directory that you "
        "can write to",
        stacklevel=2,
    )
    return made


class SharedFiles(caching.IndexDataCacheFile):  # type: ignore[misc]
    """numba's files of one loop, which several processes may write at once. A torn one is compiled anew. Where nothing
    can be written, nothing is kept."""

    def save(self, key: Any, data: Any) -> None:
        # numba counts its files, so two processes may give one number to two overloads. Where both write the index,
        # one overload is left out, and compiled anew.
        name = self._data_name(int.from_bytes(sha256(self._dump(key)).digest()[:8], "big"))
        with suppress(OSError):
            self._save_data(name, data)
            self._save_index({**self._load_index(), key: name})

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:  # pickle raises errors of every type
            return {}

    def _load_data(self, name: str) -> Any:
        try:
            return super()._load_data(name)
        except Exception as error:
            raise OSError("no machine code") from error


@contextmanager
def kept_in(place: Path) -> Iterator[None]:
    """Loops that are defined while this lasts are kept in that place."""
    # numba's settings are made while it is imported.
    settings: Any = config
    files, before = caching.IndexDataCacheFile, (settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES)
    # Functions are given their places when they are defined.
    settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = str(place), "UserProvidedCacheLocator"
    caching.IndexDataCacheFile = SharedFiles
    try:
        yield
    finally:
        settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = before
        caching.IndexDataCacheFile = files
