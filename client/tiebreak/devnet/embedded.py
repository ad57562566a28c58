"""A chain inside this process: eth-tester over py-evm (Prague), spoken to in JSON-RPC like any other node.

Time runs with the wall clock, plus what `evm_setNextBlockTimestamp` has added; every transaction gets a block of its
own at once. Nothing is kept when the process ends.

Events are read by block, each once: eth-tester walks back from the newest block for every receipt that it looks at, so
that a question about a few hundred blocks takes it seconds."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from eth_abi.abi import encode
from eth_utils.address import to_checksum_address
from web3 import EthereumTesterProvider, Web3
from web3.exceptions import ContractLogicError
from web3.types import RPCEndpoint

from tiebreak.process_resources import restore_recursion_limit
from tiebreak.rpc.answers import to_json
from tiebreak.rpc.chain_errors import DevnetError, RpcRefused
from tiebreak.rpc.node import ChainNode
from tiebreak.rpc.transport import Transport
from tiebreak.transactions.keys import ACCOUNTS, BALANCE, MNEMONIC


class LogIndex:
    """The events of a chain, in JSON-RPC's notation."""

    def __init__(self, chain: Any) -> None:
        """chain: py-evm's."""
        self._chain = chain
        self._blocks: list[list[dict[str, Any]]] = []

    def select(self, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return events that fit the filter object of eth_getLogs. Raises ValueError, TypeError for a malformed one."""
        newest = self._read()
        first, last = (_number(wanted.get(name, "latest"), newest) for name in ("fromBlock", "toBlock"))
        addresses = {to_checksum_address(one) for one in _list(wanted.get("address"))}
        topics = [{one.lower() for one in _list(topic)} for topic in wanted.get("topics") or []]

        def fits(log: dict[str, Any]) -> bool:
            """Return whether an event fits; no addresses, and no topics at a place, fit any."""
            found = log["topics"]
            by_topics = all(not any_of or topic in any_of for topic, any_of in zip(found, topics, strict=False))
            return (not addresses or log["address"] in addresses) and len(found) >= len(topics) and by_topics

        return [log for logs in self._blocks[first : last + 1] for log in logs if fits(log)]

    def _read(self) -> int:
        """Take in the blocks that have come; return the newest one's number."""
        newest = int(self._chain.get_canonical_head().block_number)
        for number in range(len(self._blocks), newest + 1):
            block = self._chain.get_canonical_block_by_number(number)
            receipts = block.get_receipts(self._chain.chaindb) if block.transactions else ()
            self._blocks.append(_logs(block, receipts))
        return newest


def _logs(block: Any, receipts: Sequence[Any]) -> list[dict[str, Any]]:
    found = [
        (place, transaction, log)
        for place, (transaction, receipt) in enumerate(zip(block.transactions, receipts, strict=True))
        for log in receipt.logs
    ]
    return [
        {
            "address": to_checksum_address(log.address),
            "topics": [f"0x{topic:064x}" for topic in log.topics],
            "data": "0x" + log.data.hex(),
            "blockNumber": hex(block.number),
            "blockHash": "0x" + block.hash.hex(),
            "transactionHash": "0x" + transaction.hash.hex(),
            "transactionIndex": hex(place),
            "logIndex": hex(index),
            "removed": False,
        }
        for index, (place, transaction, log) in enumerate(found)
    ]


def _number(tag: Any, newest: int) -> int:
    if tag in ("latest", "pending", "safe", "finalized"):
        return newest
    number = 0 if tag == "earliest" else int(tag, 16)
    if number < 0:
        raise ValueError(f"there is no block {number}")
    return number


def _list(value: Any) -> list[str]:
    """Return a parameter that may be one string, several or none, as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


try:
    from eth.abc import ComputationAPI, SignedTransactionAPI, StateAPI
    from eth.estimators.gas import binary_gas_search_intrinsic_tolerance
    from eth.vm.spoof import SpoofTransaction
    from eth_tester import EthereumTester, PyEVMBackend
    from eth_tester.exceptions import TransactionFailed
except ImportError as error:
    raise DevnetError(
        f"the embedded chain needs {error.name}, which is not installed: pip install 'tiebreak[demo]', or use anvil."
    ) from error

restore_recursion_limit()

_METHODS = frozenset(
    [
        "web3_clientVersion",
        "net_version",
        "eth_chainId",
        "eth_blockNumber",
        "eth_getBlockByNumber",
        "eth_getBlockByHash",
        "eth_getBalance",
        "eth_getTransactionCount",
        "eth_getCode",
        "eth_getStorageAt",
        "eth_call",
        "eth_estimateGas",
        "eth_gasPrice",
        "eth_maxPriorityFeePerGas",
        "eth_sendRawTransaction",
        "eth_getTransactionByHash",
        "eth_getTransactionReceipt",
        "eth_getLogs",
    ]
)


def embedded_node(*, confirmations: int = 0, stop: threading.Event | None = None) -> ChainNode:
    """Return a fresh chain in this process."""
    return ChainNode(EmbeddedChain(), confirmations=confirmations, stop=stop)


class EmbeddedChain(Transport):
    """A `Transport` to a chain with `ACCOUNTS` funded accounts of `MNEMONIC`. One lock makes it thread-safe."""

    name = "the embedded chain"

    def __init__(self) -> None:
        super().__init__()
        backend = PyEVMBackend.from_mnemonic(
            MNEMONIC,
            num_accounts=ACCOUNTS,
            genesis_parameters=PyEVMBackend.generate_genesis_params({"timestamp": int(time.time())}),
            genesis_state_overrides={"balance": BALANCE},
            hd_path="m/44'/60'/0'/0",
        )
        backend.chain.gas_estimator = self._estimate_gas
        self._tester = EthereumTester(backend=backend)
        provider = EthereumTesterProvider(self._tester)
        # Only the provider's own middleware, which translates between JSON-RPC and eth-tester; none of web3's.
        w3 = Web3(provider, middleware=[])
        self._perform = provider.request_func(w3, w3.middleware_onion)
        self._logs = LogIndex(backend.chain)
        self._lock = threading.Lock()
        self._offset = 0  # seconds by which the chain is ahead of the wall clock
        self._next_timestamp: int | None = None
        self._snapshots: list[tuple[int, int]] = []

    def request(self, method: str, params: list[Any]) -> object:
        with self._lock:
            if method.startswith("evm_"):
                return self._control(method, params)
            if method not in _METHODS:
                raise RpcRefused(method, -32601, "the embedded chain has no such method")
            self._set_clock()
            try:
                if method == "eth_getLogs":
                    return self._logs.select(cast(Mapping[str, Any], params[0]))
                answer = self._perform(RPCEndpoint(method), params)
            except (TransactionFailed, ContractLogicError) as error:
                raise RpcRefused(method, 3, "execution reverted", _revert_data(error)) from error
            except Exception as error:
                # eth-tester and py-evm refuse bad requests with errors of a dozen unrelated types.
                raise RpcRefused(method, -32000, _reason(method, error)) from error
            if method == "eth_sendRawTransaction":
                self._next_timestamp = None
        if answer.get("error") is not None:
            raise RpcRefused(method, -32601, str(answer["error"].get("message")))
        return _as_json(answer["result"])

    def _control(self, method: str, params: list[object]) -> object:
        """Set the time, or take blocks back: test methods of development chains."""
        value = params[0] if params else None
        if isinstance(value, str):
            try:
                value = int(value, 16 if value.startswith("0x") else 10)
            except ValueError:
                value = None
        if method == "evm_setNextBlockTimestamp" and isinstance(value, int) and 0 <= value < 2**40:
            if value <= self._latest_timestamp:
                raise RpcRefused(method, -32602, "time does not run backwards")
            self._next_timestamp = value
            self._offset = value - int(time.time())
            return None
        if method == "evm_snapshot":
            self._snapshots.append((self._tester.take_snapshot(), self._offset))
            return hex(len(self._snapshots) - 1)
        if method == "evm_revert" and isinstance(value, int) and 0 <= value < len(self._snapshots):
            # Takes blocks back: with other ones mined after it, a reorganisation.
            snapshot, self._offset = self._snapshots[value]
            del self._snapshots[value:]
            self._tester.revert_to_snapshot(snapshot)
            self._logs = LogIndex(self._chain)
            self._next_timestamp = None
            return True
        if method == "evm_mine":
            self._set_clock()
            self._tester.mine_block()
            self._next_timestamp = None
            return "0x0"
        raise RpcRefused(method, -32602, "no such method, or a parameter out of its range")

    @property
    def _chain(self) -> Any:
        return self._tester.backend.chain

    @property
    def _latest_timestamp(self) -> int:
        return int(self._tester.get_block_by_number("latest")["timestamp"])

    def _estimate_gas(self, state: StateAPI, transaction: SignedTransactionAPI) -> int:
        # py-evm asks in the newest block's instant; the transaction will stand in the next one, as the clock goes.
        cast(Any, state.execution_context)._timestamp = self._chain.header.timestamp
        return _estimate_gas(state, transaction)

    def _set_clock(self) -> None:
        # eth-tester adds one second a block, whatever the clock says; the pending header decides the next timestamp.
        header = self._chain.header
        wanted = self._next_timestamp
        if wanted is None:
            wanted = int(time.time()) + self._offset
        timestamp = max(wanted, self._latest_timestamp + 1)
        if header.timestamp != timestamp:
            self._chain.header = header.copy(timestamp=timestamp)


def _estimate_gas(state: StateAPI, transaction: SignedTransactionAPI) -> int:
    """Return gas with which the transaction succeeds, by two executions where py-evm's own search needs a dozen.

    Raises VMError if no amount is enough."""
    generous = _execute(state, transaction, state.gas_limit)
    generous.raise_if_error()
    used = state.gas_limit - generous.get_gas_remaining()
    # A call may take 63/64 of what is left (EIP-150), so a transaction needs a little more at hand than it uses.
    estimate = min(used + used // 16, state.gas_limit)
    if _execute(state, transaction, estimate).is_error:
        estimate = binary_gas_search_intrinsic_tolerance(state, transaction)
    return estimate


def _execute(state: StateAPI, transaction: SignedTransactionAPI, gas: int) -> ComputationAPI:
    snapshot = state.snapshot()
    try:
        attempt = cast(SignedTransactionAPI, SpoofTransaction(transaction, gas=gas, gas_price=0))
        return state.apply_transaction(attempt)
    finally:
        state.revert(snapshot)


def _reason(method: str, error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    lowered = text.lower()
    # The words by which clients of other nodes know these two cases.
    if "cannot afford" in lowered or "not have enough balance" in lowered:
        return f"insufficient funds for gas * price + value: {text}"
    if method == "eth_sendRawTransaction" and "nonce" in lowered:
        return f"nonce too low or too high: {text}"
    return text or type(error).__name__


_ERROR_STRING = bytes.fromhex("08c379a0")  # Error(string)


def _revert_data(error: Exception) -> bytes | None:
    """Return the bytes that a reverted call returned, which eth-tester hands over in four forms; None for others."""
    if isinstance(error, ContractLogicError):
        return bytes.fromhex(error.data.removeprefix("0x")) if isinstance(error.data, str) else None
    # web3 replaces eth-tester's error by one with a shortened text; the original still has the bytes.
    original = error.__context__ if isinstance(error.__context__, TransactionFailed) else error
    payload: object = original.args[0] if original.args else b""
    if isinstance(payload, Exception):
        payload = payload.args[0] if payload.args else b""
    if isinstance(payload, str):
        is_bytes = payload.startswith(("b'", 'b"'))
        payload = ast.literal_eval(payload) if is_bytes else _ERROR_STRING + encode(["string"], [payload])
    return payload if isinstance(payload, bytes) else None


def _as_json(value: object) -> object:
    """Return JSON-RPC's notation for what eth-tester's middleware returns."""
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if not isinstance(value, Mapping):
        return to_json(value)
    shown = {str(key): _as_json(item) for key, item in value.items() if key != "state_root"}
    if isinstance(bloom := value.get("logsBloom"), int):
        shown["logsBloom"] = f"0x{bloom:0512x}"
    return shown | {name: None for name in ("to", "contractAddress") if value.get(name) == ""}
