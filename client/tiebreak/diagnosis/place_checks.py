"""Questions to the stores, the pinning service, the nodes and the contract that a user names: whether each answers as
what it should be. Nothing is stored, sent or made, and every answer has a deadline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from eth_typing import ChecksumAddress

from tiebreak.http_client import TooLate, within
from tiebreak.rpc.chain_errors import ChainError
from tiebreak.store import gateway_address, kubo_address
from tiebreak.store.store_errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from tiebreak.store.pinning import PinningService

_ROOM = 1 << 30
"""Bytes below which a disk is nearly full."""

_WHOLE = 2.0
"""Deadline of a whole check, relative to that of an answer: a node is asked twice, and names are looked up."""


class PlaceKind(StrEnum):
    """The kind of a place that a user names."""

    STORE = "store"
    PINNING = "pinning service"
    NODE = "node"
    CONTRACT = "contract"


@dataclass(frozen=True, slots=True)
class PlaceFinding:
    """A place that was asked. `name`: without secrets. `facts`: what it says of itself, in words. `problem`: a sentence
    with the remedy, empty if all is as it should be. `chain_id`: of a node that answers."""

    kind: PlaceKind
    name: str
    facts: str = ""
    problem: str = ""
    chain_id: int | None = None


def check_store(location: str, seconds: float) -> PlaceFinding:
    """Ask a folder, Kubo's RPC or a gateway. seconds: for an answer."""
    try:
        gateway = gateway_address(location)
        address = None if gateway is not None else kubo_address(location)
    except StoreError as error:
        return PlaceFinding(PlaceKind.STORE, _shown(location), problem=str(error))
    if gateway is None and address is None:
        return _folder(Path(location).expanduser())

    def ask() -> str:
        if gateway is not None:
            from tiebreak.store.gateway import GatewayStore

            GatewayStore(gateway, timeout=seconds, attempts=1).check()
            return "a gateway, which answers; to read from"
        from tiebreak.store.kubo import KuboStore

        assert address is not None
        reached = len(KuboStore(address, timeout=seconds, attempts=1).addresses())
        return f"Kubo, which answers; {reached} addresses for other peers"

    return _asked(PlaceKind.STORE, _shown(location), ask, seconds)


def check_pinning(service: PinningService, seconds: float) -> PlaceFinding:
    """Ask a pinning service, made with `timeout` and one attempt."""

    def ask() -> str:
        service.check()
        return "answers, and takes the token"

    return _asked(PlaceKind.PINNING, service.name, ask, seconds)


def check_node(location: str, seconds: float) -> PlaceFinding:
    """Ask a node of a chain: an address as of `tiebreak.rpc.node.connect`."""
    from tiebreak.rpc.node import ChainNode, transport_to

    try:
        node = ChainNode(transport_to(location, None, timeout=seconds, deadline=seconds, attempts=1))
    except ChainError as error:
        return PlaceFinding(PlaceKind.NODE, "the chain's address", problem=str(error))

    def ask() -> tuple[int, int]:
        return node.chain_id, node.head().number

    try:
        chain_id, block = within(_WHOLE * seconds, None, ask)
    except (ChainError, TooLate) as error:
        return PlaceFinding(PlaceKind.NODE, node.name, problem=_sentence(node.name, error, seconds))
    return PlaceFinding(PlaceKind.NODE, node.name, f"answers; chain {chain_id}, block {block:,}", chain_id=chain_id)


def check_contract(location: str, where: ChecksumAddress, seconds: float) -> PlaceFinding:
    """Ask a node that has answered before for the contract at an address."""
    from tiebreak.contract.game import VerificationGame
    from tiebreak.rpc.node import ChainNode, transport_to

    node = ChainNode(transport_to(location, None, timeout=seconds, deadline=seconds, attempts=1))

    def ask() -> str:
        game = VerificationGame.at(node, where)
        return f"this version's; {game.job_count():,} jobs"

    return _asked(PlaceKind.CONTRACT, where, ask, seconds)


def _shown(location: str) -> str:
    # Imported here because the HTTP client takes long to load, and folders need none.
    from tiebreak.store.http import shown_location

    return shown_location(location)


def _asked(kind: PlaceKind, name: str, ask: Callable[[], str], seconds: float) -> PlaceFinding:
    try:
        return PlaceFinding(kind, name, within(_WHOLE * seconds, None, ask))
    except (StoreError, ChainError, TooLate) as error:
        return PlaceFinding(kind, name, problem=_sentence(name, error, seconds))


def _sentence(name: str, error: Exception, seconds: float) -> str:
    if isinstance(error, TooLate):
        return f"{name} has not answered within {_WHOLE * seconds:g} seconds: check the address, and whether it is up."
    return str(error)


def _folder(path: Path) -> PlaceFinding:
    """Look at the folder of a store, which is made when something is stored."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    name = str(path)
    try:
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            why = "may not be written to" if there.is_dir() else "is no folder"
            raise StoreUnavailable(f"{there} {why}: choose a folder that you may write to.")
        free = shutil.disk_usage(there).free
    except (OSError, StoreError) as error:
        said = str(error) if isinstance(error, StoreError) else f"{there} cannot be read: choose another folder."
        return PlaceFinding(PlaceKind.STORE, name, problem=said)
    facts = f"a folder{'' if there == path else ', which is made when it is used'}; {free / 1e9:,.1f} GB free"
    low = f"the disk of {name} has {free / 1e9:.1f} GB left: make room, or choose another folder."
    return PlaceFinding(PlaceKind.STORE, name, facts, low if free < _ROOM else "")
