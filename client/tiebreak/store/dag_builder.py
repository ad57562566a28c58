"""Cuts files and directories into the blocks that `ipfs add --cid-version=1` of Kubo makes.

CIDv1, raw leaves, chunks of 256 KiB, balanced tree with at most 174 links a node, SHA-256.
Blocks come out children first, so that a store which keeps them in order never holds a node without its children.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tiebreak.store.dagpb import DIRECTORY, FILE, RAW, Cid, Link, UnixFsNode, check_name, encode
from tiebreak.store.store_errors import ContentTooLarge, UnsupportedFile

CHUNK = 262_144
LINKS = 174
SHARDING_THRESHOLD = 262_144
"""Kubo turns a directory into a hash trie when names and identifiers of its entries reach this many bytes."""

Sink = Callable[[Cid, bytes], None]
"""Receives every block together with its identifier."""


@dataclass(frozen=True, slots=True)
class _Subtree:
    cid: Cid
    total_size: int  # bytes of all blocks in it
    file_size: int  # bytes of content below it


def build_file(stream: BinaryIO, sink: Sink) -> Link:
    """Cuts a binary stream into blocks; the returned nameless link points at the root."""
    # levels[i] collects subtrees of height i; a full level becomes one subtree of height i + 1. Grouping from
    # below gives the same tree as Kubo's depth-first balanced layout.
    levels: list[list[_Subtree]] = [[]]

    def add(height: int, subtree: _Subtree) -> None:
        if height == len(levels):
            levels.append([])
        levels[height].append(subtree)
        if len(levels[height]) == LINKS:
            full, levels[height] = levels[height], []
            add(height + 1, _join(full, sink))

    first = True
    while (chunk := _read_chunk(stream)) or first:
        add(0, _leaf(chunk, sink))
        first = False

    height = 0
    while True:
        pending = levels[height]
        is_top = all(not level for level in levels[height + 1 :])
        if is_top and len(pending) == 1:
            return Link(pending[0].cid, "", pending[0].total_size)
        levels[height] = []
        if pending:
            add(height + 1, _join(pending, sink))
        height += 1


def build_directory(path: Path, sink: Sink) -> Link:
    """Cuts a directory tree into blocks; the returned nameless link points at the root.

    Raises UnsupportedFile for symbolic links and special files, UnsafeName for names that cannot be stored
    faithfully, ContentTooLarge for a directory that Kubo would shard.
    """
    links: list[Link] = []
    entries_size = 0
    with os.scandir(path) as scan:
        entries = sorted(scan, key=lambda entry: os.fsencode(entry.name))
    for entry in entries:
        check_name(entry.name)
        child_path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            child = build_directory(child_path, sink)
        else:
            with open_regular(child_path) as stream:
                child = build_file(stream, sink)
        links.append(Link(child.cid, entry.name, child.total_size))
        entries_size += len(entry.name.encode("utf-8")) + len(child.cid.to_bytes())
    if entries_size >= SHARDING_THRESHOLD:
        raise ContentTooLarge(
            f"directory {path} has too many entries for one block ({len(links)}): spread them over subdirectories."
        )
    block = encode(UnixFsNode(DIRECTORY, None, None, (), tuple(links)))
    cid = Cid.of(block)
    sink(cid, block)
    return Link(cid, "", len(block) + sum(link.total_size for link in links))


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading without following a symbolic link at its end. Raises
    UnsupportedFile.
    """
    try:
        stream = open(path, "rb", opener=_open_without_following)  # noqa: SIM115 (the caller closes it)
    except OSError as error:
        raise UnsupportedFile(
            f"{path} cannot be published ({error.strerror}): give a readable regular file, not a symbolic link."
        ) from error
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise UnsupportedFile(f"{path} cannot be published: it is not a regular file, so move it out of the way.")
    return stream


def _open_without_following(name: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _read_chunk(stream: BinaryIO) -> bytes:
    """The next `CHUNK` bytes of a stream; fewer only at its end."""
    parts: list[bytes] = []
    missing = CHUNK
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _leaf(chunk: bytes, sink: Sink) -> _Subtree:
    cid = Cid.of(chunk, RAW)
    sink(cid, chunk)
    return _Subtree(cid, len(chunk), len(chunk))


def _join(children: list[_Subtree], sink: Sink) -> _Subtree:
    file_size = sum(child.file_size for child in children)
    block = encode(
        UnixFsNode(
            FILE,
            None,
            file_size,
            tuple(child.file_size for child in children),
            tuple(Link(child.cid, "", child.total_size) for child in children),
        )
    )
    cid = Cid.of(block)
    sink(cid, block)
    return _Subtree(cid, len(block) + sum(child.total_size for child in children), file_size)
