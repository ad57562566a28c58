"""Reads files and directories from a graph of blocks that a stranger made.

Checked are: every block against its identifier; every node against the canonical encoding; the sizes that nodes
promise; order and uniqueness of directory entries. Of a directory only the files are fetched that its reader names.
Bounded are: content bytes, directory entries, depth, and the number of blocks of a file (so that a graph that shares
its nodes cannot make a reader visit them exponentially often). Cycles cannot be built without breaking SHA-256.

What an interrupted fetch has left on disk is checked against the same identifiers, and only the rest is fetched.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from roundlog.storage import sync_file

from tiebreak.http_client import Halted, TooLate
from tiebreak.http_client import within as in_time
from tiebreak.store.dagpb import (
    DIRECTORY,
    FILE,
    MAX_BLOCK,
    MAX_ENTRIES,
    RAW,
    RAW_LEAF,
    SHARDED_DIRECTORY,
    SYMLINK,
    Cid,
    UnixFsNode,
    check_name,
    decode,
    encode,
)
from tiebreak.store.staging import Staged, require_space, taken
from tiebreak.store.store_errors import (
    ContentTooLarge,
    CorruptBlock,
    FetchTooSlow,
    MalformedContent,
    StoreUnavailable,
    UnsafeName,
)
from tiebreak.store.transfers import Ahead, Meter, OnTransfer, untold

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


Plan = Callable[[Path, Mapping[str, int]], Iterable[Mapping[str, int]]]
"""The files of a directory that are fetched, in turns. Given the path where they are put together, and the names that
the directory has, each with the bytes that it promises at most, it yields names, each with the most bytes that the file
may have. When it is asked for the next turn, the files of the last one are there. What it raises ends the fetch, and
removes what has come."""

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
        yield from _Walk(fetch, ahead, cid, max_bytes, on_transfer).file()


def write_file(
    fetch: Fetch, cid: Cid, dest: Path, max_bytes: int, *, width: int = 1, on_transfer: OnTransfer = untold
) -> None:
    """Writes the file `cid` to `dest`, which appears whole or not at all. Raises DestinationExists as well."""
    with Staged(dest, cid) as staged, Ahead(fetch, width) as ahead:
        walk = _Walk(fetch, ahead, cid, max_bytes, on_transfer)
        block = fetch(cid)
        require_space(dest.parent, promised_size(cid, as_file(cid, block)) - taken(staged.path))
        walk.write_file(cid, block, staged.path, max_bytes)
        walk.end()


def write_directory(
    fetch: Fetch,
    cid: Cid,
    dest: Path,
    plan: Plan,
    max_bytes: int,
    *,
    width: int = 1,
    on_transfer: OnTransfer = untold,
) -> list[str]:
    """Writes the files of the directory `cid` that `plan` names to `dest`, which appears whole or not at all. Nothing
    else of it is fetched; returns the names of what is left out.

    `max_bytes` bounds the sum of all file sizes. Raises DestinationExists, ContentTooLarge, UnsafeName,
    MalformedContent, NoSpace, and what the plan raises.
    """
    with Staged(dest, cid) as staged, Ahead(fetch, width) as ahead:
        walk = _Walk(fetch, ahead, cid, max_bytes, on_transfer)
        left_out = walk.write_directory(fetch(cid), staged.path, plan)
        walk.end()
    return left_out


class _Walk:
    """One traversal, which counts what it has taken against what the caller allows."""

    def __init__(self, fetch: Fetch, ahead: Ahead, root: Cid, max_bytes: int, on_transfer: OnTransfer) -> None:
        self._fetch, self._ahead = fetch, ahead
        self._root = root
        self._max_bytes = max_bytes
        self._bytes_left = max_bytes
        self._on_transfer = on_transfer
        self._meter: Meter | None = None

    def file(self) -> Iterator[bytes]:
        for piece in self._file(self._root, self._fetch(self._root), self._max_bytes):
            assert isinstance(piece, bytes), "nothing is held"
            yield piece

    def _file(self, cid: Cid, block: bytes, most: int, out: BinaryIO | None = None) -> Iterator[bytes | int]:
        """Yields the content of a file of at most `most` bytes, or the number of bytes that `out` has already."""
        node = as_file(cid, block)
        size = promised_size(cid, node)
        if size > min(most, self._bytes_left):
            allowed = f"{most}" if most <= self._bytes_left else f"{self._bytes_left} of {self._max_bytes}"
            raise ContentTooLarge(
                f"{cid} brings {size} bytes where at most {allowed} are allowed: allow more, or ask its publisher for "
                "less."
            )
        self._bytes_left -= size
        held = None if out is None else partial(_holds, out)
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

    def write_file(self, cid: Cid, block: bytes, path: Path, most: int) -> None:
        with _open_part(path) as out:
            for piece in self._file(cid, block, most, out):
                if isinstance(piece, int):
                    out.seek(piece, os.SEEK_CUR)
                else:
                    # What is promised is looked at first, but others write to the disk meanwhile.
                    require_space(out.fileno(), len(piece))
                    out.write(piece)
            out.truncate()
            sync_file(out)

    def end(self) -> None:
        """Reports the end of the transfer."""
        if self._meter is not None:
            self._meter.end()

    def write_directory(self, block: bytes, path: Path, plan: Plan) -> list[str]:
        links = {link.name: link for link in _as_directory(self._root, block).links}
        if len(links) > MAX_ENTRIES:
            raise ContentTooLarge(
                f"{self._root} has {len(links)} entries, more than the {MAX_ENTRIES} allowed: ask its publisher for "
                "fewer."
            )
        path.mkdir(exist_ok=True)
        known: set[str] = set()
        for most in plan(path, {name: link.total_size for name, link in links.items()}):
            known |= most.keys()
            for name in most:
                check_name(name)
            wanted = [links[name] for name in most if name in links]
            # A link promises the size of its blocks, which have more bytes than the file.
            bounds = [min(link.total_size, most[link.name]) for link in wanted]
            require_space(path, sum(bounds) - sum(taken(path / link.name) for link in wanted))
            if self._meter is None:
                self._meter = Meter(self._on_transfer, "fetching", str(self._root), min(self._max_bytes, sum(bounds)))
            for link, bound, child in zip(wanted, bounds, self._ahead.each(one.cid for one in wanted), strict=True):
                assert child is not None, "every file is wanted"
                self.write_file(link.cid, child, path / link.name, bound)
        _keep_only(path, known & links.keys())
        return sorted(links.keys() - known)


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


def _keep_only(path: Path, names: Collection[str]) -> None:
    """Removes from a directory what an earlier attempt, or a directory that was set back, had in it besides."""
    for entry in list(os.scandir(path)):
        if entry.name in names:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()


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
