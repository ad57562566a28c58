"""Effects of the chain's modules on the process that imports them."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_a_command_that_only_reads_the_chain_loads_neither_torch_nor_the_store_nor_an_evm() -> None:
    names = "'torch', 'eth_tester', 'web3', 'eth_account', 'ipfshttpclient', 'tiebreak.store'"
    script = f"import sys, tiebreak.contract.game; print([name for name in ({names}) if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_without_the_evm_the_embedded_chain_is_refused_with_its_remedy() -> None:
    script = "import sys; sys.modules['eth_tester'] = None; import tiebreak.devnet.embedded"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "needs eth_tester, which is not installed: pip install 'tiebreak[demo]'" in done.stderr.splitlines()[-1]


@pytest.mark.slow_but("transactions.keys")
@pytest.mark.parametrize("module", ["transactions.keys", "devnet.embedded", "rpc.web3_providers"])
def test_deeply_nested_json_cannot_crash_the_process(module: str) -> None:
    script = f"""
import json, tiebreak.{module}, eth_account, eth_tester
for text in ("[" * 10**6, '{{"a":' * 10**6):
    try:
        json.loads(text)
    except RecursionError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "refused"]
