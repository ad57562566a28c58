"""A contract on the fastest chain at hand, with parties around it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import roundlog.execution.executor
from tiebreak.devnet.launcher import start_devnet
from tiebreak.rpc.node import connect

from tests.client.disputes import Cast


@pytest.fixture(autouse=True)
def _machine_checked_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every executor looks at its machine first, for most of a second."""
    monkeypatch.setattr(roundlog.execution.executor, "check_machine", lambda device, products: None)


@pytest.fixture(scope="session")
def cast() -> Iterator[Cast]:
    with start_devnet() as devnet:
        yield Cast.on(connect(devnet.url))
