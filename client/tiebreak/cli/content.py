"""Options for content stores and pinning services, each with its environment variable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tiebreak import quantities
from tiebreak.cli.failures import WrongUsage
from tiebreak.cli.option_groups import panel

if TYPE_CHECKING:
    from tiebreak.store.pinning import PinningService
    from tiebreak.store.store import Store
    from tiebreak.store.transfers import OnTransfer

_option = panel("Content")


Retention = Annotated[
    int | None,
    _option(
        parser=quantities.seconds,
        envvar="TIEBREAK_RETENTION",
        metavar="TIME",
        help="Unpin what was published for a job this long after its end, e.g. 30d (default: keep it). Use it only "
        "with stores that no other role shares.",
        show_default=False,
    ),
]


PublishEvery = Annotated[
    int | None,
    _option(
        min=1,
        metavar="N",
        help="Publish every N-th checkpoint in the content store as soon as it is made, listed beside the log, so that "
        "many workers can audit the run at a time (default: none).",
        show_default=False,
    ),
]


def published_every(wanted: int | None, keep_every: int) -> int:
    """The distance between published checkpoints; 0 for none. Raises WrongUsage if they are not kept."""
    if wanted is not None and wanted % keep_every:
        raise WrongUsage(
            f"--publish-every {wanted} asks for checkpoints that --keep-every {keep_every} does not keep: make it a "
            "multiple of that."
        )
    return wanted or 0


def _ignore(text: str) -> None:
    """A warning that nobody reads."""


@dataclass(frozen=True, kw_only=True)
class ContentOptions:
    """Content stores, and the service that keeps what is published."""

    store: Annotated[
        str | None,
        _option(
            envvar="TIEBREAK_STORE",
            metavar="PLACE,...",
            help="Content stores, by commas: folders, Kubo's RPC (http://127.0.0.1:5001), gateways to read from "
            "(gateway+https://...). Reads ask them in this order, writes go to all (default: a folder of yours).",
        ),
    ] = None
    pin_service: Annotated[
        str | None,
        _option(
            envvar="TIEBREAK_PIN_SERVICE",
            metavar="URL",
            help="Pinning service (IPFS Pinning Service API) that keeps what is published.",
        ),
    ] = None
    pin_token: Annotated[
        Path | None,
        _option(
            envvar="TIEBREAK_PIN_TOKEN_FILE",
            metavar="FILE",
            help="Its access token, in a file of mode 0600. Without it the token is in TIEBREAK_PIN_TOKEN.",
        ),
    ] = None

    def open_content(
        self,
        *,
        stop: threading.Event | None = None,
        warn: Callable[[str], None] = _ignore,
        on_transfer: OnTransfer | None = None,
    ) -> Store:
        """The content stores as one. Raises StoreError."""
        from tiebreak.store import open_stores
        from tiebreak.store.transfers import untold

        return open_stores(
            self.places(), services=self._services(stop), warn=warn, stop=stop, on_transfer=on_transfer or untold
        )

    def places(self) -> tuple[str, ...]:
        """The locations of the stores, from anywhere on this machine. Raises StoreError."""
        from tiebreak.store.location import is_folder, locations

        if self.store is None:
            from platformdirs import user_data_path

            return (str(user_data_path("tiebreak") / "store"),)
        named = locations(self.store)
        return tuple(str(Path(one).expanduser().resolve()) if is_folder(one) else one for one in named)

    def check_content(self) -> None:
        """Checks what is wrong for good: a place that cannot be meant, a token that is missing. Raises StoreError."""
        from tiebreak.store.location import locations

        if self.store is not None:
            locations(self.store)
        self._services(None)

    def _services(self, stop: threading.Event | None) -> list[PinningService]:
        if self.pin_service is None:
            return []
        from tiebreak.store.pinning import PinningService, read_token

        return [PinningService(self.pin_service, read_token(self.pin_token), stop=stop)]
