"""The content store: files and directories by the CID that Kubo gives them, verified block by block."""

from __future__ import annotations

import threading
from pathlib import Path

from tiebreak.store.errors import StoreError
from tiebreak.store.folder import FolderStore
from tiebreak.store.location import kubo_address
from tiebreak.store.protocol import ContentStore

__all__ = ["ContentStore", "FolderStore", "StoreError", "open_store"]


def open_store(location: str | Path, *, stop: threading.Event | None = None) -> ContentStore:
    """The content store at `location`.

    A URL (``http://127.0.0.1:5001``), a multiaddr (``/ip4/127.0.0.1/tcp/5001``, ``/dns/...``) or host:port is a Kubo
    daemon's RPC; everything else is a folder for the embedded store, made if need be, unless it could be meant as an
    address (`location.kubo_address`). stop: ends every request and wait at once. Raises StoreUnavailable.
    """
    address = kubo_address(location)
    if address is not None:
        # Imported here because the HTTP client takes longer to load than everything else in this package.
        from tiebreak.store.kubo import KuboStore

        return KuboStore(address, stop=stop)
    return FolderStore(Path(location).expanduser(), stop=stop)
