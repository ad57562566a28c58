"""Parts of files: of a long file only the blocks are fetched that a part lies in, and the nodes above them."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from tiebreak.store.cid import RAW, Cid
from tiebreak.store.dag_reader import MAX_FILE_DEPTH, Fetch, as_file, count_block, most_blocks, promised_size
from tiebreak.store.dagpb import UnixFsNode
from tiebreak.store.store_errors import MalformedContent

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
