"""A chain of transactions without contracts, fast enough for thousands of rounds: blocks every twelve seconds of a
simulated clock, a pool of pending transactions, fees, reorganisations, and a line to it that fails in every way."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eth_typing import ChecksumAddress
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from tiebreak.rpc.chain_errors import ChainUnavailable, InvalidAnswer, RpcRefused
from tiebreak.rpc.transport import Transport

BLOCK_SECONDS = 12
START = 1_700_000_000


class Killed(BaseException):
    """The end of a process."""


@dataclass
class FakeAccount:
    """Signs so that only the simulated chain can read it."""

    address: ChecksumAddress = field(default_factory=lambda: to_checksum_address("0x" + "a1" * 20))

    def sign_transaction(self, transaction: dict[str, Any]) -> Any:
        plain = {key: value.hex() if isinstance(value, bytes) else value for key, value in transaction.items()}
        raw = json.dumps({**plain, "from": self.address}, sort_keys=True).encode()

        class Signed:
            raw_transaction = raw
            hash = keccak(raw)

        return Signed


@dataclass
class SimulatedBlock:
    number: int
    hash: bytes
    timestamp: int
    base_fee: int
    transactions: list[dict[str, Any]]


class SimulatedChain(Transport):
    """`now`: seconds on the simulated clock; `sleep` moves it and mines what comes due."""

    name = "the simulated node"

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.now = 0.0
        self.slot = 0
        self.halted = False
        self.base_fee = 10**9
        self.strict_fees = True
        """Whether the node refuses what does not pay the base fee, as anvil does, or keeps it, as geth does."""
        self.pool: dict[tuple[str, int], dict[str, Any]] = {}
        self.blocks = [self._block([])]
        self.requests: list[str] = []
        self.on_sleep: Callable[[], None] = lambda: None

    # Time and blocks.

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        if not self.halted:
            for slot in range(int(before // BLOCK_SECONDS) + 1, int(self.now // BLOCK_SECONDS) + 1):
                self.slot = slot
                self.mine()
        self.on_sleep()

    def mine(self) -> None:
        taken = []
        for key in sorted(self.pool):
            transaction = self.pool[key]
            nonce = self.nonce_of(key[0]) + sum(one["from"] == key[0] for one in taken)
            if transaction["nonce"] == nonce and transaction["maxFeePerGas"] >= self.base_fee:
                taken.append(transaction)
        for transaction in taken:
            del self.pool[(transaction["from"], transaction["nonce"])]
        self.blocks.append(self._block(taken))
        self.pool = {key: one for key, one in self.pool.items() if key[1] >= self.nonce_of(key[0])}

    def reorganise(self, depth: int, *, lose: float = 0.0) -> None:
        """Replaces the last blocks by as many other ones; what was in them goes back to the pool, or is lost."""
        dropped = self.blocks[-depth:]
        del self.blocks[-depth:]
        for block in dropped:
            for transaction in block.transactions:
                key = transaction["from"], transaction["nonce"]
                if self.random.random() >= lose and key not in self.pool:
                    self.pool[key] = transaction
        for _ in dropped:
            if self.random.random() < 0.5:
                self.mine()
            else:
                self.blocks.append(self._block([]))

    def effects(self) -> list[str]:
        """The data of everything that was carried out, in order, as hex."""
        return [one["data"] for block in self.blocks for one in block.transactions]

    def nonce_of(self, account: str, height: int | None = None) -> int:
        blocks = self.blocks if height is None else self.blocks[: height + 1]
        return sum(one["from"] == account for block in blocks for one in block.transactions)

    def _block(self, transactions: list[dict[str, Any]]) -> SimulatedBlock:
        number = len(self.blocks) if hasattr(self, "blocks") else 0
        name = keccak(repr((number, self.now, self.random.random())).encode())
        return SimulatedBlock(number, name, START + BLOCK_SECONDS * self.slot, self.base_fee, transactions)

    # JSON-RPC.

    def request(self, method: str, params: list[Any], lag: int = 0) -> object:
        """`lag`: by how many blocks the node that answers is behind."""
        self.requests.append(method)
        height = max(0, len(self.blocks) - 1 - lag)
        if method == "eth_chainId":
            return "0x1"
        if method == "eth_maxPriorityFeePerGas":
            return hex(10**9)
        if method == "eth_estimateGas":
            return hex(50_000)
        if method == "eth_getBlockByNumber":
            number = height if params[0] in ("latest", "pending") else int(params[0], 16)
            return self._shown(self.blocks[number]) if number <= height else None
        if method == "eth_getTransactionCount":
            return hex(self._count(params[0], params[1], height))
        if method == "eth_getTransactionReceipt":
            return self._receipt(bytes.fromhex(params[0][2:]), height)
        if method == "eth_sendRawTransaction":
            return self._take(bytes.fromhex(params[0][2:]))
        raise RpcRefused(method, -32601, "no such method")

    def _count(self, account: str, tag: str, height: int) -> int:
        if tag == "pending":
            count = self.nonce_of(account, height)
            while (account, count) in self.pool:
                count += 1
            return count
        number = height if tag == "latest" else int(tag, 16)
        if number > height:
            raise RpcRefused("eth_getTransactionCount", -32000, "header not found")
        return self.nonce_of(account, number)

    def _take(self, raw: bytes) -> str:
        transaction = json.loads(raw)
        transaction["hash"] = keccak(raw)
        key = transaction["from"], transaction["nonce"]
        shown = "0x" + transaction["hash"].hex()
        there = self.pool.get(key)
        if there is not None and there["hash"] == transaction["hash"]:
            raise RpcRefused("eth_sendRawTransaction", -32000, "already known")
        if transaction["nonce"] < self.nonce_of(key[0]):
            raise RpcRefused("eth_sendRawTransaction", -32000, "nonce too low")
        if self.strict_fees and transaction["maxFeePerGas"] < self.base_fee:
            raise RpcRefused("eth_sendRawTransaction", -32000, "max fee per gas less than block base fee")
        if there is not None and any(
            transaction[fee] * 10 < there[fee] * 11 for fee in ("maxFeePerGas", "maxPriorityFeePerGas")
        ):
            raise RpcRefused("eth_sendRawTransaction", -32000, "replacement transaction underpriced")
        self.pool[key] = transaction
        return shown

    def _receipt(self, wanted: bytes, height: int) -> object:
        for block in self.blocks[: height + 1]:
            for transaction in block.transactions:
                if transaction["hash"] == wanted:
                    return {
                        "transactionHash": "0x" + wanted.hex(),
                        "blockNumber": hex(block.number),
                        "blockHash": "0x" + block.hash.hex(),
                        "status": "0x1",
                        "gasUsed": "0x5208",
                        "effectiveGasPrice": hex(block.base_fee),
                        "contractAddress": None,
                        "logs": [],
                    }
        return None

    @staticmethod
    def _shown(block: SimulatedBlock) -> object:
        return {
            "number": hex(block.number),
            "hash": "0x" + block.hash.hex(),
            "timestamp": hex(block.timestamp),
            "baseFeePerGas": hex(block.base_fee),
            "transactions": ["0x" + one["hash"].hex() for one in block.transactions],
        }


class FaultyLine(Transport):
    """A line to a chain on which `rate` of all requests go wrong."""

    name = "the faulty line"

    def __init__(self, chain: SimulatedChain, seed: int, rate: float, *, kills: float = 0.0) -> None:
        super().__init__()
        self.chain = chain
        self.random = random.Random(seed)
        self.rate = rate
        self.kills = kills
        self.faults = 0

    def request(self, method: str, params: list[Any]) -> object:
        if self.random.random() < self.kills:
            if method == "eth_sendRawTransaction" and self.random.random() < 0.5:
                self._silently(method, params)
            raise Killed
        if self.random.random() >= self.rate:
            return self.chain.request(method, params)
        self.faults += 1
        kind = self.random.randrange(5)
        if kind == 0:
            raise ChainUnavailable("dropped on the way there")
        if kind == 1:
            self._silently(method, params)
            raise ChainUnavailable("the answer was lost")
        if kind == 2:
            raise InvalidAnswer("truncated")
        if kind == 3:
            raise RpcRefused(method, -32005, "too many requests")
        if method == "eth_sendRawTransaction":
            self._silently(method, params)  # the proxy asks twice
        return self.chain.request(method, params, lag=self.random.randrange(1, 4))

    def _silently(self, method: str, params: list[Any]) -> None:
        try:
            self.chain.request(method, params)
        except RpcRefused:
            return
