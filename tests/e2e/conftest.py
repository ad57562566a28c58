"""Worlds on the chain inside this process and on anvil."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiebreak.contract.code import ContractCode, load_artifact
from tiebreak.devnet.embedded import embedded_node
from tiebreak.devnet.launcher import find_anvil, start_devnet
from tiebreak.rpc.node import ChainNode, connect

from tests.e2e.world import World


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=["embedded", "anvil"])
def node(request: pytest.FixtureRequest) -> Iterator[ChainNode]:
    if request.param == "embedded":
        yield embedded_node()
        return
    if find_anvil() is None:
        pytest.skip("anvil is not installed: run npm ci")
    with start_devnet(kind="anvil") as devnet:
        yield connect(devnet.url)


@pytest.fixture
def quick_node() -> Iterator[ChainNode]:
    """The fastest chain at hand, for what is told on both elsewhere."""
    if find_anvil() is None:
        yield embedded_node()
        return
    with start_devnet(kind="anvil") as devnet:
        yield connect(devnet.url)


@pytest.fixture
def doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds made after this one deploy, and know, functions that decide the rounding of none of their values, since no
    argument is known at which the real ones do not."""
    # UNDECIDED (2) and the argument, which is the call's second word; before it, how code is deployed.
    code = bytes.fromhex("600260005260243560205260406000f3")
    creation = bytes.fromhex("60108060093d393df3") + code
    honest = ContractCode.load

    def load(name: str) -> ContractCode:
        other = {"bytecode": creation.hex(), "deployedBytecode": code.hex()}
        return ContractCode(load_artifact(name) | other) if name == "Functions" else honest(name)

    monkeypatch.setattr(ContractCode, "load", staticmethod(load))


@pytest.fixture
def world(quick_node: ChainNode, tmp_path: Path) -> World:
    return World(quick_node, tmp_path)


@pytest.fixture
def each_world(node: ChainNode, tmp_path: Path) -> World:
    return World(node, tmp_path)


@pytest.fixture
def embedded_world(tmp_path: Path) -> World:
    return World(embedded_node(), tmp_path)
