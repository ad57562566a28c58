"""The adjudicator on a chain: anvil where it is installed, else the one inside of this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compile_contracts
import pytest
from tiebreak.devnet.launcher import start_devnet
from web3 import HTTPProvider, Web3

ROOT = Path(__file__).resolve().parents[3]

Deploy = Callable[..., Any]


@pytest.fixture(scope="session")
def web3() -> Iterator[Web3]:
    with start_devnet() as devnet:
        yield Web3(HTTPProvider(devnet.url, request_kwargs={"timeout": 120}))


@pytest.fixture(scope="session")
def deploy(web3: Web3) -> Deploy:
    """deploy(name, *arguments): one of the contracts that the client ships."""

    def deploy(name: str, *arguments: Any) -> Any:
        artifact = json.loads((compile_contracts.ARTIFACTS / f"{name}.json").read_text())
        contract = web3.eth.contract(abi=artifact["abi"], bytecode=artifact["bytecode"])
        hash_ = contract.constructor(*arguments).transact({"from": web3.eth.accounts[0]})
        receipt = web3.eth.wait_for_transaction_receipt(hash_)
        return web3.eth.contract(address=receipt["contractAddress"], abi=artifact["abi"])

    return deploy


@pytest.fixture(scope="session")
def adjudicator(deploy: Deploy) -> Any:
    return deploy("Adjudicator", deploy("Functions").address, deploy("Reducer").address)
