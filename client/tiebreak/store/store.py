"""The interface of every content store, and the base of stores: files, directories and parts of files on top of blocks.

A store brings `block`, and `adding` if it can be written to; all else is the same in all of them. Of a part of a long
file only the blocks are fetched that it lies in, and the nodes above them.
"""

from __future__ import annotations

import io
import itertools
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tiebreak.store.dag_builder import Sink, build_directory, build_file, open_regular
from tiebreak.store.dag_reader import (
    MAX_FILE_DEPTH,
    Fetch,
    Plan,
    as_file,
    count_block,
    entries,
    limited,
    most_blocks,
    promised_size,
    read_file,
    verified,
    write_directory,
    write_file,
)
from tiebreak.store.dagpb import RAW, Cid, Link, UnixFsNode, decode
from tiebreak.store.store_errors import CorruptBlock, MalformedContent
from tiebreak.store.transfers import Meter, OnTransfer, untold

_MOST_NODES = 256
"""Inner nodes that are kept: those above 11 GB of a file."""

Leaf = Callable[[Cid, int, int], bytes]
"""Gives bytes of a raw block: its identifier, the first byte, and their number. Raises as `Fetch`."""

IsRight = Callable[[bytes], bool]
"""Whether the bytes of a part are the wanted ones, as far as the caller can tell beside their hashes."""


def anything(data: bytes) -> bool:
    """True, for a caller that knows nothing about the bytes."""
    return True


class Ranges:
    """A reader of parts of files, which keeps the inner nodes that it has seen last. Threads may share it."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[Cid, UnixFsNode] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, fetch: Fetch, leaf: Leaf, root: Cid, first: int, size: int) -> bytes:
        """`size` bytes of a file from byte `first` on. Raises MalformedContent for blocks that are no file, or for a
        shorter one, and what `fetch` and `leaf` raise."""
        if root.codec == RAW:
            parts = leaf(root, first, size)
        else:
            node = self._node(fetch, root)
            if first + size > promised_size(root, node):
                raise self._too_short(root, first + size)
            parts = b"".join(self._parts(fetch, leaf, root, node, first, size, 0, [most_blocks(size)]))
        if len(parts) != size:
            raise self._too_short(root, first + size)
        return parts

    def _parts(
        self,
        fetch: Fetch,
        leaf: Leaf,
        cid: Cid,
        node: UnixFsNode,
        first: int,
        size: int,
        depth: int,
        blocks_left: list[int],
    ) -> Iterator[bytes]:
        """Bytes of a node that has them, in pieces."""
        if not node.links:
            yield (node.data or b"")[first : first + size]
            return
        if depth == MAX_FILE_DEPTH:
            raise MalformedContent(
                f"the file of block {cid} nests deeper than {MAX_FILE_DEPTH} levels: ask its publisher to add it again."
            )
        ends = list(itertools.accumulate(node.block_sizes))
        for link, below, end in zip(node.links, node.block_sizes, ends, strict=True):
            begin = end - below
            low, high = max(first, begin), min(first + size, end)
            if low >= high:
                continue
            count_block(cid, blocks_left)
            if link.cid.codec == RAW:
                yield leaf(link.cid, low - begin, high - low)
                continue
            child = self._node(fetch, link.cid)
            if promised_size(link.cid, child) != below:
                raise MalformedContent(
                    f"file block {link.cid} has another size than its parent promises: ask its publisher to add it "
                    "again."
                )
            yield from self._parts(fetch, leaf, link.cid, child, low - begin, high - low, depth + 1, blocks_left)

    def _node(self, fetch: Fetch, cid: Cid) -> UnixFsNode:
        with self._lock:
            if cid in self._nodes:
                self._nodes.move_to_end(cid)
                return self._nodes[cid]
        node = as_file(cid, fetch(cid))
        if node.links:
            with self._lock:
                self._nodes[cid] = node
                while len(self._nodes) > _MOST_NODES:
                    self._nodes.popitem(last=False)
        return node

    def _too_short(self, cid: Cid, end: int) -> MalformedContent:
        return MalformedContent(f"the file {cid} has no {end} bytes: check the identifier.")


class ContentStore(Protocol):
    """Publishes and fetches content by CID (strings as `ipfs add --cid-version=1` prints
    them: ``bafy...``, ``bafk...``; ``Qm...`` of others is read, too).

    The same bytes get the same CID from every implementation. Everything added is pinned. Nothing fetched is
    trusted: all readers check every block against its CID and raise `StoreError`s (see
    `tiebreak.store.store_errors`). `within`: seconds that a fetch may take in all (None: any); FetchTooSlow after that.
    What a full or read-only disk prevents raises StoreUnavailable.
    """

    def add_bytes(self, data: bytes) -> str:
        """Publishes bytes as a file and returns its CID."""

    def add_file(self, path: Path) -> str:
        """Publishes a regular file and returns its CID. Raises UnsupportedFile for anything else."""

    def add_directory(self, path: Path) -> str:
        """Publishes a directory tree, hidden files included, and returns its CID.

        Raises UnsupportedFile (symbolic links, devices), UnsafeName, ContentTooLarge (more entries in one
        directory than fit a block).
        """

    def address_of_file(self, path: Path) -> str:
        """The CID that `add_file` would return; nothing is published. Raises UnsupportedFile."""

    def address_of_directory(self, path: Path) -> str:
        """The CID that `add_directory` would return; nothing is published. Raises as `add_directory`."""

    def read(self, cid: str, *, max_bytes: int, within: float | None = None) -> bytes:
        """Returns the content of a file of at most `max_bytes` bytes."""

    def get_file(self, cid: str, dest: Path, *, max_bytes: int, within: float | None = None) -> None:
        """Writes a file to `dest`, which must not exist and appears whole or not at all."""

    def get_directory(
        self, cid: str, dest: Path, plan: Plan, *, max_bytes: int, within: float | None = None
    ) -> list[str]:
        """Writes the files of a directory that `plan` names to `dest`, which must not exist and appears whole or not
        at all. Returns the names of what is left out, which are a stranger's.

        `max_bytes` bounds the sum of the file sizes. Raises also what the plan raises.
        """

    def pin(self, cid: str) -> None:
        """Protects content from garbage collection, fetching it first where the store can. Idempotent.

        Raises ContentMissing when a block of it cannot be had.
        """

    def unpin(self, cid: str) -> None:
        """Withdraws the protection. Idempotent."""

    def has(self, cid: str) -> bool:
        """True if the root block is in this store, without asking anybody else."""

    def mend(self, held: frozenset[str] = frozenset()) -> None:
        """Tries again what could not be stored everywhere. `held`: roots that should be in every store."""

    def tidy(self) -> None:
        """Frees the space of what is pinned no more, where the store does not do that by itself."""


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
