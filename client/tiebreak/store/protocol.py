"""The interface of every content store."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tiebreak.store.dag_reader import Plan


class ContentStore(Protocol):
    """Publishes and fetches content by CID (strings as `ipfs add --cid-version=1` prints
    them: ``bafy...``, ``bafk...``; ``Qm...`` of others is read, too).

    The same bytes get the same CID from every implementation. Everything added is pinned. Nothing fetched is
    trusted: all readers check every block against its CID and raise `StoreError`s (see
    `tiebreak.store.store_errors`). `within`: seconds that a fetch may take in all (None: any); FetchTooSlow after that.
    What a full or read-only disk prevents raises StoreUnavailable.
    """

    def add_bytes(self, data: bytes) -> str:
        """Publishes bytes as a file and returns its CID."""

    def add_file(self, path: Path) -> str:
        """Publishes a regular file and returns its CID. Raises UnsupportedFile for anything else."""

    def add_directory(self, path: Path) -> str:
        """Publishes a directory tree, hidden files included, and returns its CID.

        Raises UnsupportedFile (symbolic links, devices), UnsafeName, ContentTooLarge (more entries in one
        directory than fit a block).
        """

    def address_of_file(self, path: Path) -> str:
        """The CID that `add_file` would return; nothing is published. Raises UnsupportedFile."""

    def address_of_directory(self, path: Path) -> str:
        """The CID that `add_directory` would return; nothing is published. Raises as `add_directory`."""

    def read(self, cid: str, *, max_bytes: int, within: float | None = None) -> bytes:
        """Returns the content of a file of at most `max_bytes` bytes."""

    def get_file(self, cid: str, dest: Path, *, max_bytes: int, within: float | None = None) -> None:
        """Writes a file to `dest`, which must not exist and appears whole or not at all."""

    def get_directory(
        self, cid: str, dest: Path, plan: Plan, *, max_bytes: int, within: float | None = None
    ) -> list[str]:
        """Writes the files of a directory that `plan` names to `dest`, which must not exist and appears whole or not
        at all. Returns the names of what is left out, which are a stranger's.

        `max_bytes` bounds the sum of the file sizes. Raises also what the plan raises.
        """

    def pin(self, cid: str) -> None:
        """Protects content from garbage collection, fetching it first where the store can. Idempotent.

        Raises ContentMissing when a block of it cannot be had.
        """

    def unpin(self, cid: str) -> None:
        """Withdraws the protection. Idempotent."""

    def has(self, cid: str) -> bool:
        """True if the root block is in this store, without asking anybody else."""

    def mend(self, held: frozenset[str] = frozenset()) -> None:
        """Tries again what could not be stored everywhere. `held`: roots that should be in every store."""

    def tidy(self) -> None:
        """Frees the space of what is pinned no more, where the store does not do that by itself."""
