"""The base of stores: files and directories on top of blocks.

A store brings `block`, and `adding` if it can be written to; files and directories are the same in all of them.
"""

from __future__ import annotations

import io
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tiebreak.store.cid import RAW, Cid
from tiebreak.store.dag_builder import Sink, build_directory, build_file, open_regular
from tiebreak.store.dag_reader import Fetch, Plan, entries, limited, read_file, verified, write_directory, write_file
from tiebreak.store.dagpb import Link, decode
from tiebreak.store.ranges import IsRight, Ranges, anything
from tiebreak.store.store_errors import CorruptBlock
from tiebreak.store.transfers import Meter, OnTransfer, untold


class Addition(Protocol):
    """Blocks on their way into a store."""

    def put(self, cid: Cid, block: bytes) -> None:
        """Takes one block."""

    def finish(self, root: Cid) -> None:
        """Pins the root, once all blocks that were taken are stored."""


class Store(ABC):
    """A `ContentStore` of blocks. `name`: what it is called in messages. `stop`: ends every fetch at once.
    `on_transfer`: is told of transfers that take long."""

    writable = True
    """Whether content can be added and pinned."""
    width = 1
    """Blocks that are fetched at a time: more where the way to the store is long."""

    def __init__(self, name: str, stop: threading.Event | None, on_transfer: OnTransfer = untold) -> None:
        self.name, self.stop, self._on_transfer = name, stop, on_transfer
        self._ranges = Ranges()

    @abstractmethod
    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        """The bytes of one block, whose hash was checked. `seconds`: most that it should take (None: what this store
        takes by itself). Raises ContentMissing, CorruptBlock, StoreUnavailable."""

    @abstractmethod
    def adding(self) -> AbstractContextManager[Addition]:
        """A place for the blocks of one addition. Raises StoreUnavailable where nothing can be added."""

    @abstractmethod
    def pin(self, cid: str) -> None:
        """Protects content from garbage collection; as in `ContentStore`."""

    @abstractmethod
    def unpin(self, cid: str) -> None:
        """Withdraws the protection; as in `ContentStore`."""

    @abstractmethod
    def has(self, cid: str) -> bool:
        """Whether the root block is in this store; as in `ContentStore`."""

    def add_bytes(self, data: bytes) -> str:
        return self._add(lambda sink: build_file(io.BytesIO(data), sink), "bytes", len(data))

    def add_file(self, path: Path) -> str:
        with open_regular(path) as stream:
            return self._add(lambda sink: build_file(stream, sink), path.name, os.fstat(stream.fileno()).st_size)

    def add_directory(self, path: Path) -> str:
        return self._add(lambda sink: build_directory(path, sink), path.name, _size(path))

    def address_of_file(self, path: Path) -> str:
        with open_regular(path) as stream:
            return str(build_file(stream, _discard).cid)

    def address_of_directory(self, path: Path) -> str:
        return str(build_directory(path, _discard).cid)

    def mend(self, held: frozenset[str] = frozenset()) -> None:  # noqa: B027 (most stores have nothing to do)
        """Does nothing: there is only one place."""

    def tidy(self) -> None:  # noqa: B027 (most stores have nothing to do)
        """Does nothing: most stores free space by themselves."""

    def read(self, cid: str, *, max_bytes: int, within: float | None = None) -> bytes:
        fetch, root = self._fetching(cid, within), Cid.parse(cid)
        return b"".join(read_file(fetch, root, max_bytes, width=self.width, on_transfer=self._on_transfer))

    def get_file(self, cid: str, dest: Path, *, max_bytes: int, within: float | None = None) -> None:
        fetch, root = self._fetching(cid, within), Cid.parse(cid)
        write_file(fetch, root, dest, max_bytes, width=self.width, on_transfer=self._on_transfer)

    def get_directory(
        self, cid: str, dest: Path, plan: Plan, *, max_bytes: int, within: float | None = None
    ) -> list[str]:
        fetch, root = self._fetching(cid, within), Cid.parse(cid)
        return write_directory(fetch, root, dest, plan, max_bytes, width=self.width, on_transfer=self._on_transfer)

    def entries(self, cid: str, *, within: float | None = None) -> dict[str, str]:
        """Names and CIDs of the entries of a directory. Raises MalformedContent, UnsafeName and as `block`."""
        root = Cid.parse(cid)
        return {name: str(one) for name, one in entries(root, self._fetching(cid, within)(root)).items()}

    def part(
        self, cid: str, first: int, size: int, *, is_right: IsRight = anything, seconds: float | None = None
    ) -> bytes:
        """`size` bytes of a file from byte `first` on, checked by their hashes where the store gives whole blocks, and
        by `is_right` in any case. Only the blocks that they lie in are fetched.

        Raises CorruptBlock for bytes that are not right, MalformedContent for blocks that are no file of so many bytes,
        and as `block`; FetchTooSlow after `seconds`."""
        data = self._part(Cid.parse(cid), first, size, seconds)
        if len(data) != size or not is_right(data):
            raise CorruptBlock(
                f"{self.name} returned other bytes than those from byte {first} of {cid} on: use another store."
            )
        return data

    def _part(self, root: Cid, first: int, size: int, seconds: float | None) -> bytes:
        ends = None if seconds is None else time.monotonic() + seconds

        def leaf(cid: Cid, first: int, size: int) -> bytes:
            within = None if ends is None else ends - time.monotonic()
            fetch = limited(lambda cid, left: self._leaf(cid, first, size, left), str(root), within, self.stop)
            return fetch(cid)

        return self._ranges.read(self._fetching(str(root), seconds), leaf, root, first, size)

    def _leaf(self, cid: Cid, first: int, size: int, seconds: float | None) -> bytes:
        """Bytes of a raw block. Raises as `block`."""
        return self.block(cid, seconds)[first : first + size]

    def checked(self, cid: Cid, block: bytes) -> bytes:
        """The block, if it has the hash of `cid`. Raises CorruptBlock."""
        return verified(cid, block, self.name)

    def _add(self, build: Callable[[Sink], Link], what: str, size: int) -> str:
        meter = Meter(self._on_transfer, "adding", what, size)
        with self.adding() as addition:

            def metered(cid: Cid, block: bytes) -> None:
                addition.put(cid, block)
                meter.add(len(block))

            root = build(metered).cid
            addition.finish(root)
        meter.end()
        return str(root)

    def _fetching(self, cid: str, within: float | None) -> Fetch:
        return limited(self.block, cid, within, self.stop)


