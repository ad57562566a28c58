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

from tiebreak.store.staging import taken
from tiebreak.store.store_errors import NoSpace

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ATTEMPTS = 3


class PrivateRoom:
    """A directory, and the most bytes that its files may take together. `stop`: is set by a signal, for threads that
    would be waited for."""

    def __init__(self, path: Path, most: int, stop: threading.Event) -> None:
        self.path, self.most, self.stop = path, most, stop

    def require_bounded(self) -> None:
        """Raises NoSpace if the files take more. Files that vanish meanwhile are not counted."""
        used = sum(taken(Path(room) / name) for room, _, names in os.walk(self.path) for name in names)
        if used > self.most:
            raise NoSpace(f"the temporary files take {used} bytes, and {self.most} are allowed: raise --max-size.")


@contextmanager
def private_room(prefix: str, most: int) -> Iterator[PrivateRoom]:
    """A new directory below TMPDIR that nobody else can read, until the block ends: by return, error, Ctrl-C, SIGTERM
    or SIGHUP, which all become KeyboardInterrupt. Temporary files of this process and of those that it starts lie in
    it, too, so that one that was killed leaves nothing behind."""

    stop = threading.Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        stop.set()
        raise KeyboardInterrupt

    with _handled(interrupted):
        path = Path(tempfile.mkdtemp(prefix=prefix))
        variable, directory = os.environ.get("TMPDIR"), tempfile.tempdir
        os.environ["TMPDIR"] = tempfile.tempdir = str(path)
        try:
            yield PrivateRoom(path, most, stop)
        finally:
            # A second Ctrl-C must not end the removal.
            with _handled(signal.SIG_IGN):
                tempfile.tempdir = directory
                if variable is None:
                    del os.environ["TMPDIR"]
                else:
                    os.environ["TMPDIR"] = variable
                _remove(path)


@contextmanager
def _handled(handler: Any) -> Iterator[None]:
    """A block in which a handler answers the signals, but for those that this process is to ignore (nohup)."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        kept = {number: signal.getsignal(number) for number in _SIGNALS}
        before = {number: one for number, one in kept.items() if one is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


def _remove(path: Path) -> None:
    for _ in range(_ATTEMPTS):
        # What a dying worker still writes comes in between.
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
