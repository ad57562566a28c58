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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from roundlog.storage import sync_file

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
    Link,
    UnixFsNode,
    check_name,
    decode,
    encode,
)
from tiebreak.store.staging import disk_bytes, require_space, staged
from tiebreak.store.store_errors import ContentTooLarge, MalformedContent, UnsafeName

MAX_FILE_DEPTH = 12
"""174 links a node and 256 KiB chunks reach 2**64 bytes at depth 7."""

Fetch = Callable[[Cid], bytes]
"""Returns the bytes of one block, whose hash was checked. Raises ContentMissing, CorruptBlock, StoreUnavailable."""

Plan = Callable[[Path, Mapping[str, int]], Iterable[Mapping[str, int]]]
"""The files of a directory that are fetched, in turns. Given the path where they are put together, and the names that
the directory has, each with the bytes that it promises at most, it yields names, each with the most bytes that the file
may have. When it is asked for the next turn, the files of the last one are there. What it raises ends the fetch, and
removes what has come."""


Prefetch = Callable[[Iterable[Cid | None]], Iterator[bytes | None]]
"""Yields the block of each identifier in order, None for None. What the iterable raises ends it; so does an error of a
fetch, when it is that block's turn."""


@contextmanager
def prefetching(fetch: Callable[[Cid], bytes], width: int) -> Iterator[Prefetch]:
    """Give a `Prefetch` with up to `width` blocks on their way at a time; at 1 the caller's own thread fetches."""
    if width == 1:
        yield lambda cids: (None if cid is None else fetch(cid) for cid in cids)
        return
    pool = ThreadPoolExecutor(width, thread_name_prefix="prefetch")

    def each(cids: Iterable[Cid | None]) -> Iterator[bytes | None]:
        waiting: deque[Callable[[], bytes | None]] = deque()
        for cid in cids:
            waiting.append((lambda: None) if cid is None else pool.submit(fetch, cid).result)
            if len(waiting) >= width:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()

    try:
        yield each
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Part(NamedTuple):
    """A part of a file: its first byte and its size."""

    at: int
    size: int


