"""Nodes that lie, lag, fork, drop and swallow: transports in front of a good one, and nodes that have blocks only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from eth_utils.crypto import keccak
from tiebreak.rpc.chain_errors import ChainUnavailable, RpcRefused
from tiebreak.rpc.transport import Transport

Lie = Callable[[list[Any], Any], Any]
"""From the parameters and the true answer to what is said."""


class HostileNode(Transport):
    """A node that says what its owner wants. `lies`: by method. `lag`: blocks that it has not seen, by method. `away`,
    `seconds`: whether, and after how long, it answers. `swallows`: whether it says yes to transactions and drops
    them."""

    def __init__(self, good: Transport, name: str = "the liar") -> None:
        super().__init__()
        self.good, self.name = good, name
        self.lies: dict[str, Lie] = {}
        self.lag: dict[str, int] = {}
        self.away = False
        self.seconds = 0.0
        self.swallows = False
        self.asked: list[str] = []

    def request(self, method: str, params: list[Any]) -> object:
        self.asked.append(method)
        if self.away:
            raise ChainUnavailable(f"no usable answer from the chain at {self.name} to {method}: start the node.")
        if self.seconds:
            time.sleep(self.seconds)
        if method == "eth_sendRawTransaction" and self.swallows:
            return "0x" + keccak(bytes.fromhex(params[0][2:])).hex()
        true = self._behind(method, params) if method in self.lag else self.good.request(method, params)
        return self.lies[method](params, true) if method in self.lies else true

    def _behind(self, method: str, params: list[Any]) -> object:
        newest = int(str(self.good.request("eth_blockNumber", [])), 16) - self.lag[method]
        if method == "eth_getLogs":
            params = [params[0] | {"toBlock": hex(min(newest, int(params[0]["toBlock"], 16)))}]
        elif method == "eth_getBlockByNumber":
            number = newest if params[0] == "latest" else int(params[0], 16)
            return self.good.request(method, [hex(number), False]) if number <= newest else None
        elif method == "eth_call":
            if params[1] != "latest" and int(params[1], 16) > newest:
                raise RpcRefused(method, -32000, "header not found")
            params = [params[0], hex(newest) if params[1] == "latest" else params[1]]
        return self.good.request(method, params)


class BlockNode(Transport):
    """A node that knows blocks and nothing else: one every twelve seconds from 1,700,000,000 on. From block `forks` on
    they are those of `branch`."""

    def __init__(self, name: str, height: int, *, forks: int | None = None, branch: str = "other") -> None:
        super().__init__()
        self.name, self.height, self.forks, self.branch = name, height, forks, branch
        self.chain_id = 1
        self.away = False

    @staticmethod
    def time_of(number: int) -> int:
        return 1_700_000_000 + 12 * number

    def request(self, method: str, params: list[Any]) -> object:
        if self.away:
            raise ChainUnavailable(f"{self.name} does not answer")
        if method == "eth_chainId":
            return hex(self.chain_id)
        assert method == "eth_getBlockByNumber", method
        number = self.height if params[0] == "latest" else int(params[0], 16)
        if number > self.height:
            return None
        branch = self.branch if self.forks is not None and number >= self.forks else "main"
        return {
            "number": hex(number),
            "hash": "0x" + keccak(f"{branch} {number}".encode()).hex(),
            "timestamp": hex(self.time_of(number)),
            "baseFeePerGas": "0x7",
        }
