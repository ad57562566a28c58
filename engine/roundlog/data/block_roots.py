"""Roots of the blocks of a data set as a file, by which a block that comes from anywhere is checked by itself.

    data.blocks    32 bytes a block: the aligned subtrees of 16 leaves of each field's tree, field after field in
                   program order, without a header

Its length follows from program and spec, and its roots combine to the data root, so nothing of it has to be trusted. It
is a 512th of the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from roundlog.commitments import BlockTree, MerkleTree, blocks_of
from roundlog.data.field import Field
from roundlog.data.summary import summarised
from roundlog.kernels.hashing import HASH_SIZE
from roundlog.program import FieldType
from roundlog.storage import StorageError, reading, replace_file


def write_block_roots(path: Path, fields: Mapping[str, Field]) -> None:
    """Replaces the file at `path` by the roots of these fields, durably and as a whole. Raises OSError, and as
    `summarised`."""
    with replace_file(path) as file:
        for field in fields.values():
            file.write(summarised(field).tree.roots)


def block_roots_bytes(kinds: Mapping[str, FieldType], rows: int) -> int:
    """Size of the file of the roots of a data set."""
    return HASH_SIZE * sum(blocks_of(kind.nbytes(rows)) for kind in kinds.values())


def read_block_roots(path: Path, kinds: Mapping[str, FieldType], rows: int, data_root: bytes) -> dict[str, BlockTree]:
    """The trees of the fields of a data set with this root. The file is not trusted: its length is checked before
    anything is allocated. Raises StorageError."""
    sizes = {name: kind.nbytes(rows) for name, kind in kinds.items()}
    expected = block_roots_bytes(kinds, rows)
    with reading(path) as file:
        roots = file.read(expected + 1)
    if len(roots) != expected:
        found = "more" if len(roots) > expected else len(roots)
        raise StorageError(path, f"has {found} bytes where the roots of its data's blocks need {expected}")
    trees: dict[str, BlockTree] = {}
    start = 0
    for name, size in sizes.items():
        length = HASH_SIZE * blocks_of(size)
        trees[name] = BlockTree(size, roots[start : start + length])
        start += length
    if MerkleTree([tree.root for tree in trees.values()]).root != data_root:
        raise StorageError(path, "has roots of other data than the data root commits to")
    return trees
