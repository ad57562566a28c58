"""One server of a small model for all tests of the room, signing, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from roundlog.generation import Generator, LoadedModel, load_model
from tiebreak.server import CompletionServer, IssuedReceipts, TextService, listen_at
from tiebreak.transactions.keys import devnet_account

from tests.client.server.small_model import POSITIONS, save_small_model


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and what a checker of its answers has."""

    url: str
    service: TextService
    folder: Path
    """Of the receipts."""
    signer: str
    loaded: LoadedModel
    checker: Generator
    """Another generator of the same model, with a cache of another length."""


ROWS, MAX_WAITING = 3, 8
PAGE = "https://chat.example"
"""Origin of the web pages that may read what the server answers."""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("transformers")
    room = tmp_path_factory.mktemp("served")
    loaded = load_model(save_small_model(room / "small"))
    account = devnet_account(0)
    service = TextService(
        loaded,
        Generator(loaded.model, positions=POSITIONS, chunk=16),
        IssuedReceipts(room / "receipts", account),
        tiebreak_version="0.0",
        rows=ROWS,
        max_waiting=MAX_WAITING,
    )
    service.prepare()
    checker = Generator(loaded.model, positions=POSITIONS + 5, chunk=POSITIONS + 5)
    with listen_at("127.0.0.1", 0) as listening, CompletionServer(service, listening, origins=[PAGE]) as server:
        yield Served(server.url, service, room / "receipts", account.address, loaded, checker)
