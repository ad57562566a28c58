"""The log file of a role: every notice and alert as a JSON object on a line, in files that are rotated."""

from __future__ import annotations

import errno
import json
import logging
import logging.handlers
import time
from collections.abc import Callable, Mapping
from pathlib import Path

FILE_BYTES = 10_000_000
"""Size at which a new file is begun."""

FILES = 10
"""Files that are kept, with the one that is written: 100 MB at most."""

_SECONDS_BETWEEN_STEPS = 60.0
"""Training steps are many: one in this time is put on record."""


class LogFile:
    """The file `path`, and `path.1` to `path.9` with what was before. Raises OSError if it cannot be opened; later, a
    disk that is full costs lines and never ends the role. Thread-safe."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        if path.is_fifo():
            raise OSError(errno.EINVAL, "it is a pipe, whose writer may wait for ever")
        self._handler = _Handler(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._clock = clock
        self._next: dict[object, float] = {}

    @property
    def lost(self) -> int:
        """Lines that could not be written."""
        return self._handler.lost

    def write(self, entry: Mapping[str, object]) -> None:
        """Writes an object; of those about progress (`what` is `step` or `transfer`) only some."""
        if (what := entry.get("what")) in ("step", "transfer"):
            now = self._clock()
            if now < self._next.get(what, float("-inf")):
                return
            self._next[what] = now + _SECONDS_BETWEEN_STEPS
        line = logging.LogRecord("tiebreak", logging.INFO, "", 0, json.dumps(entry), None, None)
        self._handler.handle(line)

    def close(self) -> None:
        self._handler.close()


class _Handler(logging.handlers.RotatingFileHandler):
    lost = 0

    def handleError(self, record: logging.LogRecord) -> None:
        """Counts what is lost; the standard library would print a traceback for each line."""
        self.lost += 1
