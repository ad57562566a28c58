"""JSON-RPC over the socket of a node on this machine, by web3's provider."""

from __future__ import annotations

from functools import partial
from math import ceil
from threading import Event
from typing import Any

from web3._utils.threads import Timeout
from web3.exceptions import ProviderConnectionError
from web3.providers import IPCProvider
from web3.types import RPCEndpoint

from tiebreak.http_client import Halted, TooLate, within
from tiebreak.process_resources import restore_recursion_limit
from tiebreak.rpc.chain_errors import ChainUnavailable, InvalidAnswer, Stopped
from tiebreak.rpc.transport import Transport, refusal

restore_recursion_limit()

_NO_ANSWER = (OSError, Timeout, ProviderConnectionError)
"""Errors of web3's provider where a node cannot be reached, or not in time."""


class IpcTransport(Transport):
    """A node behind the socket at a path, whose answers are read whatever their length. `timeout`: seconds for each
    request. `stop`: ends every request at once, with Stopped."""

    def __init__(self, path: str, *, timeout: float, stop: Event | None) -> None:
        self.name = path
        self._provider = IPCProvider(path, timeout=ceil(timeout))
        self._timeout, self._stop = timeout, stop

    def request(self, method: str, params: list[Any]) -> object:
        ask = partial(self._provider.make_request, RPCEndpoint(method), params)
        try:
            answer = within(self._timeout, self._stop, ask)
            refused, result = answer.get("error"), answer.get("result")
            if refused is None and "result" not in answer:
                raise InvalidAnswer(f"{self.name} answered {method} without a result: use another node.")
        except TooLate as error:
            raise self._unavailable(method, f"more than {self._timeout:g} seconds") from error
        except Halted as error:
            raise Stopped(
                f"stopped while {self.name} was asked for {method}: run the same command again to carry on."
            ) from error
        except _NO_ANSWER as error:
            raise self._unavailable(method, type(error).__name__) from error
        except Exception as error:
            # A hostile node's answer can end in any error of web3's.
            raise InvalidAnswer(
                f"{self.name} did not answer {method} with JSON-RPC ({type(error).__name__}): check that it is a node."
            ) from error
        if refused is not None:
            raise refusal(method, refused)
        return result

    def _unavailable(self, method: str, why: str) -> ChainUnavailable:
        return ChainUnavailable(
            f"no usable answer from the chain at {self.name} to {method} ({why}): start the node, or check the address."
        )
