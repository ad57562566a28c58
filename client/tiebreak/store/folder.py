"""The embedded content store: a folder of blocks that any number of processes may share.

    <root>/blocks/ab/cd/<sha256 in hex>   one block a file, found by the first four hex digits
    <root>/pins/<cid>                     one empty file a pinned root
    <root>/lock                           shared while adding, exclusive while collecting garbage

A block appears whole, children before their parents; killing a process at any instant leaves at most a temporary file
and unpinned blocks, which `collect_garbage` removes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from roundlog.storage import BESIDE, lock_file, open_regular, replace_file, require_regular, sync_directory

from tiebreak.store.dagpb import MAX_BLOCK, Cid, decode
from tiebreak.store.store import Build, Store, blocks
from tiebreak.store.store_errors import ContentMissing, CorruptBlock, StoreUnavailable, unusable

_OURS = re.compile(rf"[0-9a-f]{{64}}|{BESIDE}.*")
"""Names of files that are put among the blocks."""


class FolderStore(Store):
    """A `Store` in the folder `root`, made if it is not there. `stop`: ends every fetch at once. Raises
    StoreUnavailable when it cannot be used.
    """

    def __init__(self, root: Path, *, stop: threading.Event | None = None) -> None:
        super().__init__(f"the content store {root}", stop)
        self._root = root
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

    def add_blocks(self, build: Build) -> Cid:
        touched: set[Path] = set()

        def put(cid: Cid, block: bytes) -> None:
            with self._writing():
                touched.update(self._put(cid, block))

        with self._lock(shared=True):
            root = build(put)
            with self._writing():
                for directory in touched:
                    sync_directory(directory)
                self._record_pin(root)
        return root

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        try:
            with open_regular(self._path(cid)) as file:
                block = file.read(MAX_BLOCK + 1)
        except FileNotFoundError as error:
            raise ContentMissing(
                f"the content store {self._root} has no block {cid}: add the content there or use another store."
            ) from error
        except OSError as error:
            raise unusable(f"the content store {self._root} cannot read block {cid}", error) from error
        return self.checked(cid, block)

    def pin(self, cid: str) -> None:
        root = Cid.parse(cid)
        with self._lock(shared=True):
            for _ in blocks(self.block, root):
                pass
            with self._writing():
                self._record_pin(root)

    def unpin(self, cid: str) -> None:
        (self._pins / str(Cid.parse(cid))).unlink(missing_ok=True)

    def has(self, cid: str) -> bool:
        try:
            self.block(Cid.parse(cid))
        except (ContentMissing, CorruptBlock):
            return False
        return True

    def pins(self) -> list[str]:
        """Return the pinned roots, sorted."""
        return sorted(entry.name for entry in self._pins.iterdir())

    def tidy(self) -> None:
        self.collect_garbage()

    def collect_garbage(self) -> int:
        """Remove every block that no pin reaches and every leftover of killed processes; return how many
        files went. Nothing else is removed: others who share the folder may have put links there that lead elsewhere.

        Waits for additions in progress. A pinned tree with a missing or damaged node stops the collection
        with ContentMissing or CorruptBlock before anything is removed.
        """
        with self._lock(shared=False):
            roots = [Cid.parse(root) for root in self.pins()]
            kept = {root.digest.hex() for root in roots}
            for root in roots:
                for cid, block in blocks(self.block, root, leaves=False):
                    kept |= {link.cid.digest.hex() for link in decode(block, str(cid)).links}
            garbage = [path for path in self._files() if path.name not in kept]
            for path in garbage:
                path.unlink()
        return len(garbage)

    def _files(self) -> Iterator[Path]:
        """Yield the files of blocks, and what additions have left of them."""
        for directory in self._blocks.glob("*/*"):
            if not directory.is_symlink() and not directory.parent.is_symlink() and directory.is_dir():
                yield from (path for path in directory.iterdir() if _OURS.fullmatch(path.name) and not path.is_dir())

    def _record_pin(self, root: Cid) -> None:
        (self._pins / str(root)).touch()
        sync_directory(self._pins)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unusable(f"the content store {self._root} cannot take the content", error) from error

    @contextmanager
    def _lock(self, *, shared: bool) -> Iterator[None]:
        path = self._root / "lock"
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(lock_file(path, shared=shared, wait=True))
                require_regular(lock.fileno(), path)
            except OSError as error:
                raise unusable(f"the content store {self._root} cannot be used", error) from error
            yield

    def _put(self, cid: Cid, block: bytes) -> tuple[Path, ...]:
        """Write a block, unless it is there; return the directories that were changed."""
        path = self._path(cid)
        # Comparing instead of trusting the name heals a block that was damaged on disk.
        if path.is_file() and path.stat().st_size == len(block) and path.read_bytes() == block:
            return ()
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path, shared=True, sync_name=False) as file:
            file.write(block)
        return path.parent, path.parent.parent, self._blocks

    def _path(self, cid: Cid) -> Path:
        name = cid.digest.hex()
        return self._blocks / name[:2] / name[2:4] / name
