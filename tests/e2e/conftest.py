"""Every story is told on the chain inside this process and on anvil."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiebreak.chain.devnet import find_anvil, start_devnet
from tiebreak.chain.node import ChainNode, connect
from world import World


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=["embedded", "anvil"])
def node(request: pytest.FixtureRequest) -> Iterator[ChainNode]:
    if request.param == "embedded":
        yield connect("embedded")
        return
    if find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with start_devnet(kind="anvil") as devnet:
        yield connect(devnet.url)


@pytest.fixture
def quick_node() -> Iterator[ChainNode]:
    """The fastest chain at hand, for what has been told on both already."""
    if find_anvil() is None:
        yield connect("embedded")
        return
    with start_devnet(kind="anvil") as devnet:
        yield connect(devnet.url)


@pytest.fixture
def quick_world(quick_node: ChainNode, tmp_path: Path) -> World:
    return World(quick_node, tmp_path)


@pytest.fixture
def world(node: ChainNode, tmp_path: Path) -> World:
    return World(node, tmp_path)
