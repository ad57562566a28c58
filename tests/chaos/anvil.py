"""An anvil whose blocks, clock, fees and reorganisations are in the campaign's hands."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import threading
import time
from typing import Any

import requests
from tiebreak.devnet.launcher import find_anvil
from tiebreak.transactions.keys import ACCOUNTS, BALANCE, MNEMONIC

_LISTENING = re.compile(r"Listening on 127\.0\.0\.1:(\d+)")
_START_SECONDS = 30.0


class NodeError(Exception):
    """The node refused a request of the campaign's own."""


class Chain:
    """Blocks come every `pause` seconds of real time and are `step` seconds of the chain's time apart, unless mining is
    halted. One lock keeps blocks from coming in the middle of a reorganisation."""

    def __init__(self, *, pause: float, step: int) -> None:
        self.pause = pause
        self.reorganisations = 0
        self._lock = threading.RLock()
        self._session = requests.Session()
        self._process, self.port = _start()
        self.rpc("anvil_setBlockTimestampInterval", step)
        self._ended = threading.Event()
        self._halted_until = 0.0
        self._miner = threading.Thread(target=self._mine, daemon=True)
        self._miner.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def rpc(self, method: str, *params: Any) -> Any:
        """Raise NodeError."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        with self._lock:
            answer = self._session.post(self.url, json=body, timeout=30).json()
        if (error := answer.get("error")) is not None:
            raise NodeError(f"{method}: {error.get('message')}")
        return answer.get("result")

    @property
    def height(self) -> int:
        return int(self.rpc("eth_blockNumber"), 16)

    @property
    def now(self) -> int:
        """The newest block's time."""
        return int(self.rpc("eth_getBlockByNumber", "latest", False)["timestamp"], 16)

    def jump(self, seconds: int) -> None:
        """The next block is `seconds` later than the newest one."""
        with self._lock:
            self.rpc("evm_setNextBlockTimestamp", self.now + max(1, seconds))
            self.rpc("evm_mine")

    def halt(self, seconds: float) -> None:
        """No block for so long."""
        self._halted_until = time.monotonic() + seconds

    def spike(self, base_fee: int) -> None:
        """The next block's base fee, in wei; from there it falls by an eighth a block."""
        self.rpc("anvil_setNextBlockBaseFeePerGas", hex(base_fee))

    def reorganise(self, depth: int, *, put_back: bool) -> None:
        """Replace the newest `depth` blocks by empty ones. put_back: their transactions wait for a block again."""
        with self._lock:
            height = self.height
            raw = []
            for number in range(height - depth + 1, height + 1):
                for transaction in self.rpc("eth_getBlockByNumber", hex(number), False)["transactions"]:
                    raw.append(self.rpc("eth_getRawTransactionByHash", transaction))
            self.rpc("anvil_reorg", depth, [])
            self.reorganisations += 1
            for one in raw if put_back else ():
                with contextlib.suppress(NodeError):  # a client has replaced it meanwhile
                    self.rpc("eth_sendRawTransaction", one)

    def _mine(self) -> None:
        while not self._ended.wait(self.pause):
            if time.monotonic() >= self._halted_until:
                try:
                    self.rpc("evm_mine")
                except (NodeError, requests.RequestException):
                    if not self._ended.is_set():
                        continue

    def close(self) -> None:
        self._ended.set()
        self._miner.join()
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._session.close()


def _start() -> tuple[subprocess.Popen[bytes], int]:
    binary = find_anvil()
    if binary is None:
        raise NodeError("anvil is not installed: run npm ci")
    with tempfile.TemporaryFile() as output:
        arguments = [
            *(str(binary), "--host", "127.0.0.1", "--port", "0", "--mnemonic", MNEMONIC, "--no-mining"),
            *("--accounts", str(ACCOUNTS), "--balance", str(BALANCE // 10**18), "--hardfork", "prague"),
        ]
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            said = os.pread(output.fileno(), 1 << 16, 0).decode("utf-8", "replace")
            if found := _LISTENING.search(said):
                return process, int(found[1])
            time.sleep(0.01)
        process.kill()
        process.wait()
    raise NodeError("anvil did not start")
