"""The embedded content store: a folder of blocks that any number of processes may share.

    <root>/blocks/ab/cd/<sha256 in hex>   one block a file, found by the first four hex digits
    <root>/pins/<cid>                     one empty file a pinned root
    <root>/lock                           shared while adding, exclusive while collecting garbage

A block appears by write, fsync and rename, children before their parents; killing a process at any instant
leaves at most a temporary file and unpinned blocks, which `collect_garbage` removes.
"""

from __future__ import annotations

import fcntl
import io
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tiebreak.store.builder import build_directory, build_file, open_regular
from tiebreak.store.cid import Cid
from tiebreak.store.dagpb import MAX_BLOCK, Link
from tiebreak.store.errors import ContentMissing, CorruptBlock, StoreUnavailable, unusable
from tiebreak.store.reader import Fetch, limited, reachable, read_file, verified, write_directory, write_file


class FolderStore:
    """A `ContentStore` in the folder `root`, made if it is not there. Raises StoreUnavailable when it cannot
    be used.
    """

    def __init__(self, root: Path, *, stop: threading.Event | None = None) -> None:
        """stop: ends every fetch at once."""
        self._root = root
        self._stop = stop
        self._blocks = root / "blocks"
        self._pins = root / "pins"
        try:
            self._blocks.mkdir(parents=True, exist_ok=True)
            self._pins.mkdir(exist_ok=True)
            (root / "lock").touch()
        except OSError as error:
            raise StoreUnavailable(
                f"the content store {root} cannot be used ({error.strerror}): choose a folder that you may write to."
            ) from error

    def add_bytes(self, data: bytes) -> str:
        return self._add_stream(io.BytesIO(data))

    def add_file(self, path: Path) -> str:
        with open_regular(path) as stream:
            return self._add_stream(stream)

    def add_directory(self, path: Path) -> str:
        with self._lock(fcntl.LOCK_SH), self._writing():
            batch = _Batch(self._blocks)
            return self._finish(batch, build_directory(path, batch.put))

    def address_of_file(self, path: Path) -> str:
        with open_regular(path) as stream:
            return str(build_file(stream, lambda cid, block: None).cid)

    def address_of_directory(self, path: Path) -> str:
        return str(build_directory(path, lambda cid, block: None).cid)

    def read(self, cid: str, *, max_bytes: int, within: float | None = None) -> bytes:
        return b"".join(read_file(self._fetching(cid, within), Cid.parse(cid), max_bytes))

    def get_file(self, cid: str, dest: Path, *, max_bytes: int, within: float | None = None) -> None:
        write_file(self._fetching(cid, within), Cid.parse(cid), dest, max_bytes)

    def get_directory(self, cid: str, dest: Path, *, max_bytes: int, within: float | None = None) -> None:
        write_directory(self._fetching(cid, within), Cid.parse(cid), dest, max_bytes)

    def pin(self, cid: str) -> None:
        root = Cid.parse(cid)
        with self._lock(fcntl.LOCK_SH):
            for _ in reachable(self._fetch, root):
                pass
            with self._writing():
                self._record_pin(root)

    def unpin(self, cid: str) -> None:
        (self._pins / str(Cid.parse(cid))).unlink(missing_ok=True)

    def has(self, cid: str) -> bool:
        try:
            self._fetch(Cid.parse(cid))
        except (ContentMissing, CorruptBlock):
            return False
        return True

    def pins(self) -> list[str]:
        """The pinned roots, sorted."""
        return sorted(entry.name for entry in self._pins.iterdir())

    def collect_garbage(self) -> int:
        """Removes every block that no pin reaches and every leftover of killed processes; returns how many
        files went.

        Waits for additions in progress. A pinned tree with a missing or damaged block stops the collection
        with ContentMissing or CorruptBlock before anything is removed.
        """
        with self._lock(fcntl.LOCK_EX):
            kept = {block.digest.hex() for root in self.pins() for block in reachable(self._fetch, Cid.parse(root))}
            doomed = [path for path in self._blocks.glob("*/*/*") if path.name not in kept]
            for path in doomed:
                path.unlink()
        return len(doomed)

    def _add_stream(self, stream: BinaryIO) -> str:
        with self._lock(fcntl.LOCK_SH), self._writing():
            batch = _Batch(self._blocks)
            return self._finish(batch, build_file(stream, batch.put))

    def _finish(self, batch: _Batch, root: Link) -> str:
        batch.sync()
        self._record_pin(root.cid)
        return str(root.cid)

    def _record_pin(self, root: Cid) -> None:
        (self._pins / str(root)).touch()
        _sync_directory(self._pins)

    def _fetching(self, cid: str, within: float | None) -> Fetch:
        return limited(self._fetch, cid, within, self._stop)

    def _fetch(self, cid: Cid) -> bytes:
        path = _block_path(self._blocks, cid)
        try:
            with path.open("rb") as file:
                block = file.read(MAX_BLOCK + 1)
        except FileNotFoundError as error:
            raise ContentMissing(
                f"the content store {self._root} has no block {cid}: add the content there or use another store."
            ) from error
        except OSError as error:
            raise unusable(f"the content store {self._root} cannot read block {cid}", error) from error
        return verified(cid, block, f"the content store {self._root}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unusable(f"the content store {self._root} cannot take the content", error) from error

    @contextmanager
    def _lock(self, mode: int) -> Iterator[None]:
        try:
            handle = (self._root / "lock").open("rb")
        except OSError as error:
            raise unusable(f"the content store {self._root} cannot be used", error) from error
        with handle:
            fcntl.flock(handle, mode)
            yield


class _Batch:
    """The blocks that one addition writes; `sync` makes their directory entries durable."""

    def __init__(self, blocks: Path) -> None:
        self._blocks = blocks
        self._touched: set[Path] = set()

    def put(self, cid: Cid, block: bytes) -> None:
        path = _block_path(self._blocks, cid)
        # Comparing instead of trusting the name heals a block that was damaged on disk.
        if path.is_file() and path.stat().st_size == len(block) and path.read_bytes() == block:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix="tmp-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(block)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).rename(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._touched.update((path.parent, path.parent.parent, self._blocks))

    def sync(self) -> None:
        for directory in self._touched:
            _sync_directory(directory)


def _block_path(blocks: Path, cid: Cid) -> Path:
    name = cid.digest.hex()
    return blocks / name[:2] / name[2:4] / name


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
