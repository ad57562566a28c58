"""Options for the chain, the contract and the key, and for content stores and pinning services, each with its
environment variable."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiebreak import quantities
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.option_groups import panel

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from eth_typing import ChecksumAddress

    from tiebreak.contract.game import VerificationGame
    from tiebreak.rpc.node import ChainNode
    from tiebreak.store.pinning import PinningService
    from tiebreak.store.store import Store
    from tiebreak.store.transfers import OnTransfer
    from tiebreak.transactions.signer import Key


_content_option = panel("Content")


Retention = Annotated[
    int | None,
    _content_option(
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
    _content_option(
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
        _content_option(
            envvar="TIEBREAK_STORE",
            metavar="PLACE,...",
            help="Content stores, by commas: folders, Kubo's RPC (http://127.0.0.1:5001), gateways to read from "
            "(gateway+https://...). Reads ask them in this order, writes go to all (default: a folder of yours).",
        ),
    ] = None
    pin_service: Annotated[
        str | None,
        _content_option(
            envvar="TIEBREAK_PIN_SERVICE",
            metavar="URL",
            help="Pinning service (IPFS Pinning Service API) that keeps what is published.",
        ),
    ] = None
    pin_token: Annotated[
        Path | None,
        _content_option(
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

        return open_stores(self.places(), services=self.services(stop), warn=warn, stop=stop, on_transfer=on_transfer)

    def places(self) -> tuple[str, ...]:
        """The locations of the stores, from anywhere on this machine. Raises StoreError."""
        from tiebreak.store import is_folder, locations

        if self.store is None:
            from platformdirs import user_data_path

            return (str(user_data_path("tiebreak") / "store"),)
        named = locations(self.store)
        return tuple(str(Path(one).expanduser().resolve()) if is_folder(one) else one for one in named)

    def check_content(self) -> None:
        """Checks what is wrong for good: a place that cannot be meant, a token that is missing. Raises StoreError."""
        from tiebreak.store import locations

        if self.store is not None:
            locations(self.store)
        self.services(None)

    def services(self, stop: threading.Event | None, **patience: Any) -> list[PinningService]:
        """The pinning service, if one is named. patience: as `PinningService` takes it. Raises StoreError."""
        if self.pin_service is None:
            return []
        from tiebreak.store.pinning import PinningService, read_token

        return [PinningService(self.pin_service, read_token(self.pin_token), stop=stop, **patience)]


DEFAULT_CONFIRMATIONS = 12
"""Blocks: two and a half minutes on Ethereum, deeper than its reorganisations go."""

DEFAULT_CHAIN = "http://127.0.0.1:8545"
_option = panel("Network")

Keystore = Annotated[
    Path | None,
    _option(
        envvar="TIEBREAK_KEYSTORE",
        metavar="FILE",
        help="Encrypted key; its password is asked for, or in TIEBREAK_KEYSTORE_PASSWORD. Without it the key is in "
        "TIEBREAK_PRIVATE_KEY.",
    ),
]

RemoteSigner = Annotated[
    str | None,
    _option(
        "--signer",
        envvar="TIEBREAK_SIGNER",
        metavar="URL|PATH",
        help="Signer that holds the key, in place of a keystore: clef, web3signer, or a node with unlocked accounts.",
    ),
]

SignerAccount = Annotated[
    str | None,
    _option(
        "--signer-account",
        envvar="TIEBREAK_SIGNER_ACCOUNT",
        metavar="ADDRESS",
        help="Account of the signer, if it has several.",
    ),
]


Nodes = Annotated[
    list[str] | None,
    _option(
        envvar="TIEBREAK_CHAIN",
        metavar="URL|PATH",
        help=f"JSON-RPC node: http(s)://, or the path of its IPC socket (default: {DEFAULT_CHAIN}). "
        "Repeatable: several nodes are compared; in the variable blanks stand between them.",
        show_default=False,
    ),
]

ContractAddress = Annotated[
    str | None,
    _option(envvar="TIEBREAK_CONTRACT", metavar="ADDRESS", help="Address of the contract."),
]


@dataclass(frozen=True, kw_only=True)
class ChainOptions:
    """Nodes of the chain, and when their blocks count as final."""

    chain: Nodes = None
    confirmations: Annotated[
        int | None,
        _option(
            envvar="TIEBREAK_CONFIRMATIONS",
            min=0,
            metavar="N",
            help="Blocks until something is final (default: 12; 0 on a devnet).",
            show_default=False,
        ),
    ] = None

    def connect(self, *, stop: threading.Event | None = None) -> ChainNode:
        """The chain behind all nodes that are named. Raises ChainUnavailable, WrongChain."""
        from tiebreak.rpc.quorum import connect_all

        if self.chain == ["embedded"]:
            # Imported here because py-evm takes a second to load.
            from tiebreak.devnet.embedded import embedded_node

            return embedded_node(confirmations=self.confirmations or 0, stop=stop)
        return connect_all(self.chain or [DEFAULT_CHAIN], confirmations=self.confirmations or 0, stop=stop)


@dataclass(frozen=True, kw_only=True)
class ContractOptions(ChainOptions):
    """The contract on the chain, to read from."""

    contract: ContractAddress = None

    def open_game(self, signer: Key | None = None, *, stop: threading.Event | None = None) -> VerificationGame:
        """The contract, checked to be this version's; with a signer it can be written to.

        Raises CommandError, ChainError."""
        if self.contract is None:
            raise CommandError(
                "no contract is given: name it with --contract or TIEBREAK_CONTRACT (`tiebreak devnet` starts a chain "
                "with one)."
            )
        where = address(self.contract, "the contract")
        from tiebreak.contract.game import VerificationGame
        from tiebreak.rpc.node import DEVELOPMENT_CHAINS
        from tiebreak.transactions.sender import Sender

        node = self.connect(stop=stop)
        if self.confirmations is None and node.chain_id not in DEVELOPMENT_CHAINS:
            node.confirmations = DEFAULT_CONFIRMATIONS
        return VerificationGame.at(node, where, Sender(node, signer) if signer is not None else None)


@dataclass(frozen=True, kw_only=True)
class AccountOptions(ContractOptions):
    """The contract, and the account that writes to it."""

    keystore: Keystore = None
    signer: RemoteSigner = None
    signer_account: SignerAccount = None

    def key(self, *, stop: threading.Event | None = None) -> Key:
        """The key that signs. Raises AccountError, SignerError, CommandError."""
        return key(self.keystore, self.signer, self.signer_account, stop=stop)


@dataclass(frozen=True, kw_only=True)
class PartyOptions(ContentOptions, AccountOptions):
    """Chain, account, content stores and directory: where a role works."""

    directory: Annotated[
        Path | None,
        _option("--dir", metavar="DIR", help="Directory of the role (default: a folder of yours)."),
    ] = None


def address(text: str, what: str) -> ChecksumAddress:
    """An address as eth-typing has it, its checksum (EIP-55) verified where the letters' case carries one.

    Raises CommandError."""
    from eth_utils.address import is_checksum_address, to_checksum_address

    if re.fullmatch("0x[0-9a-fA-F]{40}", text):
        checked = to_checksum_address(text)
        if text[2:] in (text[2:].lower(), text[2:].upper()) or is_checksum_address(text):
            return checked
        raise CommandError(f"{what} {text} has a wrong checksum: copy it again.")
    raise CommandError(f"{what} {text} is not an address of 0x and 40 hex digits: check it.")


def key(
    keystore: Path | None, signer: str | None, signer_account: str | None, *, stop: threading.Event | None = None
) -> Key:
    """The key that signs: a signer's, or the user's own. Raises AccountError, SignerError, CommandError."""
    if signer is None:
        if signer_account is not None:
            raise WrongUsage("--signer-account names an account of a signer, and there is none: add --signer.")
        return account(keystore)
    if keystore is not None:
        raise WrongUsage("a keystore and a signer are two keys: name one of them.")
    from tiebreak.transactions.remote_signer import connect_signer

    return connect_signer(
        signer, address(signer_account, "the signer's account") if signer_account is not None else None, stop=stop
    )


def account(keystore: Path | None) -> LocalAccount:
    """The user's own account. Raises AccountError."""
    from tiebreak.transactions.keys import load_account

    def ask(text: str) -> str:
        password: str = typer.prompt(text, hide_input=True, err=True)
        return password

    return load_account(keystore, prompt=ask)
