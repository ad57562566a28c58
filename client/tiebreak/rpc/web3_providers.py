"""web3 on both sides of a provider: transports for any `Web3`, and a user's `Web3` for this project.

w3 = Web3(TransportProvider(HttpTransport("http://127.0.0.1:8545")))  # limits, deadlines, and any middleware
game = VerificationGame(w3, address)                                   # or with any other provider
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, cast

from eth_abi.abi import encode
from web3 import Web3
from web3._utils.threads import Timeout
from web3.exceptions import (
    CannotHandleRequest,
    ContractLogicError,
    PersistentConnectionError,
    ProviderConnectionError,
    RequestTimedOut,
    TimeExhausted,
    TooManyRequests,
)
from web3.providers import BaseProvider
from web3.types import RPCEndpoint, RPCResponse

from tiebreak.process_resources import restore_recursion_limit
from tiebreak.rpc.chain_errors import REVERTED, ChainError, ChainUnavailable, InvalidAnswer, RpcRefused
from tiebreak.rpc.transport import ALONE, NodeAgreement, Transport, as_json, refusal
from tiebreak.timed_http import shown_url

restore_recursion_limit()

_ERROR_STRING = bytes.fromhex("08c379a0")  # Error(string)

_NO_ANSWER = (
    *(OSError, Timeout, TimeExhausted, RequestTimedOut, TooManyRequests),
    *(ProviderConnectionError, PersistentConnectionError, CannotHandleRequest),
)
"""Errors of web3's providers where a node cannot be reached, or not in time; those of `requests` are OSErrors."""


class TransportProvider(BaseProvider):
    """A provider of web3 over a transport: one node, or the quorum of several."""

    def __init__(self, chain: Transport) -> None:
        super().__init__()
        self.chain = chain

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        try:
            return {"jsonrpc": "2.0", "id": 0, "result": self.chain.request(method, [*params])}
        except RpcRefused as error:
            return cast(RPCResponse, {"jsonrpc": "2.0", "id": 0, "error": error.as_json()})

    def is_connected(self, show_traceback: bool = False) -> bool:
        try:
            self.chain.request("eth_chainId", [])
        except ChainError as error:
            if show_traceback:
                raise ProviderConnectionError(str(error)) from error
            return False
        return True


class Web3Transport(Transport):
    """The chain behind a `Web3`, whatever its provider and middleware, or behind a provider of web3.

    Requests do not pass `w3.eth`, whose formatters take what a node of bad will makes up: numbers of any size, records
    with fields missing, blocks and receipts that nobody asked for. `ChainNode` reads what the node has said."""

    def __init__(self, source: Web3 | BaseProvider) -> None:
        super().__init__()
        self.w3 = source if isinstance(source, Web3) else Web3(source, middleware=[])
        if isinstance(self.w3.provider, TransportProvider):
            self.range_limit = self.w3.provider.chain.range_limit

    @property
    def name(self) -> str:  # type: ignore[override]  # web3's provider may be replaced
        provider = self.w3.provider
        if isinstance(provider, TransportProvider):
            return provider.chain.name
        address = getattr(provider, "endpoint_uri", None)
        return (shown_url(str(address), ("http", "https")) if address else None) or type(provider).__name__

    @property
    def agreement(self) -> NodeAgreement:
        return self.w3.provider.chain.agreement if isinstance(self.w3.provider, TransportProvider) else ALONE

    @property
    def view(self) -> int:
        return self.w3.provider.chain.view if isinstance(self.w3.provider, TransportProvider) else 0

    def set_confirmations(self, blocks: int) -> None:
        if isinstance(self.w3.provider, TransportProvider):
            self.w3.provider.chain.set_confirmations(blocks)

    def request(self, method: str, params: list[Any]) -> object:
        provider = self.w3.provider
        if method == "eth_getLogs":
            # web3's middleware for names takes the letters of a single address for addresses.
            params = [{**params[0], "address": [params[0]["address"]]}]
        try:
            response = provider.request_func(self.w3, self.w3.middleware_onion)(RPCEndpoint(method), params)
            if response.get("error") is not None:
                raise refusal(method, response["error"])
            return plain(response["result"])
        except ChainError:
            raise
        except _NO_ANSWER as error:
            raise ChainUnavailable(
                f"no usable answer from the chain at {self.name} to {method} ({type(error).__name__}): start the node, "
                "or check the address."
            ) from error
        except Exception as error:
            if _is_revert(error):
                raise RpcRefused(method, REVERTED, "execution reverted", revert_data(error)) from error
            # A hostile node's answer can end in any error of web3's and of its middleware.
            raise InvalidAnswer(
                f"{self.name} did not answer {method} with JSON-RPC ({type(error).__name__}): check that it is a node."
            ) from error


def _is_revert(error: BaseException) -> bool:
    """Whether an error is a revert in a chain that does without JSON-RPC; eth-tester need not be installed."""
    return isinstance(error, ContractLogicError) or type(error).__name__ == "TransactionFailed"


def revert_data(error: Exception) -> bytes | None:
    """The bytes that a reverted call returned, which eth-tester hands over in four forms; None for any other form."""
    try:
        return _revert_data(error)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _revert_data(error: Exception) -> bytes | None:
    if isinstance(error, ContractLogicError):
        return bytes.fromhex(error.data.removeprefix("0x")) if isinstance(error.data, str) else None
    # web3 replaces eth-tester's error by one with a shortened text; the original still has the bytes.
    context = error.__context__
    original = context if context is not None and _is_revert(context) else error
    payload: object = original.args[0] if original.args else b""
    if isinstance(payload, Exception):
        payload = payload.args[0] if payload.args else b""
    if isinstance(payload, str):
        if payload.startswith(("b'", 'b"')):
            payload = ast.literal_eval(payload)
        else:
            payload = _ERROR_STRING + encode(["string"], [payload])
    return payload if isinstance(payload, bytes) else None


def web3_over(transport: Transport) -> Web3:
    """The `Web3` that a transport stands for, or a new one over it."""
    return transport.w3 if isinstance(transport, Web3Transport) else Web3(TransportProvider(transport))


def plain(value: object) -> object:
    """JSON of what middleware and other providers have made of it: numbers in hexadecimal, bytes, immutable records."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)
    return as_json(value) if isinstance(value, bytes) else value
