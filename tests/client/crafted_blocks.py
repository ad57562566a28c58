"""A folder store for tests that put blocks of their own making into it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tiebreak.store import FolderStore
from tiebreak.store.dag_builder import CHUNK, LINKS
from tiebreak.store.dagpb import DIRECTORY, FILE, RAW, Cid, Link, UnixFsNode, encode


def everything(path: Path, names: Collection[str]) -> Iterable[Mapping[str, int]]:
    """A plan to fetch whatever a directory has."""
    return [dict.fromkeys(sorted(names), 1 << 62)]


class Blocks(FolderStore):
    """A store into which a test puts blocks of its own making."""

    def put(self, block: bytes, codec: int = 0x70) -> Cid:
        cid = Cid.of(block, codec)
        self._put(cid, block)
        return cid

    def node(self, node: UnixFsNode) -> Cid:
        return self.put(encode(node))

    def file(self, data: bytes) -> Cid:
        return self.node(UnixFsNode(FILE, data or None, len(data)))

    def directory(self, *entries: tuple[str, Cid]) -> Cid:
        return self.node(
            UnixFsNode(DIRECTORY, None, None, (), tuple(Link(cid, name, 1 << 20) for name, cid in entries))
        )


def repeated(store: Blocks, size: int) -> tuple[Cid, Cid]:
    """A file of one leaf of 256 KiB, over and over, which costs its publisher a few kilobytes; and the leaf."""
    leaf = store.put(b"x" * CHUNK, RAW)
    assert size % CHUNK == 0
    level = [(leaf, CHUNK)] * (size // CHUNK)
    while len(level) > 1:
        groups = [level[at : at + LINKS] for at in range(0, len(level), LINKS)]
        level = [_above(store, tuple(group)) for group in groups]
    return level[0][0], leaf


def _above(store: Blocks, below: tuple[tuple[Cid, int], ...]) -> tuple[Cid, int]:
    sizes = tuple(size for _, size in below)
    return store.node(UnixFsNode(FILE, None, sum(sizes), sizes, tuple(Link(cid, "", 1) for cid, _ in below))), sum(
        sizes
    )
