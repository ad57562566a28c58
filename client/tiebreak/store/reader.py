"""Reads files and directories from a graph of blocks that a stranger made.

Checked are: every block against its identifier; every node against the canonical encoding; the sizes that nodes
promise; names; order and uniqueness of directory entries. Bounded are: content bytes, directory entries, depth, and the
number of blocks of a file (so that a graph that shares its nodes cannot make a reader visit them exponentially often).
Cycles cannot be built without breaking SHA-256.

What an interrupted fetch has left on disk is checked against the same identifiers, and only the rest is fetched.
"""

from __future__ import annotations

import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tiebreak.deadlines import Halted, TooLate
from tiebreak.deadlines import within as in_time
from tiebreak.store.ahead import Ahead
from tiebreak.store.cid import RAW, Cid
from tiebreak.store.dagpb import (
    DIRECTORY,
    FILE,
    MAX_BLOCK,
    RAW_LEAF,
    SHARDED_DIRECTORY,
    SYMLINK,
    UnixFsNode,
    decode,
    encode,
)
from tiebreak.store.errors import (
    ContentTooLarge,
    CorruptBlock,
    FetchTooSlow,
    MalformedContent,
    StoreUnavailable,
    UnsafeName,
)
from tiebreak.store.names import check_name
from tiebreak.store.staging import Staged
from tiebreak.store.transfers import Meter, OnTransfer, untold

MAX_ENTRIES = 20_000
"""Most files and directories in one directory tree, on all levels together."""

MAX_DIRECTORY_DEPTH = 16
MAX_FILE_DEPTH = 12
"""174 links a node and 256 KiB chunks reach 2**64 bytes at depth 7."""

_SPARE_BLOCKS = 64
_LEAST_MEAN_CHUNK = 4096
"""A file of n bytes may have n / 4096 + 64 blocks: 64 times what Kubo makes of it."""

Fetch = Callable[[Cid], bytes]
"""Returns the bytes of one block, checked with `verified`. Raises ContentMissing, CorruptBlock,
StoreUnavailable.
"""


class _Part(NamedTuple):
    """A part of a file: its first byte and its size."""

    at: int
    size: int


Held = Callable[[Cid, _Part], bool]
"""Whether a part of a file is there already, as the leaf of this identifier."""


def limited(
    block: Callable[[Cid, float | None], bytes], what: str, within: float | None, stop: threading.Event | None
) -> Fetch:
    """A `Fetch` with a deadline `within` seconds from now (None: no deadline), which ends at once when `stop` is set.

    `block` gets the seconds that are left. `what` names the content in messages. Raises FetchTooSlow,
    StoreUnavailable."""
    ends = None if within is None else time.monotonic() + within

    def stopped() -> StoreUnavailable:
        return StoreUnavailable(f"stopped while {what} was fetched: run the same command again to carry on.")

    def one(cid: Cid) -> bytes:
        if stop is not None and stop.is_set():
            raise stopped()
        if ends is None:
            return block(cid, None)
        left = ends - time.monotonic()
        try:
            return in_time(left, stop, lambda: block(cid, left))
        except (TooLate, StoreUnavailable) as error:
            if time.monotonic() < ends:
                raise
            raise FetchTooSlow(f"{what} did not come within {within:g} seconds: try again later.") from error
        except Halted as error:
            raise stopped() from error

    return one


def verified(cid: Cid, block: bytes, source: str) -> bytes:
    """Gives the block back if its hash is the one that `cid` promises.

    `source` names in the message where the bytes came from. Raises CorruptBlock.
    """
    if len(block) > MAX_BLOCK:
        raise CorruptBlock(f"{source} returned more than {MAX_BLOCK} bytes for block {cid}: use another store.")
    if not cid.matches(block):
        raise CorruptBlock(f"{source} returned bytes for block {cid} that do not have its hash: fetch or add it again.")
    return block


