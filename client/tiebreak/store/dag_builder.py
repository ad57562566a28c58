"""Cuts files and directories into the blocks that `ipfs add --cid-version=1` of Kubo makes.

CIDv1, raw leaves, chunks of 256 KiB, balanced tree with at most 174 links a node, SHA-256.
Blocks come out children first, so that a store which keeps them in order never holds a node without its children.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from roundlog.storage import require_regular

from tiebreak.store.dagpb import DIRECTORY, FILE, RAW, Cid, Link, UnixFsNode, check_name, encode
from tiebreak.store.store_errors import ContentTooLarge, UnsupportedFile

CHUNK = 262_144
LINKS = 174
SHARDING_THRESHOLD = 262_144
"""Kubo turns a directory into a hash trie when names and identifiers of its entries reach this many bytes."""

Sink = Callable[[Cid, bytes], None]
"""Receives every block together with its identifier."""


class _Subtree(NamedTuple):
    link: Link  # nameless
    file_size: int  # bytes of content below it


def build_file(stream: BinaryIO, sink: Sink) -> Link:
    """Cut a binary stream into blocks; return a nameless link to the root."""

    def leaves() -> Iterator[_Subtree]:
        chunk = stream.read(CHUNK)
        while True:  # an empty file has one leaf, too
            cid = Cid.of(chunk, RAW)
            sink(cid, chunk)
            yield _Subtree(Link(cid, "", len(chunk)), len(chunk))
            if not (chunk := stream.read(CHUNK)):
                return

    def joined(children: Iterator[_Subtree]) -> Iterator[_Subtree]:
        while group := tuple(itertools.islice(children, LINKS)):
            sizes, links = tuple(child.file_size for child in group), tuple(child.link for child in group)
            block = encode(UnixFsNode(FILE, None, sum(sizes), sizes, links))
            yield _Subtree(_sent(block, sink, sum(child.total_size for child in links)), sum(sizes))

    # Joining level by level gives the same tree as Kubo's depth-first balanced layout.
    level = leaves()
    while True:
        first, second = next(level), next(level, None)
        if second is None:
            return first.link
        level = joined(itertools.chain([first, second], level))


def build_directory(path: Path, sink: Sink) -> Link:
    """Cut a directory tree into blocks; return a nameless link to the root.

    Raises UnsupportedFile for symbolic links and special files, UnsafeName for names that cannot be stored
    faithfully, ContentTooLarge for a directory that Kubo would shard.
    """
    links: list[Link] = []
    for entry in sorted(os.scandir(path), key=lambda entry: os.fsencode(entry.name)):
        check_name(entry.name)
        if entry.is_dir(follow_symlinks=False):
            child = build_directory(Path(entry.path), sink)
        else:
            with open_published(Path(entry.path)) as stream:
                child = build_file(stream, sink)
        links.append(Link(child.cid, entry.name, child.total_size))
    if sum(len(link.name.encode("utf-8")) + len(link.cid.to_bytes()) for link in links) >= SHARDING_THRESHOLD:
        raise ContentTooLarge(
            f"directory {path} has too many entries for one block ({len(links)}): spread them over subdirectories."
        )
    block = encode(UnixFsNode(DIRECTORY, None, None, (), tuple(links)))
    return _sent(block, sink, sum(link.total_size for link in links))


def _sent(block: bytes, sink: Sink, below: int) -> Link:
    """Send a dag-pb block, below which are so many bytes of blocks; return a nameless link to it."""
    cid = Cid.of(block)
    sink(cid, block)
    return Link(cid, "", len(block) + below)


def open_published(path: Path) -> BinaryIO:
    """Open a regular file for reading without following a symbolic link at its end. Raises UnsupportedFile."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        stream = open(  # noqa: SIM115 (the caller closes it)
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
        )
    except OSError as error:
        raise UnsupportedFile(
            f"{path} cannot be published ({error.strerror}): give a readable regular file, not a symbolic link."
        ) from error
    try:
        require_regular(stream.fileno(), path)
    except OSError as error:
        stream.close()
        raise UnsupportedFile(
            f"{path} cannot be published: it is not a regular file, so move it out of the way."
        ) from error
    return stream
