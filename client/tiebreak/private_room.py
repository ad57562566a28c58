"""A temporary directory of this process alone, which ends with the work that it is for, however that ends."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tiebreak.store.errors import NoSpace
from tiebreak.store.space import taken

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ATTEMPTS = 3


class PrivateRoom:
    """A directory, and the most bytes that its files may take together. `stop`: is set by a signal, for threads that
    would be waited for."""

    def __init__(self, path: Path, most: int) -> None:
        self.path, self.most = path, most
        self.stop = threading.Event()

    def require_bounded(self) -> None:
        """Raises NoSpace if the files take more. Files that vanish meanwhile are not counted."""
        used = sum(taken(Path(room) / name) for room, _, names in os.walk(self.path) for name in names)
        if used > self.most:
            raise NoSpace(f"the temporary files take {used} bytes, and {self.most} are allowed: raise --max-size.")


@contextmanager
def private_room(prefix: str, most: int) -> Iterator[PrivateRoom]:
    """A new directory below TMPDIR that nobody else can read, until the block ends: by return, error, Ctrl-C, SIGTERM
    or SIGHUP, which all become KeyboardInterrupt. Temporary files of this process and of those that it
    starts lie in it, too, so that one that was killed leaves nothing behind."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        room.stop.set()
        raise KeyboardInterrupt

    path = Path(tempfile.mkdtemp(prefix=prefix))
    room = PrivateRoom(path, most)
    is_main = threading.current_thread() is threading.main_thread()
    handlers: dict[signal.Signals, Any] = {}
    if is_main:
        handlers = {number: signal.signal(number, interrupted) for number in _SIGNALS}
    variable, directory = os.environ.get("TMPDIR"), tempfile.tempdir
    os.environ["TMPDIR"] = tempfile.tempdir = str(path)
    try:
        yield room
    finally:
        if is_main:
            # A second Ctrl-C must not end the removal.
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        tempfile.tempdir = directory
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable
        for _ in range(_ATTEMPTS):
            # What a dying worker still writes comes in between.
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                break
        for number, handler in handlers.items():
            signal.signal(number, handler)
