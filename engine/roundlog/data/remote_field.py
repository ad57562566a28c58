"""Fields whose bytes lie elsewhere, such as in content stores: only the blocks that are used are fetched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

import numpy as np

from roundlog.commitments import BLOCK_SIZE, BlockTree, blocks_of
from roundlog.data.data_blocks import BlockCache
from roundlog.data.field import DataError, Field, FieldSummary, has_nan
from roundlog.data.files import StoredField, blocks_under, entry_of, starts_of
from roundlog.program import DType, FieldType
from roundlog.storage import StorageError

_MOST_BLOCKS = 64
"""Blocks that are asked for at a time: 1 MiB."""

_REMEDY = "name another store that has it, or fetch the job with its data, and run the same command again"


class Unavailable(Exception):
    """A part of a file cannot be had from anywhere. The message is one clause."""


class RemoteDataError(StorageError):
    """Data that lie elsewhere and cannot be had, or cannot be used. The message names field and block, and a remedy."""


class Elsewhere(Protocol):
    """The file of a data set in some other place. Nothing that it brings is trusted."""

    @property
    def width(self) -> int:
        """Parts that are worth asking for at a time."""

    def part(self, start: int, size: int, is_right: Callable[[bytes], bool]) -> bytes:
        """`size` bytes from byte `start` on, for which `is_right` holds; where there are several copies, of the first
        that has such bytes. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """The file of a data set that lies elsewhere. `path`: where it would be, for messages. `cache`: of its blocks."""

    path: Path
    place: Elsewhere
    cache: BlockCache | None = None


class RemoteField(StoredField):
    """A field whose blocks are fetched when they are used, each checked by its root before.

    NaN and wrong bools, which no job may have, are looked for in the blocks that are fetched."""

    def __init__(
        self, name: str, kind: FieldType, rows: int, tree: BlockTree, file: RemoteFile, offset: int, first_block: int
    ) -> None:
        """tree: its root is committed to. offset: the field's first byte in the file. first_block: blocks of the fields
        before it."""
        super().__init__(kind, rows)
        assert tree.size == self.nbytes
        self.summary = FieldSummary(tree, has_nan=False)
        self.fetched = 0
        """Bytes that were fetched and used."""
        self._name, self._tree, self._file = name, tree, file
        self._offset, self._first_block = offset, first_block
        self._counting = threading.Lock()

    def read(self, start: int, size: int) -> memoryview:
        return self.pieces([(start, size)])[0]

    def pieces(self, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        blocks = sorted({block for start, size in spans for block in blocks_under(start, size)})
        found = {block: data for block in blocks if (data := self._cached(block)) is not None}
        runs = list(_runs(block for block in blocks if block not in found))
        for run, data in zip(runs, self._all_fetched(runs), strict=True):
            found |= {block: data[place * BLOCK_SIZE :][:BLOCK_SIZE] for place, block in enumerate(run)}
        return [_cut(found, start, size) for start, size in spans]

    def changed(self, start: int) -> StorageError:
        return self._error([start // BLOCK_SIZE], "it is not what its root says")

    def recut(self, kind: FieldType, rows: int) -> Field:
        raise DataError(f"the field {self._name} lies elsewhere and cannot be cut in another way: fetch it first")

    def _cached(self, block: int) -> memoryview | None:
        """A block from the cache, if the right one is there."""
        if self._file.cache is None:
            return None
        data = self._file.cache.get(self._first_block + block, self._tree.span(block)[1])
        if data is None or self._tree.first_wrong([block], data) is not None:
            return None
        self._require_numbers([block], data)
        return memoryview(data)

    def _all_fetched(self, runs: Sequence[Sequence[int]]) -> list[memoryview]:
        """Runs of consecutive blocks, fetched a few at a time. The first that fails ends it."""
        if len(runs) < 2 or self._file.place.width < 2:
            return [self._fetched(run) for run in runs]
        pool = ThreadPoolExecutor(self._file.place.width, thread_name_prefix="blocks")
        try:
            return list(pool.map(self._fetched, runs))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _fetched(self, run: Sequence[int]) -> memoryview:
        """Consecutive blocks from elsewhere. Raises RemoteDataError."""
        try:
            data = self._part(run)
        except Unavailable as error:
            if len(run) == 1:
                raise self._error(run, str(error)) from error
            # One copy may lack a block, and another copy another one.
            return memoryview(b"".join(self._fetched([block]) for block in run))
        self._require_numbers(run, data)
        with self._counting:
            self.fetched += len(data)
        if self._file.cache is not None:
            for place, block in enumerate(run):
                self._file.cache.put(self._first_block + block, memoryview(data)[place * BLOCK_SIZE :][:BLOCK_SIZE])
        return memoryview(data)

    def _part(self, run: Sequence[int]) -> bytes:
        start = self._tree.span(run[0])[0]
        size = sum(self._tree.span(block)[1] for block in run)

        def is_right(data: bytes) -> bool:
            return len(data) == size and self._tree.first_wrong(run, data) is None

        data = self._file.place.part(self._offset + start, size, is_right)
        if not is_right(data):
            raise Unavailable("its bytes are not those that its root commits to")
        return data

    def _require_numbers(self, run: Sequence[int], data: bytes) -> None:
        if self.kind.row.dtype is DType.BOOL:
            if np.frombuffer(data, np.uint8).max() > 1:
                raise self._error(run, "it has a bool that is neither 0 nor 1", "no run can follow such a job")
        elif has_nan(self.kind, data):
            raise self._error(run, "it has a NaN", "no run can follow such a job")

    def _error(self, run: Sequence[int], why: str, remedy: str = _REMEDY) -> RemoteDataError:
        blocks = f"block {run[0]}" if len(run) == 1 else f"one of the blocks {run[0]} to {run[-1]}"
        return RemoteDataError(self._file.path, f"{blocks} of the field {self._name} cannot be used ({why}): {remedy}")


def remote_fields(
    kinds: Mapping[str, FieldType], rows: int, trees: Mapping[str, BlockTree], file: RemoteFile
) -> dict[str, Field]:
    """The fields of a data set in a file that lies elsewhere, as `write_fields` writes it. trees: of the fields, by
    name."""
    fields: dict[str, Field] = {}
    starts = starts_of({name: entry_of(kind, rows) for name, kind in kinds.items()})
    first_block = 0
    for name, kind in kinds.items():
        fields[name] = RemoteField(name, kind, rows, trees[name], file, starts[name], first_block)
        first_block += blocks_of(kind.nbytes(rows))
    return fields


def fetched_bytes(fields: Iterable[Field]) -> int:
    """Bytes of these fields that were fetched from elsewhere by this process."""
    return sum(field.fetched for field in fields if isinstance(field, RemoteField))


def _runs(blocks: Iterable[int]) -> Iterable[list[int]]:
    """Ascending blocks as lists of consecutive ones, none too long for one request."""
    for _, group in groupby(enumerate(blocks), lambda pair: pair[1] - pair[0]):
        run = [block for _, block in group]
        yield from (run[at : at + _MOST_BLOCKS] for at in range(0, len(run), _MOST_BLOCKS))


def _cut(found: Mapping[int, memoryview], start: int, size: int) -> memoryview:
    """`size` bytes from byte `start` on, of the blocks that they lie in."""
    blocks = blocks_under(start, size)
    if not blocks:
        return memoryview(b"")
    data = found[blocks[0]] if len(blocks) == 1 else memoryview(b"".join(found[block] for block in blocks))
    return data[start - blocks[0] * BLOCK_SIZE :][:size]
