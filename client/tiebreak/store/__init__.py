"""The content store: files and directories by the CID that Kubo gives them, verified block by block."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.store.folder import FolderStore
from tiebreak.store.location import gateway_address, kubo_address
from tiebreak.store.store import ContentStore
from tiebreak.store.store_errors import StoreError
from tiebreak.store.transfers import OnTransfer, Transfer, untold

if TYPE_CHECKING:
    from tiebreak.store.pinning import PinningService
    from tiebreak.store.replicated_store import Warn
    from tiebreak.store.store import Store

__all__ = ["ContentStore", "FolderStore", "StoreError", "Transfer", "open_store", "open_stores"]


def open_store(location: str | Path, *, stop: threading.Event | None = None, on_transfer: OnTransfer = untold) -> Store:
    """The content store at `location`.

    A URL (``http://127.0.0.1:5001``), a multiaddr (``/ip4/127.0.0.1/tcp/5001``, ``/dns/...``) or host:port is a Kubo
    daemon's RPC; ``gateway+https://...`` is a trustless gateway, to read from; everything else is a folder for the
    embedded store, made if need be, unless it could be meant as an address (`location.kubo_address`). stop: ends every
    request and wait at once. on_transfer: is told of transfers that take long. Raises StoreUnavailable.
    """
    gateway = gateway_address(location)
    address = None if gateway is not None else kubo_address(location)
    # Imported here because the HTTP client takes longer to load than everything else in this package.
    if gateway is not None:
        from tiebreak.store.gateway import GatewayStore

        return GatewayStore(gateway, stop=stop, on_transfer=on_transfer)
    if address is not None:
        from tiebreak.store.kubo import KuboStore

        return KuboStore(address, stop=stop, on_transfer=on_transfer)
    return FolderStore(Path(location).expanduser(), stop=stop, on_transfer=on_transfer)


def open_stores(
    locations: Sequence[str | Path],
    *,
    warn: Warn,
    services: Sequence[PinningService] = (),
    stop: threading.Event | None = None,
    on_transfer: OnTransfer = untold,
) -> Store:
    """The content stores at `locations` as one, with the pinning services beside them; as `open_store` for each.

    warn: is told what could not be stored somewhere although it is stored elsewhere. Raises StoreUnavailable, also for
    a pinning service without a Kubo daemon that it could fetch from.
    """
    stores = [open_store(location, stop=stop, on_transfer=on_transfer) for location in locations]
    if len(stores) == 1 and not services:
        return stores[0]
    from tiebreak.store.replicated_store import ReplicatedStore

    return ReplicatedStore(stores, services, warn=warn, stop=stop, on_transfer=on_transfer)
