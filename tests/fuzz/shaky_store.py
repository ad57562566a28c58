"""A store that counts what it gives, and that loses, damages or delays blocks: for a while, or until it is mended."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

from tiebreak.store import FolderStore
from tiebreak.store.dagpb import Cid
from tiebreak.store.store_errors import ContentMissing, StoreUnavailable

WAYS = ("lost", "damaged", "short", "busy")
"""What may be wrong with a block."""


class ShakyStore(FolderStore):
    """A folder of blocks. parts: whether it gives parts of raw blocks, which nobody can check by their hash. beside:
    another store, whose wrong blocks are right in this one."""

    def __init__(self, root: Path, draw: Random, *, parts: bool, beside: ShakyStore | None = None) -> None:
        super().__init__(root)
        self.parts, self.width = parts, draw.choice([1, 1, 3])
        self.given = 0
        """Bytes that were given."""
        self.stuck = False
        """Whether it answers after six seconds, when another store has long been asked."""
        self._beside = beside
        self._draw, self._chance, self._passing = draw, 0.0, False
        self._ways: dict[Cid, tuple[str, int, int]] = {}
        self._counting = threading.Lock()

    def spoil(self, chance: float, *, passing: bool) -> None:
        """Let something be wrong with a share of the blocks from now on. passing: for the first questions alone."""
        self._chance, self._passing = chance, passing

    def mend(self, held: frozenset[str] = frozenset()) -> None:
        """Make all blocks right again."""
        with self._counting:
            self._chance, self.stuck = 0.0, False
            self._ways.clear()

    def is_wrong(self, cid: Cid) -> bool:
        """Whether something is wrong with a block, or was."""
        with self._counting:
            return bool(self._drawn(cid)[0])

    def block(self, cid: Cid, seconds: float | None = None) -> bytes:
        way, place = self._way(cid)
        block = super().block(cid, seconds)
        if way in ("damaged", "short"):
            self.checked(cid, _bent(block, place) if way == "damaged" else block[:-1])
        with self._counting:
            self.given += len(block)
        return block

    def _leaf(self, cid: Cid, first: int, size: int, seconds: float | None) -> bytes:
        if not self.parts:
            return super()._leaf(cid, first, size, seconds)
        way, place = self._way(cid)
        block = super().block(cid, seconds)
        with self._counting:
            self.given += size
        if way == "short":
            return block[first : first + size - 1]
        return (_bent(block, place) if way == "damaged" else block)[first : first + size]

    def _way(self, cid: Cid) -> tuple[str, int]:
        """What is wrong with a block (empty: nothing), and at which place of it."""
        if self.stuck:
            time.sleep(6)
        if self._beside is not None and self._beside.is_wrong(cid):
            return "", 0
        with self._counting:
            way, place, left = self._drawn(cid)
            self._ways[cid] = way, place, left - 1
        if left == 0:
            return "", 0
        if way == "lost":
            raise ContentMissing(f"{self.name} has no block {cid}: use another store.")
        if way == "busy":
            raise StoreUnavailable(f"{self.name} is busy: try later.")
        return way, place

    def _drawn(self, cid: Cid) -> tuple[str, int, int]:
        """What is wrong with a block, at which place, and how often it still is (negative: always)."""
        if cid not in self._ways:
            way = self._draw.choice(WAYS) if self._draw.random() < self._chance else ""
            self._ways[cid] = way, self._draw.randrange(1 << 30), self._draw.randint(1, 2) if self._passing else -1
        return self._ways[cid]


def _bent(block: bytes, place: int) -> bytes:
    """A block with one other bit."""
    if not block:
        return b"?"
    content = bytearray(block)
    content[place % len(content)] ^= 1 << place % 8
    return bytes(content)