def read_file(
    fetch: Fetch, cid: Cid, max_bytes: int, *, width: int = 1, on_transfer: OnTransfer = untold
) -> Iterator[bytes]:
    """Yields the content of a file in pieces, checked block by block. `width`: blocks that are fetched at a time.

    Raises ContentTooLarge before any content is fetched when the file promises more than `max_bytes` bytes;
    MalformedContent when blocks do not form one file.
    """
    with Ahead(fetch, width) as ahead:
        yield from _Walk(fetch, ahead, cid, max_bytes, MAX_ENTRIES, on_transfer).file()


def write_file(
    fetch: Fetch, cid: Cid, dest: Path, max_bytes: int, *, width: int = 1, on_transfer: OnTransfer = untold
) -> None:
    """Writes the file `cid` to `dest`, which appears whole or not at all. Raises DestinationExists as well."""
    with Staged(dest, cid) as staged, Ahead(fetch, width) as ahead:
        walk = _Walk(fetch, ahead, cid, max_bytes, MAX_ENTRIES, on_transfer)
        walk.write_file(cid, fetch(cid), staged.path)
        walk.end()


def write_directory(
    fetch: Fetch,
    cid: Cid,
    dest: Path,
    max_bytes: int,
    max_entries: int = MAX_ENTRIES,
    *,
    width: int = 1,
    without: Container[str] = (),
    on_transfer: OnTransfer = untold,
) -> None:
    """Writes the directory `cid` to `dest`, which appears whole or not at all.

    `max_bytes` bounds the sum of all file sizes. `without`: names of its own entries that are left out. Raises
    DestinationExists, ContentTooLarge, UnsafeName, MalformedContent.
    """
    with Staged(dest, cid) as staged, Ahead(fetch, width) as ahead:
        walk = _Walk(fetch, ahead, cid, max_bytes, max_entries, on_transfer)
        walk.write_directory(cid, fetch(cid), staged.path, without=without)
        walk.end()


