"""Modules that importing the chain or the store loads, and what they do to the process."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unloaded"),
    [
        ("contract.game", {"torch", "eth_tester", "web3", "eth_account", "ipfshttpclient", "tiebreak.store"}),
        ("store", {"web3", "requests", "eth_account", "torch"}),
    ],
)
def test_reading_the_chain_or_a_store_loads_no_library_that_it_does_not_need(module: str, unloaded: set[str]) -> None:
    script = f"import sys, tiebreak.{module}; print({unloaded} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_without_the_evm_the_embedded_chain_is_refused_with_its_remedy() -> None:
    script = "import sys; sys.modules['eth_tester'] = None; import tiebreak.devnet.embedded"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "needs eth_tester, which is not installed: pip install 'tiebreak[demo]'" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_deeply_nested_json_cannot_crash_the_process() -> None:
    """Regression: eth_account raised the recursion limit of its process."""
    script = """
import json, tiebreak.transactions.keys, tiebreak.devnet.embedded, tiebreak.rpc.web3_providers
for text in ("[" * 10**6, '{"a":' * 10**6):
    try:
        json.loads(text)
    except RecursionError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "refused"]
