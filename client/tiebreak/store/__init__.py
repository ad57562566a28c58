"""The content store: files and directories by the CID that Kubo gives them, verified block by block.
A location names a gateway, a Kubo daemon or a folder, and never one by mistake for the other."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tiebreak.store.folder import FolderStore
from tiebreak.store.store import Store
from tiebreak.store.store_errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from tiebreak.store.replicated_store import Warn

__all__ = ["FolderStore", "Store", "StoreError", "open_store", "open_stores"]

_GATEWAY = re.compile(r"gateway\+(https?://.*)", re.IGNORECASE)
_MULTIADDR = re.compile(r"/?((ip4|ip6|dns|dns4|dns6|dnsaddr|unix|onion|onion3)/.+)")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^/\\\s:]+):[0-9]{1,5}/?")
_DOUBTFUL = re.compile(
    r":.*|[A-Za-z][A-Za-z0-9+.-]*:\S*|[0-9]{1,3}(\.[0-9]{1,3}){3}/?|\[?[0-9A-Fa-f]*(:[0-9A-Fa-f]*){2,}\]?/?|localhost/?"
)


def gateway_address(location: str | Path) -> str | None:
    """Return the URL of a trustless gateway, from a location ``gateway+https://...``; None for everything else."""
    found = _GATEWAY.fullmatch(location.strip()) if isinstance(location, str) else None
    return found[1] if found else None


def is_folder(location: str) -> bool:
    """Return whether a location is a folder's. Raises StoreUnavailable as `kubo_address`."""
    return gateway_address(location) is None and kubo_address(location) is None


def locations(text: str) -> list[str]:
    """Return the locations in a list by commas, each of them well-formed. Raises StoreUnavailable."""
    found = [part.strip() for part in text.split(",")]
    for location in found:
        is_folder(location)
    return found


def kubo_address(location: str | Path) -> str | None:
    """Return the address of Kubo's RPC in a form that `KuboStore` takes; None for a folder.

    A URL with http or https and a multiaddr (with or without its first slash) are addresses, and so is host:port, for
    which http is meant. Whatever else could be meant as an address (another scheme, an IP address, a host's name
    without a port) raises StoreUnavailable: a folder of that name would take in silence what others are to find. A
    `Path` is a folder, and so is a text with a slash or a dot at its beginning.
    """
    if isinstance(location, Path):
        return None
    text = location.strip()
    if not text:
        raise StoreUnavailable("the content store's location is empty: give a folder, or Kubo's http://127.0.0.1:5001.")
    if multiaddr := _MULTIADDR.fullmatch(text):
        return f"/{multiaddr[1]}"
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return None
    if text.lower().startswith(("http://", "https://")):
        return text
    if _HOST_AND_PORT.fullmatch(text):
        return "http://" + text.rstrip("/")
    if _DOUBTFUL.fullmatch(text):
        from tiebreak.store.http import shown_location  # here for the same reason as in `open_store`

        shown = shown_location(text)
        raise StoreUnavailable(
            f"the content store's location {shown!r} could be meant as an address: write http://127.0.0.1:5001 for "
            f"Kubo's RPC, gateway+https://... for a gateway, or ./{shown.replace('/', '-')} for a folder of that name."
        )
    return None


def open_store(location: str | Path, *, stop: threading.Event | None = None) -> Store:
    """Return the content store at `location`.

    A URL (``http://127.0.0.1:5001``), a multiaddr (``/ip4/127.0.0.1/tcp/5001``, ``/dns/...``) or host:port is a Kubo
    daemon's RPC; ``gateway+https://...`` is a trustless gateway, to read from; everything else is a folder for the
    embedded store, made if need be, unless it could be meant as an address (`kubo_address`). stop: ends every request
    and wait at once. Raises StoreUnavailable.
    """
    # Imported here because the HTTP client takes longer to load than everything else in this package.
    if (gateway := gateway_address(location)) is not None:
        from tiebreak.store.gateway import GatewayStore

        return GatewayStore(gateway, stop=stop)
    if (address := kubo_address(location)) is not None:
        from tiebreak.store.kubo import KuboStore

        return KuboStore(address, stop=stop)
    return FolderStore(Path(location).expanduser(), stop=stop)


def open_stores(
    locations: Sequence[str | Path],
    *,
    warn: Warn,
    pin_service: str | None = None,
    stop: threading.Event | None = None,
) -> Store:
    """Return the content stores at `locations` as one; as `open_store` for each.

    warn: receives what could not be stored somewhere although it is stored elsewhere. pin_service: the name of a
    pinning service in the configuration of the first Kubo daemon. Raises StoreUnavailable, also for one without a
    daemon.
    """
    require_daemon(locations, pin_service)
    stores = [open_store(location, stop=stop) for location in locations]
    if len(stores) == 1 and pin_service is None:
        return stores[0]
    from tiebreak.store.replicated_store import ReplicatedStore

    return ReplicatedStore(stores, pin_service, warn=warn, stop=stop)


def require_daemon(locations: Sequence[str | Path], pin_service: str | None) -> None:
    """Raise StoreUnavailable for a pinning service where no location is a Kubo daemon's."""
    if pin_service is not None and not any(
        gateway_address(one) is None and kubo_address(one) is not None for one in locations
    ):
        raise StoreUnavailable(
            f"the pinning service {pin_service} is one that a Kubo daemon knows: give Kubo's RPC with --store as well."
        )