class _Walk:
    """One traversal, which counts what it has taken against what the caller allows."""

    def __init__(
        self, fetch: Fetch, ahead: Ahead, root: Cid, max_bytes: int, max_entries: int, on_transfer: OnTransfer
    ) -> None:
        self._fetch, self._ahead = fetch, ahead
        self._root = root
        self._max_bytes = max_bytes
        self._bytes_left = max_bytes
        self._entries_left = max_entries
        self._on_transfer = on_transfer
        self._meter: Meter | None = None
        self._written: set[tuple[int, int]] = set()

    def file(self) -> Iterator[bytes]:
        for piece in self._file(self._root, self._fetch(self._root)):
            assert isinstance(piece, bytes), "nothing is held"
            yield piece

    def _file(self, cid: Cid, block: bytes, held: Held | None = None) -> Iterator[bytes | int]:
        """Yields the content of a file, or the number of bytes that `held` has found already."""
        node = as_file(cid, block)
        size = promised_size(cid, node)
        if size > self._bytes_left:
            raise ContentTooLarge(
                f"{cid} brings {size} bytes where at most {self._bytes_left} of {self._max_bytes} are "
                "allowed: allow more, or ask its publisher for less."
            )
        self._bytes_left -= size
        if self._meter is None:
            self._meter = Meter(self._on_transfer, "fetching", str(self._root), size)
        blocks_left = [most_blocks(size)]
        for piece in self._content(cid, node, _Part(0, size), 0, blocks_left, held):
            yield piece
            self._meter.add(piece if isinstance(piece, int) else len(piece))

    def _content(
        self, cid: Cid, node: UnixFsNode, part: _Part, depth: int, blocks_left: list[int], held: Held | None
    ) -> Iterator[bytes | int]:
        """Yields exactly the bytes of this part of the file, or that they are held, or raises."""
        if promised_size(cid, node) != part.size:
            raise MalformedContent(
                f"file block {cid} has another size than its parent promises: ask its publisher to add it again."
            )
        if not node.links:
            yield node.data or b""
            return
        if depth == MAX_FILE_DEPTH:
            raise MalformedContent(
                f"the file of block {cid} nests deeper than {MAX_FILE_DEPTH} levels: ask its publisher to add it again."
            )
        ends = [part.at, *(part.at + end for end in itertools.accumulate(node.block_sizes))]
        parts = [_Part(at, end - at) for at, end in itertools.pairwise(ends)]

        def wanted() -> Iterator[Cid | None]:
            for link, below in zip(node.links, parts, strict=True):
                count_block(cid, blocks_left)
                yield None if held is not None and held(link.cid, below) else link.cid

        for link, below, block in zip(node.links, parts, self._ahead.each(wanted()), strict=True):
            if block is None:
                yield below.size
            else:
                child = as_file(link.cid, block)
                yield from self._content(link.cid, child, below, depth + 1, blocks_left, held)

    def write_file(self, cid: Cid, block: bytes, path: Path) -> None:
        with _open_part(path) as out:
            self._claim(os.fstat(out.fileno()), path)
            for piece in self._file(cid, block, lambda cid, part: _holds(out, cid, part)):
                if isinstance(piece, int):
                    out.seek(piece, os.SEEK_CUR)
                else:
                    out.write(piece)
            out.truncate()
            out.flush()
            os.fsync(out.fileno())

    def end(self) -> None:
        """Reports the end of the transfer."""
        if self._meter is not None:
            self._meter.end()

    def _make_directory(self, path: Path) -> None:
        try:
            path.mkdir()
        except FileExistsError:
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise
        self._claim(path.lstat(), path)

    def _claim(self, found: os.stat_result, path: Path) -> None:
        """Takes a file or directory for one entry. Raises FileExistsError if another entry has it."""
        key = (found.st_dev, found.st_ino)
        if key in self._written:
            raise FileExistsError(path)
        self._written.add(key)

    def write_directory(
        self, cid: Cid, block: bytes, path: Path, depth: int = 0, *, without: Container[str] = ()
    ) -> None:
        node = _as_directory(cid, block)
        if depth == MAX_DIRECTORY_DEPTH:
            raise ContentTooLarge(
                f"{cid} nests deeper than {MAX_DIRECTORY_DEPTH} directories: ask its publisher for a flatter one."
            )
        self._entries_left -= len(node.links)
        if self._entries_left < 0:
            raise ContentTooLarge(f"{cid} has more entries than allowed: allow more, or ask its publisher for fewer.")
        for link in node.links:
            check_name(link.name)
        self._make_directory(path)
        for link in node.links:
            if link.name in without:  # an attempt to fetch all may have left it
                (path / link.name).unlink(missing_ok=True)
        links = [link for link in node.links if link.name not in without]
        if self._meter is None:
            total = min(self._max_bytes, sum(link.total_size for link in links))
            self._meter = Meter(self._on_transfer, "fetching", str(self._root), total)
        for link, child in zip(links, self._ahead.each(link.cid for link in links), strict=True):
            assert child is not None, "every entry is wanted"
            target = path / link.name
            # The file system has the last word on equal names (case, Unicode form): none is written twice.
            try:
                if _is_directory(link.cid, child):
                    self.write_directory(link.cid, child, target, depth + 1)
                else:
                    self.write_file(link.cid, child, target)
            except FileExistsError as error:
                raise UnsafeName(
                    f"directory {cid} has two entries that are {link.name!r} on this file system: "
                    "ask its publisher to add it again."
                ) from error


