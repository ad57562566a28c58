"""Parses the location of a store: a gateway, a Kubo daemon or a folder, and never one by mistake for the other."""

from __future__ import annotations

import re
from pathlib import Path

from tiebreak.store.store_errors import StoreUnavailable

_GATEWAY = "gateway+"
_MULTIADDR = re.compile(r"/?(ip4|ip6|dns|dns4|dns6|dnsaddr|unix|onion|onion3)/.+")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/{0,2}\S*")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^/\\\s:]*):[0-9]{1,5}/?")
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}|\[?[0-9A-Fa-f]*(:[0-9A-Fa-f]*){2,}\]?|localhost")


def gateway_address(location: str | Path) -> str | None:
    """The URL of a trustless gateway, from a location ``gateway+https://...``; None for everything else."""
    text = location.strip() if isinstance(location, str) else ""
    return text[len(_GATEWAY) :] if text.lower().startswith((_GATEWAY + "http://", _GATEWAY + "https://")) else None


def is_folder(location: str) -> bool:
    """Whether a location is a folder's. Raises StoreUnavailable as `kubo_address`."""
    return gateway_address(location) is None and kubo_address(location) is None


def locations(text: str) -> list[str]:
    """The locations in a list by commas, each of them well-formed. Raises StoreUnavailable."""
    found = [part.strip() for part in text.split(",")]
    for location in found:
        if gateway_address(location) is None:
            kubo_address(location)
    return found


def kubo_address(location: str | Path) -> str | None:
    """The address of Kubo's RPC in a form that `KuboStore` takes; None for a folder.

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
    if _MULTIADDR.fullmatch(text):
        return text if text.startswith("/") else "/" + text
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return None
    if text.lower().startswith(("http://", "https://")):
        return text
    if _HOST_AND_PORT.fullmatch(text) and not text.startswith(":"):
        return "http://" + text.rstrip("/")
    if text.startswith(":") or _SCHEME.fullmatch(text) or _ADDRESS.fullmatch(text.rstrip("/")):
        raise _doubtful(text)
    return None


def _doubtful(text: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the content store's location {text!r} could be meant as an address: write http://127.0.0.1:5001 for Kubo's "
        f"RPC, gateway+https://... for a gateway, or ./{text.replace('/', '-')} for a folder of that name."
    )