class DagReader:
    """A reader of one file or directory, `root`, which counts what it has taken against `max_bytes` of content.

    `width`: blocks that are fetched at a time. Raises ContentTooLarge before any content of a file is fetched that
    promises more than is left; MalformedContent when blocks do not form one file; what `fetch` raises.
    """

    def __init__(self, fetch: Fetch, root: Cid, max_bytes: int, *, width: int = 1) -> None:
        self._fetch, self._root, self._width = fetch, root, width
        self._max_bytes = self._bytes_left = max_bytes

    def read(self) -> bytes:
        """Return the content of a file."""
        with prefetching(self._fetch, self._width) as self._prefetch:
            pieces = self._file(self._root, self._fetch(self._root), self._max_bytes)
            return b"".join(piece for piece in pieces if isinstance(piece, bytes))

    def write_file(self, dest: Path) -> None:
        """Write a file to `dest`, which appears whole or not at all. Raises DestinationExists and NoSpace, too."""
        with staged(dest, self._root) as path, prefetching(self._fetch, self._width) as self._prefetch:
            block = self._fetch(self._root)
            size = promised_size(self._root, as_file(self._root, block))
            require_space(dest.parent, size - disk_bytes(path))
            self._write(self._root, block, path, self._max_bytes)

    def write_directory(self, dest: Path, plan: Plan) -> list[str]:
        """Write the files of a directory that `plan` names to `dest`, which appears whole or not at all. Nothing else
        of it is fetched; return the names of what is left out.

        Raises DestinationExists, UnsafeName and NoSpace, too, and what the plan raises.
        """
        with staged(dest, self._root) as path, prefetching(self._fetch, self._width) as self._prefetch:
            links = {link.name: link for link in as_directory(self._root, self._fetch(self._root)).links}
            if len(links) > MAX_ENTRIES:
                raise ContentTooLarge(
                    f"{self._root} has {len(links)} entries, more than the {MAX_ENTRIES} allowed: ask its publisher "
                    "for fewer."
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
                require_space(path, sum(bounds) - sum(disk_bytes(path / link.name) for link in wanted))
                for link, bound, block in zip(wanted, bounds, self._prefetch(one.cid for one in wanted), strict=True):
                    assert block is not None, "every file is wanted"
                    self._write(link.cid, block, path / link.name, bound)
            _keep_only(path, known & links.keys())
        return sorted(links.keys() - known)

    def _write(self, cid: Cid, block: bytes, path: Path, most: int) -> None:
        with _open_part(path) as out:
            for piece in self._file(cid, block, most, out):
                if isinstance(piece, int):
                    out.seek(piece, os.SEEK_CUR)
                else:
                    # The promised size is checked first, but others write to the disk meanwhile.
                    require_space(out.fileno(), len(piece))
                    out.write(piece)
            out.truncate()
            sync_file(out)

    def _file(self, cid: Cid, block: bytes, most: int, out: BinaryIO | None = None) -> Iterator[bytes | int]:
        """Yield the content of a file of at most `most` bytes, or the number of bytes that `out` has already."""
        node = as_file(cid, block)
        size = promised_size(cid, node)
        if size > min(most, self._bytes_left):
            allowed = f"{most}" if most <= self._bytes_left else f"{self._bytes_left} of {self._max_bytes}"
            raise ContentTooLarge(
                f"{cid} brings {size} bytes where at most {allowed} are allowed: allow more, or ask its publisher for "
                "less."
            )
        self._bytes_left -= size
        yield from self._content(cid, node, 0, 0, _Allowance(size), out)

    def _content(
        self, cid: Cid, node: UnixFsNode, at: int, depth: int, allowance: _Allowance, out: BinaryIO | None
    ) -> Iterator[bytes | int]:
        """Yield the content of a node that begins at byte `at` of the file, as `_file`."""
        if not node.links:
            yield node.data or b""
            return
        children = _children(cid, node, at, depth)

        def wanted() -> Iterator[Cid | None]:
            for link, part in children:
                allowance.count(cid)
                yield None if out is not None and _has_leaf(out, link.cid, part) else link.cid

        for (link, part), block in zip(children, self._prefetch(wanted()), strict=True):
            if block is None:
                yield part.size
            else:
                child = _require_size(link.cid, as_file(link.cid, block), part.size)
                yield from self._content(link.cid, child, part.at, depth + 1, allowance, out)


def read_part(
    node_of: Callable[[Cid], UnixFsNode], leaf: Callable[[Cid, int, int], bytes], root: Cid, first: int, size: int
) -> bytes:
    """Return `size` bytes of a file from byte `first` on; fewer where the file ends, or where a leaf is cut short.

    `node_of`: the node of a block, as `as_file` returns it. `leaf`: bytes of a raw block, from the identifier, the
    first byte and their number. Raises MalformedContent for blocks that are no file, and what `node_of` and `leaf`
    raise."""
    allowance = _Allowance(size)

    def pieces(cid: Cid, node: UnixFsNode, begin: int, end: int, depth: int) -> Iterator[bytes]:
        if not node.links:
            yield (node.data or b"")[begin:end]
            return
        for link, part in _children(cid, node, 0, depth):
            low, high = max(begin - part.at, 0), min(end - part.at, part.size)
            if low >= high:
                continue
            allowance.count(cid)
            if link.cid.codec == RAW:
                yield leaf(link.cid, low, high - low)
            else:
                child = _require_size(link.cid, node_of(link.cid), part.size)
                yield from pieces(link.cid, child, low, high, depth + 1)

    if root.codec == RAW:
        return leaf(root, first, size)
    node = node_of(root)
    promised_size(root, node)
    return b"".join(pieces(root, node, first, first + size, 0))


class _Allowance:
    """The blocks that a file of `size` bytes may still have: at first size / 4096 + 64, 64 times what Kubo makes of
    it."""

    def __init__(self, size: int) -> None:
        self._left = 64 + size // 4096

    def count(self, cid: Cid) -> None:
        """Count a block below `cid`. Raises MalformedContent."""
        self._left -= 1
        if self._left < 0:
            raise _malformed(cid, "is cut into absurdly small pieces")


def _children(cid: Cid, node: UnixFsNode, at: int, depth: int) -> list[tuple[Link, _Part]]:
    """Return the links of a file's node that begins at byte `at` of the file, each with the part of the file below
    it. Raises MalformedContent for a node that lies too deep."""
    if depth == MAX_FILE_DEPTH:
        raise _malformed(cid, f"nests deeper than {MAX_FILE_DEPTH} levels")
    begins = itertools.accumulate(node.block_sizes, initial=at)
    return list(zip(node.links, map(_Part, begins, node.block_sizes), strict=True))


def _require_size(cid: Cid, node: UnixFsNode, size: int) -> UnixFsNode:
    """Return a file's node if it has the size that its parent promises. Raises MalformedContent."""
    if promised_size(cid, node) != size:
        raise _malformed(cid, "has another size than its parent promises")
    return node


def _malformed(cid: Cid, what: str) -> MalformedContent:
    return MalformedContent(f"the file of block {cid} {what}: ask its publisher to add it again.")


def _open_part(path: Path) -> BinaryIO:
    """Open a file that an earlier attempt may have begun, or make it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o666)
    if os.fstat(descriptor).st_nlink != 1:
        # It was published already, and then the process was killed: the other name is the user's file now.
        os.close(descriptor)
        path.unlink()
        descriptor = os.open(path, flags | os.O_EXCL, 0o666)
    return os.fdopen(descriptor, "r+b")


def _keep_only(path: Path, names: Collection[str]) -> None:
    """Remove from a directory what an earlier attempt, or a directory that was set back, had in it besides."""
    for entry in list(os.scandir(path)):
        if entry.name in names:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()


def _has_leaf(file: BinaryIO, cid: Cid, part: _Part) -> bool:
    """Return whether this part of a file, which nobody writes to now, is the leaf `cid`."""
    if part.size > MAX_BLOCK:
        return False
    data = os.pread(file.fileno(), part.size, part.at)
    if len(data) < part.size:
        return False
    return cid.matches(data if cid.codec == RAW else encode(UnixFsNode(FILE, data, part.size)))


def as_directory(cid: Cid, block: bytes) -> UnixFsNode:
    """Return the node of a directory's block, its names sorted and each there once. Raises MalformedContent,
    UnsafeName."""
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
    """Return the node of a file's block, structurally sound by itself. Raises MalformedContent."""
    if cid.codec == RAW:
        return UnixFsNode(RAW_LEAF, block, len(block))
    node = decode(block, str(cid))
    if node.kind == SYMLINK:
        raise _malformed(cid, "is a symbolic link, which is never followed")
    if node.kind in (DIRECTORY, SHARDED_DIRECTORY):
        raise MalformedContent(f"{cid} is a directory where a file is expected: check the identifier.")
    if node.kind not in (FILE, RAW_LEAF):
        raise _malformed(cid, f"is of the unknown UnixFS kind {node.kind}")
    if len(node.links) != len(node.block_sizes):
        raise _malformed(cid, f"gives {len(node.block_sizes)} sizes for {len(node.links)} links")
    if node.links and (node.data is not None or 0 in node.block_sizes or any(link.name for link in node.links)):
        raise _malformed(cid, "mixes content, empty parts or names into its links")
    return node


def promised_size(cid: Cid, node: UnixFsNode) -> int:
    """Return the bytes of content of a file's node, if it says so rightly. Raises MalformedContent."""
    actual = sum(node.block_sizes) if node.links else len(node.data or b"")
    if (node.file_size or 0) != actual:
        raise _malformed(cid, f"promises {node.file_size} bytes but holds {actual}")
    return actual
