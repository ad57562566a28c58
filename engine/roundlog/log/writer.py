"""Writes the log of one checkpoint interval while the next step is computed."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import zstandard

from roundlog.commitments import leaf_hash
from roundlog.log.entries import LogError, PayloadError
from roundlog.log.layout import LogHeader, PayloadFormat, SegmentHeader, pack_footer
from roundlog.log.payload import ENTRIES
from roundlog.storage import commit_file, partial_path

_COMPRESSION_LEVEL = 3
_MAX_PENDING = 2
"""Steps in memory that are not on disk yet; `append` waits when there are more."""


class ClosedLog(NamedTuple):
    """A finished log file: its log root (32 bytes) and its size."""

    root: bytes
    bytes: int


class LogWriter:
    """The log file at `path`, written by a thread of its own and renamed to `path` when it is whole.

    Used as a context manager it closes at the end of the block, and leaves no file if the block raises. One
    that is abandoned (or whose process dies) leaves no file at `path` either.
    """

    def __init__(self, path: Path, header: LogHeader, form: PayloadFormat[Any] = ENTRIES) -> None:
        """form: of the payloads. Raises LogError if the file cannot be created, and ValueError for the header of a log
        of another kind."""
        if header.kind != form.kind:
            raise ValueError(f"{path} is for payloads of kind {int(header.kind)}, not {int(form.kind)}")
        self.path = path
        self._form = form
        self.header = header
        self._partial = partial_path(path)
        try:
            self._file = self._partial.open("wb")
            self._file.write(header.pack())
        except OSError as error:
            raise LogError(path, None, f"cannot be written: {error.strerror}") from error
        self._offsets: list[int] = []
        self._segments: list[SegmentHeader] = []
        self._compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rounding log")
        self._pending: deque[Future[None]] = deque()
        self._next_step = header.first_step
        self._closed: ClosedLog | None = None

    def append(self, step: int, step_log: Mapping[int, Any]) -> None:
        """Hands over the log of the next step, entries by operator index, or what another format has for them; its
        arrays have to stay as they are from now on.

        Raises LogError if it is not the next step, or an earlier step could not be written.
        """
        if self._file.closed:
            raise LogError(self.path, None, "is closed")
        if step != self._next_step or step >= self.header.first_step + self.header.steps:
            self.abort()
            raise LogError(self.path, None, f"step {step} is not the step that this log needs next")
        self._next_step += 1
        self._pending.append(self._thread.submit(self._write, step, lambda: self._form.encode(step_log)))
        self._wait(_MAX_PENDING)

    def close(self) -> ClosedLog:
        """Writes the footer and gives the file its name, durably. A second call returns the same.

        Raises LogError if steps are missing or a step could not be written; no file is left then.
        """
        if self._closed is not None:
            return self._closed
        if self._file.closed:
            raise LogError(self.path, None, "is closed")
        self._wait(0)
        if (missing := self.header.first_step + self.header.steps - self._next_step) > 0:
            self.abort()
            raise LogError(self.path, None, f"lacks its last {missing} of {self.header.steps} steps")
        self._thread.shutdown()
        footer, root = pack_footer(self.header, self._offsets, self._segments)
        try:
            self._file.write(footer)
            size = self._file.tell()
            self._file.close()
            commit_file(self._partial, self.path)
        except OSError as error:
            self.abort()
            raise LogError(self.path, None, f"cannot be written: {error.strerror}") from error
        self._closed = ClosedLog(root, size)
        return self._closed

    def abort(self) -> None:
        """Gives up, and removes what has been written. Does nothing once the log is closed."""
        if self._closed is not None:
            return
        self._thread.shutdown(cancel_futures=True)
        with suppress(OSError):  # of a full disk, for instance, which is why the log is given up
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _wait(self, pending: int) -> None:
        while len(self._pending) > pending:
            try:
                self._pending.popleft().result()
            except PayloadError as error:
                self.abort()
                raise LogError(self.path, None, str(error)) from error
            except OSError as error:
                self.abort()
                raise LogError(self.path, None, f"cannot be written: {error.strerror}") from error
            except BaseException:
                self.abort()
                raise

    def _write(self, step: int, encode: Callable[[], bytes]) -> None:
        try:
            plain = encode()
        except PayloadError as error:
            raise PayloadError(f"step {step}: {error}") from error
        compressed = self._compressor.compress(plain)
        segment = SegmentHeader(step, len(plain), len(compressed), leaf_hash(compressed))
        self._offsets.append(self._file.tell())
        self._segments.append(segment)
        self._file.write(segment.pack())
        self._file.write(compressed)