def _open_part(path: Path) -> BinaryIO:
    """Opens a file that an earlier attempt may have begun, or makes it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o666)
    if os.fstat(descriptor).st_nlink != 1:
        # It was published already, and then the process was killed: the other name is the user's file now.
        os.close(descriptor)
        path.unlink()
        descriptor = os.open(path, flags | os.O_EXCL, 0o666)
    return os.fdopen(descriptor, "r+b")


def _holds(file: BinaryIO, cid: Cid, part: _Part) -> bool:
    """Whether this part of a file, which nobody writes to now, is the leaf `cid`."""
    if part.size > MAX_BLOCK:
        return False
    data = os.pread(file.fileno(), part.size, part.at)
    if len(data) < part.size:
        return False
    return cid.matches(data if cid.codec == RAW else encode(UnixFsNode(FILE, data, part.size)))


def most_blocks(size: int) -> int:
    """Blocks that so many bytes of a file may lie in."""
    return _SPARE_BLOCKS + size // _LEAST_MEAN_CHUNK


def count_block(cid: Cid, blocks_left: list[int]) -> None:
    """Counts a block below `cid` against the one number in `blocks_left`. Raises MalformedContent below 0."""
    blocks_left[0] -= 1
    if blocks_left[0] < 0:
        raise MalformedContent(
            f"the file with block {cid} is cut into absurdly small pieces: ask its publisher to add it again."
        )


def entries(cid: Cid, block: bytes) -> dict[str, Cid]:
    """Names and identifiers of the entries of a directory, from its block. Raises MalformedContent, UnsafeName."""
    return {link.name: link.cid for link in _as_directory(cid, block).links}


def _as_directory(cid: Cid, block: bytes) -> UnixFsNode:
    """The node of a directory's block, its names sorted and each there once."""
    node = decode(block, str(cid)) if cid.codec != RAW else None
    if node is not None and node.kind == SHARDED_DIRECTORY:
        raise MalformedContent(f"{cid} is a sharded directory: publish it with fewer entries a directory.")
    if node is None or node.kind != DIRECTORY or node.data is not None or node.file_size is not None:
        raise MalformedContent(f"{cid} is not a directory: check the identifier.")
    names = [link.name.encode("utf-8") for link in node.links]
    if any(before >= after for before, after in itertools.pairwise(names)):
        raise UnsafeName(f"directory {cid} has repeated or unsorted names: ask its publisher to add it again.")
    return node


def _is_directory(cid: Cid, block: bytes) -> bool:
    return cid.codec != RAW and decode(block, str(cid)).kind in (DIRECTORY, SHARDED_DIRECTORY)


def as_file(cid: Cid, block: bytes) -> UnixFsNode:
    """The node of a file's block, structurally sound by itself. Raises MalformedContent."""
    if cid.codec == RAW:
        return UnixFsNode(RAW_LEAF, block, len(block))
    node = decode(block, str(cid))
    if node.kind == SYMLINK:
        raise MalformedContent(
            f"{cid} is a symbolic link, which is never followed: ask its publisher to add the file itself."
        )
    if node.kind in (DIRECTORY, SHARDED_DIRECTORY):
        raise MalformedContent(f"{cid} is a directory where a file is expected: check the identifier.")
    if node.kind not in (FILE, RAW_LEAF):
        raise MalformedContent(f"{cid} is of the unknown UnixFS kind {node.kind}: ask its publisher to add it again.")
    if len(node.links) != len(node.block_sizes):
        raise MalformedContent(
            f"file block {cid} gives {len(node.block_sizes)} sizes for {len(node.links)} links: "
            "ask its publisher to add it again."
        )
    if node.links and (node.data is not None or 0 in node.block_sizes or any(link.name for link in node.links)):
        raise MalformedContent(
            f"file block {cid} mixes content, empty parts or names into its links: ask its publisher to add it again."
        )
    return node


def promised_size(cid: Cid, node: UnixFsNode) -> int:
    """Bytes of content of a file's node, if it says so rightly. Raises MalformedContent."""
    actual = sum(node.block_sizes) if node.links else len(node.data or b"")
    if (node.file_size or 0) != actual:
        raise MalformedContent(
            f"file block {cid} promises {node.file_size} bytes but holds {actual}: ask its publisher to add it again."
        )
    return actual
