"""The content store: files and directories by the CID that Kubo gives them, verified block by block."""

from __future__ import annotations

from pathlib import Path

from tiebreak.store.errors import StoreError
from tiebreak.store.folder import FolderStore
from tiebreak.store.protocol import ContentStore

__all__ = ["ContentStore", "FolderStore", "StoreError", "open_store"]


def open_store(location: str | Path) -> ContentStore:
    """The content store at `location`.

    A URL (``http://127.0.0.1:5001``) or a multiaddr (``/ip4/127.0.0.1/tcp/5001``, ``/dns/...``) is a Kubo
    daemon's RPC; everything else is a folder for the embedded store, made if need be. Raises
    StoreUnavailable.
    """
    text = str(location)
    if text.startswith(("http://", "https://", "/ip4/", "/ip6/", "/dns/", "/dns4/", "/dns6/")):
        # Imported here because the HTTP client takes longer to load than everything else in this package.
        from tiebreak.store.kubo import KuboStore

        return KuboStore(text)
    return FolderStore(Path(location))