def _discard(cid: Cid, block: bytes) -> None:
    """Sink of a build that only computes the CID."""


def _size(path: Path) -> int:
    """Bytes of the files below a directory, as far as they can be counted; only shown."""
    return sum((Path(room) / name).lstat().st_size for room, _, names in os.walk(path) for name in names)


def blocks(fetch: Fetch, cid: Cid, *, leaves: bool = True) -> Iterator[tuple[Cid, bytes]]:
    """Yields every block below and including `cid` once, with its bytes; content is not looked at, only structure.
    `leaves`: whether raw blocks, which have no links, are among them."""
    # By codec, too: a stranger may link to a node as if it were raw bytes, which would hide what is below it.
    seen = {(cid.codec, cid.digest)}
    pending = [cid]
    while pending:
        at = pending.pop()
        if at.codec == RAW and not leaves:
            continue
        block = fetch(at)
        yield at, block
        if at.codec == RAW:
            continue
        for link in decode(block, str(at)).links:
            if (key := (link.cid.codec, link.cid.digest)) not in seen:
                seen.add(key)
                pending.append(link.cid)


def reachable(fetch: Fetch, cid: Cid) -> Iterator[Cid]:
    """Yields every block below and including `cid` once, after it was fetched."""
    return (at for at, _ in blocks(fetch, cid))


def named(fetch: Fetch, cid: Cid) -> Iterator[Cid]:
    """Yields the identifier of every block below and including `cid`, some more than once. Raw blocks are not
    fetched."""
    yield cid
    for _, block in blocks(fetch, cid, leaves=False):
        for link in decode(block, str(cid)).links:
            yield link.cid
