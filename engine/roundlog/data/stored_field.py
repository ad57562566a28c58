"""Fields whose bytes lie elsewhere, and are checked each time that they are used."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from roundlog.commitments import BLOCK_SIZE, BlockTree
from roundlog.data.field import Field
from roundlog.storage import StorageError

_PIECE = 1024 * BLOCK_SIZE
"""Bytes of blocks that are held at a time, if a row is not longer."""


class StoredField(Field):
    """A field that is read again whenever it is used. Once it has been summarised, all that is used of it is what was
    summarised, whoever writes to its file meanwhile: rows are read with the blocks that they lie in."""

    @abstractmethod
    def changed(self, start: int) -> StorageError:
        """The error that the block from byte `start` on is not what it was."""

    def pieces(self, spans: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """The bytes of each span (first byte, number of bytes, at least one). Raises as `read`."""
        return [self.read(start, size) for start, size in spans]

    def parts_of(self, starts: Sequence[int], size: int) -> Iterable[bytes | memoryview]:
        """As of any field; raises StorageError besides for bytes that are not those that were summarised."""
        if self.summary is None or size == 0:
            return super().parts_of(starts, size)
        return self._checked(self.summary.tree, starts, size)

    def _checked(self, tree: BlockTree, starts: Sequence[int], size: int) -> Iterator[memoryview]:
        # So many bytes lie in at most size // BLOCK_SIZE + 2 blocks.
        group = max(1, _PIECE // (size + 2 * BLOCK_SIZE))
        for first in range(0, len(starts), group):
            yield from self._checked_group(tree, starts[first : first + group], size)

    def _checked_group(self, tree: BlockTree, starts: Sequence[int], size: int) -> Iterator[memoryview]:
        blocks = sorted({block for start in starts for block in blocks_under(start, size)})
        pieces = self.pieces([_span(tree, run) for run in _runs(blocks)])
        data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        wrong = tree.first_wrong(blocks, data)
        if wrong is not None:
            raise self.changed(tree.span(wrong)[0])
        places = {block: place * BLOCK_SIZE for place, block in enumerate(blocks)}
        for start in starts:
            # Blocks that follow each other in the field do so in `data`.
            begin = places[start // BLOCK_SIZE] + start % BLOCK_SIZE
            yield data[begin : begin + size]


def blocks_under(start: int, size: int) -> range:
    """The blocks that `size` bytes, at least one, from byte `start` on lie in."""
    return range(start // BLOCK_SIZE, (start + size - 1) // BLOCK_SIZE + 1)


def _runs(blocks: Sequence[int]) -> Iterator[range]:
    """Ascending numbers as the fewest ranges."""
    begin = 0
    for place in range(1, len(blocks) + 1):
        if place == len(blocks) or blocks[place] != blocks[place - 1] + 1:
            yield range(blocks[begin], blocks[place - 1] + 1)
            begin = place


def _span(tree: BlockTree, run: range) -> tuple[int, int]:
    """(first byte, bytes) of consecutive blocks."""
    (start, _), (last, length) = tree.span(run[0]), tree.span(run[-1])
    return start, last + length - start
