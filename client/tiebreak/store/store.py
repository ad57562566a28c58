"""The base of every content store: files, directories and parts of files on top of blocks."""

from __future__ import annotations

import io
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from tiebreak.store.dag_builder import Sink, build_directory, build_file, open_published
from tiebreak.store.dag_reader import DagReader, Fetch, Plan, as_directory, as_file, read_part
from tiebreak.store.dagpb import MAX_BLOCK, RAW, Cid, UnixFsNode, decode
from tiebreak.store.store_errors import CorruptBlock, FetchTooSlow, MalformedContent, StoreUnavailable

_MOST_NODES = 256
"""Inner nodes that are kept: those above 11 GB of a file."""

IsRight = Callable[[bytes], bool]
"""Whether the bytes of a part are the wanted ones, by a hash that the caller knows."""

Build = Callable[[Sink], Cid]
"""Sends every block of some content to a sink, and returns the root. May be called again, for another store."""


class Store(ABC):
    """A place to publish and fetch content by CID (strings as `ipfs add --cid-version=1` prints them: ``bafy...``,
    ``bafk...``; ``Qm...`` of others is read, too).

    The same bytes get the same CID from every store. Everything added is pinned. Nothing fetched is trusted: every
    block is checked against its CID, and what is wrong raises a `StoreError` (see `tiebreak.store.store_errors`).
    `within`: seconds that a fetch may take in all (None: any); FetchTooSlow after that. What a full or read-only disk
    prevents raises StoreUnavailable.

    `name`: what it is called in messages. `stop`: ends every fetch at once.
    """

    writable = True
    """Whether content can be added and pinned."""
    width = 1
    """Blocks that are fetched at a time: more where the way to the store is long."""

    def __init__(self, name: str, stop: threading.Event | None) -> None:
        self.name, self.stop = name, stop
        self._nodes: dict[Cid, UnixFsNode] = {}

    @abstractmethod
    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        """Return the bytes of one block, whose hash was checked. `seconds`: most that it takes (None: what this store
        takes by itself). Raises ContentMissing, CorruptBlock, StoreUnavailable."""

    @abstractmethod
    def add_blocks(self, build: Build) -> Cid:
        """Store the blocks that `build` sends, then pin the root and return it. Raises StoreUnavailable where nothing
        can be added, and what `build` raises."""

    @abstractmethod
    def pin(self, cid: str) -> None:
        """Protect content from garbage collection, fetching it first where the store can. Idempotent.

        Raises ContentMissing when a block of it cannot be had."""

    @abstractmethod
    def unpin(self, cid: str) -> None:
        """Withdraw the protection. Idempotent."""

    @abstractmethod
    def has(self, cid: str) -> bool:
        """Return whether the root block is in this store, without asking anybody else."""

    def mend(self, held: frozenset[str] = frozenset()) -> None:  # noqa: B027 (a single store has nothing to do)
        """Try again what could not be stored everywhere. `held`: roots that should be in every store."""

    def tidy(self) -> None:  # noqa: B027 (most stores do that by themselves)
        """Free the space of what is pinned no more."""

    def add_bytes(self, data: bytes) -> str:
        """Publish bytes as a file and return its CID."""
        return str(self.add_blocks(lambda sink: build_file(io.BytesIO(data), sink).cid))

    def add_file(self, path: Path) -> str:
        """Publish a regular file and return its CID. Raises UnsupportedFile for anything else."""
        with open_published(path) as stream:

            def build(sink: Sink) -> Cid:
                stream.seek(0)
                return build_file(stream, sink).cid

            return str(self.add_blocks(build))

    def add_directory(self, path: Path) -> str:
        """Publish a directory tree, hidden files included, and return its CID.

        Raises UnsupportedFile (symbolic links, devices), UnsafeName, ContentTooLarge (more entries in one directory
        than fit a block)."""
        return str(self.add_blocks(lambda sink: build_directory(path, sink).cid))

    def address_of_file(self, path: Path) -> str:
        """Return the CID that `add_file` would return; nothing is published. Raises UnsupportedFile."""
        with open_published(path) as stream:
            return str(build_file(stream, _discard).cid)

    def address_of_directory(self, path: Path) -> str:
        """Return the CID that `add_directory` would return; nothing is published. Raises as `add_directory`."""
        return str(build_directory(path, _discard).cid)

    def read(self, cid: str, *, max_bytes: int, within: float | None = None) -> bytes:
        """Return the content of a file of at most `max_bytes` bytes."""
        return self._reader(cid, max_bytes, within).read()

    def get_file(self, cid: str, dest: Path, *, max_bytes: int, within: float | None = None) -> None:
        """Write a file to `dest`, which must not exist and appears whole or not at all."""
        self._reader(cid, max_bytes, within).write_file(dest)

    def get_directory(
        self, cid: str, dest: Path, plan: Plan, *, max_bytes: int, within: float | None = None
    ) -> list[str]:
        """Write the files of a directory that `plan` names to `dest`, which must not exist and appears whole or not
        at all. Return the names of what is left out, which are a stranger's.

        `max_bytes` bounds the sum of the file sizes. Raises also what the plan raises."""
        return self._reader(cid, max_bytes, within).write_directory(dest, plan)

    def entries(self, cid: str, *, within: float | None = None) -> dict[str, str]:
        """Return names and CIDs of the entries of a directory. Raises MalformedContent, UnsafeName and as `block`."""
        root = Cid.parse(cid)
        node = as_directory(root, self._within(within, cid, self.block)(root))
        return {link.name: str(link.cid) for link in node.links}

    def part(self, cid: str, first: int, size: int, *, is_right: IsRight, within: float | None = None) -> bytes:
        """Return `size` bytes of a file from byte `first` on, of which `is_right` is true. Only the blocks that they
        lie in are fetched, and of a raw block only the bytes, where the store can give them.

        Raises CorruptBlock for bytes that are not right, MalformedContent for blocks that are no file of so many bytes,
        and as `block`; FetchTooSlow after `within` seconds."""
        root, fetch = Cid.parse(cid), self._within(within, cid, self.block)

        def node_of(cid: Cid) -> UnixFsNode:
            if (node := self._nodes.get(cid)) is None:
                node = as_file(cid, fetch(cid))
                if len(self._nodes) >= _MOST_NODES:
                    self._nodes.clear()
                if node.links:
                    self._nodes[cid] = node
            return node

        data = read_part(node_of, self._within(within, cid, self._leaf), root, first, size)
        if len(data) != size or not is_right(data):
            # The hash of a raw block says nothing about a part of it, but finds the store that sends a wrong block.
            data = read_part(node_of, lambda leaf, at, count: fetch(leaf)[at : at + count], root, first, size)
        if len(data) != size:
            raise MalformedContent(f"the file {root} has no {first + size} bytes: check the identifier.")
        if not is_right(data):
            raise CorruptBlock(
                f"{self.name} returned other bytes than those from byte {first} of {cid} on: use another store."
            )
        return data

    def _leaf(self, cid: Cid, first: int, size: int, seconds: float | None) -> bytes:
        """Return bytes of a raw block, which the store may not have checked. Raises as `block`."""
        return self.block(cid, seconds)[first : first + size]

    def checked(self, cid: Cid, block: bytes) -> bytes:
        """Return the block, if it has the hash of `cid`. Raises CorruptBlock."""
        if len(block) > MAX_BLOCK:
            raise CorruptBlock(f"{self.name} returned more than {MAX_BLOCK} bytes for block {cid}: use another store.")
        if not cid.matches(block):
            raise CorruptBlock(
                f"{self.name} returned bytes for block {cid} that do not have its hash: fetch or add it again."
            )
        return block

    def _read_only(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.name} can only be read from: give a folder or Kubo's RPC with --store as well.")

    def _reader(self, cid: str, max_bytes: int, within: float | None) -> DagReader:
        fetch = self._within(within, cid, self.block)
        return DagReader(fetch, Cid.parse(cid), max_bytes, width=self.width)

    def _within(self, seconds: float | None, what: str, get: Callable[..., bytes]) -> Callable[..., bytes]:
        """Return `get` with a deadline `seconds` from now (None: no deadline), which ends when the store is stopped.

        `get`: takes the seconds that are left last, and no longer than these. `what`: the content, for messages. The
        result raises FetchTooSlow and StoreUnavailable, too."""
        ends = None if seconds is None else time.monotonic() + seconds

        def fetch(*arguments: object) -> bytes:
            if self.stop is not None and self.stop.is_set():
                raise StoreUnavailable(f"stopped while {what} was fetched: run the same command again to carry on.")
            try:
                return get(*arguments, None if ends is None else max(0.0, ends - time.monotonic()))
            except StoreUnavailable as error:
                if ends is None or time.monotonic() < ends or (self.stop is not None and self.stop.is_set()):
                    raise
                raise FetchTooSlow(f"{what} did not come within {seconds:g} seconds: try again later.") from error

        return fetch


def _discard(cid: Cid, block: bytes) -> None:
    """Drop a block of a build that only computes the CID."""


def blocks(fetch: Fetch, cid: Cid, *, leaves: bool = True) -> Iterator[tuple[Cid, bytes]]:
    """Yield every block below and including `cid` once, with its bytes; content is not looked at, only structure.
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
        for link in decode(block, str(at)).links if at.codec != RAW else ():
            if (key := (link.cid.codec, link.cid.digest)) not in seen:
                seen.add(key)
                pending.append(link.cid)
