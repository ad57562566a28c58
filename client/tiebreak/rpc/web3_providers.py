"""web3 on both sides of a provider: transports for any `Web3`, and a user's `Web3` for this project.

w3 = Web3(TransportProvider(HttpTransport("http://127.0.0.1:8545")))  # limits, deadlines, and any middleware
game = VerificationGame(w3, address)                                   # or with any other provider
"""

from __future__ import annotations

from functools import partial
from math import ceil
from threading import Event
from typing import Any, cast

from web3 import Web3
from web3._utils.threads import Timeout
from web3.exceptions import ProviderConnectionError
from web3.providers import BaseProvider, IPCProvider
from web3.types import RPCEndpoint, RPCResponse

from tiebreak.http_client import shown_url, within
from tiebreak.process_resources import restore_recursion_limit
from tiebreak.rpc.answers import to_json
from tiebreak.rpc.chain_errors import ChainError, InvalidAnswer, RpcRefused
from tiebreak.rpc.transport import ALONE, NodeAgreement, Transport, refusal

restore_recursion_limit()

_NO_ANSWER = (OSError, Timeout, ProviderConnectionError)
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
        self.w3 = source if isinstance(source, Web3) else Web3(source, middleware=[])
        provider: Any = self.w3.provider
        self._below = provider.chain if isinstance(provider, TransportProvider) else None
        address = getattr(provider, "endpoint_uri", None)
        shown = getattr(provider, "ipc_path", None) or (shown_url(str(address), ("http", "https")) if address else None)
        self.name = shown or type(provider).__name__ if self._below is None else self._below.name

    @property
    def agreement(self) -> NodeAgreement:
        return ALONE if self._below is None else self._below.agreement

    @property
    def view(self) -> int:  # type: ignore[override]  # that of the transport below
        return 0 if self._below is None else self._below.view

    def set_confirmations(self, blocks: int) -> None:
        if self._below is not None:
            self._below.set_confirmations(blocks)

    def request(self, method: str, params: list[Any]) -> object:
        if method == "eth_getLogs":
            # web3's middleware for names takes the letters of a single address for addresses.
            params = [{**params[0], "address": [params[0]["address"]]}]
        try:
            response = self.w3.provider.request_func(self.w3, self.w3.middleware_onion)(RPCEndpoint(method), params)
            if response.get("error") is not None:
                raise refusal(method, response["error"])
            return to_json(response["result"])
        except ChainError:
            raise
        except _NO_ANSWER as error:
            raise self._unavailable(method, type(error).__name__) from error
        except Exception as error:
            # A hostile node's answer can end in any error of web3's and of its middleware.
            raise InvalidAnswer(
                f"{self.name} did not answer {method} with JSON-RPC ({type(error).__name__}): check that it is a node."
            ) from error


class IpcTransport(Web3Transport):
    """JSON-RPC over the socket of a node on this machine, by web3's provider, which reads answers of any length.
    `timeout`: seconds for each request. `stop`: ends every request at once, with Stopped."""

    def __init__(self, path: str, *, timeout: float, stop: Event | None) -> None:
        super().__init__(IPCProvider(path, timeout=ceil(timeout)))
        self._timeout, self._stop = timeout, stop

    def request(self, method: str, params: list[Any]) -> object:
        with self._explained(method, self._timeout):
            return within(self._timeout, self._stop, partial(super().request, method, params))


def web3_over(transport: Transport) -> Web3:
    """Return the `Web3` that a transport stands for, or a new one over it."""
    return transport.w3 if isinstance(transport, Web3Transport) else Web3(TransportProvider(transport))
