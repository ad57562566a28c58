"""A remote pinning service, which fetches content over IPFS and keeps it, by way of a Kubo daemon that knows it.

The daemon has the service's address and its token (`ipfs pin remote service add`); neither comes to this program. It
tells the service its own addresses, and calls the service's peers. What the service says is a stranger's, and may have
the token in it: of all that comes back only states are read, and nothing is shown. The service is trusted to keep what
it says it has pinned.

Source: https://docs.ipfs.tech/reference/kubo/rpc/#api-v0-pin-remote-add
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

from tiebreak.store.dagpb import Cid
from tiebreak.store.kubo import KuboStore
from tiebreak.store.store_errors import StoreError, StoreUnavailable

_STATES = ("pinned", "pinning", "queued", "failed")


class PinningService:
    """The pinning service that has a name in the configuration of a daemon.

    `patience`: seconds for which a new pin is waited for; `pace`: seconds until the first look at it, which double up
    to thirty."""

    def __init__(self, name: str, daemon: KuboStore, *, patience: float = 120.0, pace: float = 1.0) -> None:
        self.name = f"the pinning service {name} of {daemon.name}"
        self._service, self._daemon, self._patience, self._pace = name, daemon, patience, pace

    def pin(self, cid: str) -> None:
        """Have the service pin content that the daemon has, and wait until it has. Idempotent: a request that is under
        way is found again.

        Raises StoreError if the service fails or refuses, StoreUnavailable if it is not done in time."""
        Cid.parse(cid)
        state, rest, ends = self._state(cid), self._pace, time.monotonic() + self._patience
        if state in ("", "failed"):
            self._remove(cid, "failed")
            self._ask(f"pin {cid}", "add", {"arg": cid, "name": _name(cid), "background": "true"})
            state = self._state(cid)
        while state != "pinned":
            if state in ("", "failed"):
                raise StoreError(f"{self.name} could not pin {cid}: make sure that a peer serves it, and try again.")
            if time.monotonic() + rest > ends:
                raise StoreUnavailable(
                    f"{self.name} has not pinned {cid} yet (it is {state}): it goes on, look again later."
                )
            self._daemon.retries.wait(f"pin {cid}", rest)
            rest, state = min(30.0, 2 * rest), self._state(cid)

    def unpin(self, cid: str) -> None:
        """Withdraw the requests of this program for this content, not those of others in the account. Idempotent."""
        self._remove(str(Cid.parse(cid)), *_STATES)

    def _state(self, cid: str) -> str:
        """Return the state of the request for some content that is furthest; empty if there is none."""
        lines = self._ask(f"list its pins of {cid}", "ls", {"cid": cid, "status": _STATES}).splitlines()
        try:
            found = [json.loads(line)["Status"] for line in lines]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise self._daemon.foreign() from error
        if any(state not in _STATES for state in found):
            raise self._daemon.foreign()
        return next((state for state in _STATES if state in found), "")

    def _remove(self, cid: str, *states: str) -> None:
        self._ask(f"unpin {cid}", "rm", {"cid": cid, "name": _name(cid), "status": states, "force": "true"})

    def _ask(self, what: str, command: str, params: Mapping[str, str | Sequence[str]]) -> bytes:
        try:
            return self._daemon.remote_pins(what, command, {**params, "service": self._service})
        except StoreUnavailable:
            raise
        except StoreError:
            raise StoreError(
                f"{self.name} did not {what}: see what `ipfs pin remote service ls --stat` says of it."
            ) from None


def _name(cid: str) -> str:
    """Return our name for a request, by which it is told from others in the same account."""
    return f"tiebreak {cid}"
