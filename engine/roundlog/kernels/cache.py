"""Cache of compiled loops between processes: in a place that is ours alone, named after the sources they are made of,
in files that are checked before they are read.

numba unpickles what it finds in its cache, so whoever can write there can run code here. And it looks at the file of a
loop alone to tell whether its machine code is fresh, although loops contain constants and code from other files.
"""

from __future__ import annotations

import atexit
import os
import pickle
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
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
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_CHECKSUM = sha256().digest_size


def not_ours_alone(path: Path) -> str | None:
    """Reason why somebody else could put a file into a directory, or another directory into its place: one clause. None
    if nobody but this user and root can. The directory need not exist; what exists of the way to it counts."""
    if os.name != "posix":
        return None
    # Links on the way stay: they are looked at, too.
    absolute = Path.cwd() / path
    ways = {absolute, absolute.resolve()}
    for step in sorted({step for way in ways for step in (way, *way.parents)}):
        try:
            # A link is as good as the directory that holds it, and as its owner.
            status, itself = step.lstat(), step in ways and step.resolve() == step
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{step} cannot be looked at: {error.strerror}"
        if status.st_uid not in ((os.geteuid(),) if itself else (os.geteuid(), 0)):
            return f"{step} belongs to user {status.st_uid}"
        if stat.S_ISLNK(status.st_mode):
            continue
        if not stat.S_ISDIR(status.st_mode):
            return f"{step} is no directory"
        # In a sticky directory nobody renames what belongs to another.
        if status.st_mode & _OTHERS_WRITE and (itself or not status.st_mode & stat.S_ISVTX):
            return f"others can write to {step}"
    return None


def _holds_foreign_files(place: Path) -> bool:
    """Whether anything in a place that is ours alone came there when it was not."""
    for folder, inside, names in os.walk(place):
        for path in (Path(folder), *(Path(folder, name) for name in (*inside, *names))):
            status = path.lstat()
            kind = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
            if not kind or status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
                return True
    return False


def _taken(parent: Path, name: str, stale: str) -> str | None:
    """Make the place `name` in a directory, and throw away what earlier sources have left beside it, all that matches
    the pattern `stale`. Returns why the place cannot be used, if it cannot."""
    place = parent / name
    try:
        if (why := not_ours_alone(place)) is not None:
            return why
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and _holds_foreign_files(place):
            shutil.rmtree(place)
            place.mkdir(mode=0o700)
        # A umask or an access list may have made the new directory writable for others, so it is looked at again.
        if (why := not_ours_alone(place)) is not None:
            return why
        tempfile.TemporaryFile(dir=place).close()
        for other in parent.glob(stale):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)
    except OSError as error:
        return f"{place} cannot be used: {error.strerror}"
    return None


def place_for(package: Path, digest: str, chosen: str) -> Path:
    """The directory for the loops of a package (its folder) whose sources have this digest. chosen: the directory that
    the user wants it in, or nothing. The first of these that is ours alone: in what was chosen, in the package, in the
    user's cache; and where none is, one that lives as long as this process."""
    # Several installations may share a directory.
    ours = f"{_PREFIX}{sha256(os.fsencode(package)).hexdigest()[:8]}_"
    name, inside = ours + digest[:16], package / "__pycache__"
    shared = [Path(chosen)] if chosen else []
    refused = []
    for parent in (*shared, inside, Path(appdirs.AppDirs(appname="roundlog", appauthor=False).user_cache_dir)):
        why = _taken(parent, name, f"{_PREFIX if parent == inside else ours}*")
        if why is None:
            return parent / name
        refused.append(why)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(partial(_remove, made, os.getpid()))
    warn(
        f"compiled loops are not kept ({'; '.join(dict.fromkeys(refused))}), so every process compiles them anew: set "
        "NUMBA_CACHE_DIR to a directory that only you can write to",
        stacklevel=2,
    )
    return made


def _remove(made: Path, process: int) -> None:
    """Remove the directory, but not in a child that was forked: its parent still needs it."""
    if os.getpid() == process:
        shutil.rmtree(made, ignore_errors=True)


class CheckedFiles(caching.IndexDataCacheFile):  # type: ignore[misc]
    """numba's files of one loop, each behind the SHA-256 of its content. A damaged one is deleted, and the loop is
    compiled anew: a flipped bit in machine code would be computed with. Where nothing can be written, nothing is
    kept."""

    def save(self, key: Any, data: Any) -> None:
        # numba counts its files, so two processes may give one number to two overloads. Where both write the index,
        # one overload is left out, and compiled anew.
        name = self._data_name(int.from_bytes(sha256(self._dump(key)).digest()[:8], "big"))
        with suppress(OSError):
            self._save_data(name, data)
            self._save_index({**self._load_index(), key: name})

    def _load_index(self) -> Any:
        content = checked_content(Path(self._index_path))
        if content is None:
            return {}
        version, stamp, overloads = pickle.loads(content)  # noqa: S301 (the place is ours alone)
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: Any) -> None:
        self._write(self._index_path, (self._version, self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        content = checked_content(Path(self._data_path(name)))
        return None if content is None else pickle.loads(content)  # noqa: S301 (as above)

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _write(self, path: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(path) as file:
            file.write(sha256(content).digest() + content)


def checked_content(path: Path) -> bytes | None:
    """Content of a file behind its checksum; None if there is none, or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[_CHECKSUM:]
    if sha256(content).digest() == data[:_CHECKSUM]:
        return content
    with suppress(OSError):
        path.unlink()
    return None


@contextmanager
def kept_in(place: Path) -> Iterator[None]:
    """Loops that are defined while this lasts are kept in that place."""
    # numba's settings are made while it is imported.
    settings: Any = config
    files, before = caching.IndexDataCacheFile, (settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES)
    # Functions are given their places when they are defined.
    settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = str(place), "UserProvidedCacheLocator"
    caching.IndexDataCacheFile = CheckedFiles
    try:
        yield
    finally:
        settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = before
        caching.IndexDataCacheFile = files
