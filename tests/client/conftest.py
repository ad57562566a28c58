"""Fixtures that several client tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiebreak.devnet.embedded import embedded_node
from tiebreak.devnet.launcher import find_anvil, start_devnet
from tiebreak.rpc.node import ChainNode, connect


@pytest.fixture(params=["in process", "served", "anvil"])
def node(request: pytest.FixtureRequest) -> Iterator[ChainNode]:
    """A fresh chain of each kind: inside this process, the same one behind HTTP, and anvil."""
    if request.param == "in process":
        yield embedded_node()
        return
    if request.param == "anvil" and find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with start_devnet(kind="anvil" if request.param == "anvil" else "embedded") as devnet:
        yield connect(devnet.url)
