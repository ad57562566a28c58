"""Options for the chain, the contract and the key, and for content stores and pinning services, each with its
environment variable."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import typer

from tiebreak import quantities
from tiebreak.cli.failures import CommandError, WrongUsage
from tiebreak.cli.option_groups import option

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from eth_typing import ChecksumAddress

    from tiebreak.contract.game import VerificationGame
    from tiebreak.rpc.node import ChainNode
    from tiebreak.store.store import Store
    from tiebreak.transactions.signer import Key

DEFAULT_CONFIRMATIONS = 12
"""Blocks: two and a half minutes on Ethereum, deeper than its reorganisations go."""

DEFAULT_CHAIN = "http://127.0.0.1:8545"

RETENTION = option(
    "Unpin what was published for a job this long after its end, e.g. 30d (default: keep it). Use it only with stores "
    "that no other role shares.",
    metavar="TIME",
    parser=quantities.seconds,
    envvar="TIEBREAK_RETENTION",
    rich_help_panel="Content",
)
PUBLISH_EVERY = option(
    "Publish every N-th checkpoint in the content store as soon as it is made, listed beside the log, so that many "
    "workers can audit the run at a time (default: none).",
    metavar="N",
    min=1,
    rich_help_panel="Content",
)
KEYSTORE = option(
    "Encrypted key; its password is asked for, or in TIEBREAK_KEYSTORE_PASSWORD. Without it the key is in "
    "TIEBREAK_PRIVATE_KEY.",
    metavar="FILE",
    envvar="TIEBREAK_KEYSTORE",
    rich_help_panel="Network",
)
SIGN = option("Sign the receipt with your account's key (EIP-191).", False)


def published_every(wanted: int | None, keep_every: int) -> int:
    """Return the distance between published checkpoints; 0 for none. Raises WrongUsage if they are not kept."""
    if wanted is not None and wanted % keep_every:
        raise WrongUsage(
            f"--publish-every {wanted} asks for checkpoints that --keep-every {keep_every} does not keep: make it a "
            "multiple of that."
        )
    return wanted or 0


@dataclass(frozen=True, kw_only=True)
class ContentOptions:
    """Content stores, and the service that keeps what is published."""

    panel: ClassVar = "Content"
    store: str | None = option(
        "Content stores, by commas: folders, Kubo's RPC (http://127.0.0.1:5001), gateways to read from "
        "(gateway+https://...). Reads ask them in this order, writes go to all (default: a folder of yours).",
        metavar="PLACE,...",
        envvar="TIEBREAK_STORE",
    )
    pin_service: str | None = option(
        "Pinning service that keeps what is published, by the name that Kubo has for it (`ipfs pin remote service "
        "add`).",
        metavar="NAME",
        envvar="TIEBREAK_PIN_SERVICE",
    )

    def open_content(
        self,
        *,
        stop: threading.Event | None = None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> Store:
        """Open the content stores as one. Raises StoreError."""
        from tiebreak.store import open_stores

        where = self.places()
        return open_stores(where, pin_service=self.pin_service, warn=warn, stop=stop)

    def places(self) -> tuple[str, ...]:
        """Return the locations of the stores, from anywhere on this machine. Raises StoreError."""
        from tiebreak.store import is_folder, locations

        if self.store is None:
            from platformdirs import user_data_path

            return (str(user_data_path("tiebreak") / "store"),)
        named = locations(self.store)
        return tuple(str(Path(one).expanduser().resolve()) if is_folder(one) else one for one in named)


@dataclass(frozen=True, kw_only=True)
class ChainOptions:
    """Nodes of the chain, and when their blocks count as final."""

    panel: ClassVar = "Network"
    chain: list[str] | None = option(
        f"JSON-RPC node: http(s)://, or the path of its IPC socket (default: {DEFAULT_CHAIN}). Repeatable: "
        "several nodes are compared; in the variable blanks stand between them.",
        metavar="URL|PATH",
        envvar="TIEBREAK_CHAIN",
    )
    confirmations: int | None = option(
        "Blocks until something is final (default: 12; 0 on a devnet).",
        metavar="N",
        min=0,
        envvar="TIEBREAK_CONFIRMATIONS",
    )

    def connect(self, *, stop: threading.Event | None = None) -> ChainNode:
        """Connect to the chain behind all nodes that are named. Raises ChainUnavailable, WrongChain."""
        from tiebreak.rpc.quorum import connect_all

        return connect_all(self.chain or [DEFAULT_CHAIN], confirmations=self.confirmations or 0, stop=stop)

    def connect_final(self, *, stop: threading.Event | None = None) -> ChainNode:
        """Connect as `connect` does, with the default of `confirmations` unless blocks are made on demand."""
        from tiebreak.rpc.node import DEVELOPMENT_CHAINS

        node = self.connect(stop=stop)
        if self.confirmations is None and node.chain_id not in DEVELOPMENT_CHAINS:
            node.confirmations = DEFAULT_CONFIRMATIONS
        return node


@dataclass(frozen=True, kw_only=True)
class ContractOptions(ChainOptions):
    """The contract on the chain, to read from."""

    panel: ClassVar = "Network"
    contract: str | None = option("Address of the contract.", metavar="ADDRESS", envvar="TIEBREAK_CONTRACT")

    def open_game(self, signer: Key | None = None, *, stop: threading.Event | None = None) -> VerificationGame:
        """Open the contract, checked to be this version's; with a signer it can be written to.

        Raises CommandError, ChainError."""
        if self.contract is None:
            raise CommandError(
                "no contract is given: name it with --contract or TIEBREAK_CONTRACT (`tiebreak devnet` starts a chain "
                "with one)."
            )
        where = address(self.contract, "the contract")
        from tiebreak.contract.game import VerificationGame
        from tiebreak.transactions.sender import Sender

        node = self.connect_final(stop=stop)
        return VerificationGame.at(node, where, Sender(node, signer) if signer is not None else None)


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The account that signs: a key on disk, or a signer's."""

    panel: ClassVar = "Network"
    keystore: Path | None = KEYSTORE
    signer: str | None = option(
        "Signer that holds the key, in place of a keystore: clef, web3signer, or a node with unlocked accounts.",
        metavar="URL|PATH",
        envvar="TIEBREAK_SIGNER",
    )
    signer_account: str | None = option(
        "Account of the signer, if it has several.", metavar="ADDRESS", envvar="TIEBREAK_SIGNER_ACCOUNT"
    )

    def key(self, *, stop: threading.Event | None = None) -> Key:
        """Return the key that signs: a signer's, or the user's own. Raises AccountError, SignerError, CommandError."""
        if self.signer is None:
            if self.signer_account is not None:
                raise WrongUsage("--signer-account names an account of a signer, and there is none: add --signer.")
            return account(self.keystore)
        if self.keystore is not None:
            raise WrongUsage("a keystore and a signer are two keys: name one of them.")
        from tiebreak.transactions.remote_signer import connect_signer

        named = address(self.signer_account, "the signer's account") if self.signer_account is not None else None
        return connect_signer(self.signer, named, stop=stop)


@dataclass(frozen=True, kw_only=True)
class AccountOptions(KeyOptions, ContractOptions):
    """The contract, and the account that writes to it."""


@dataclass(frozen=True, kw_only=True)
class PartyOptions(ContentOptions, AccountOptions):
    """Chain, account, content stores and directory: where a role works."""

    panel: ClassVar = "Network"
    directory: Path | None = option("Directory of the role (default: a folder of yours).", None, "DIR", name="--dir")


def address(text: str, what: str) -> ChecksumAddress:
    """Return an address as eth-typing has it, its checksum (EIP-55) verified where the letters' case carries one.

    Raises CommandError."""
    from eth_utils.address import is_checksum_address, to_checksum_address

    if not re.fullmatch("0x[0-9a-fA-F]{40}", text):
        raise CommandError(f"{what} {text} is not an address of 0x and 40 hex digits: check it.")
    if text[2:] not in (text[2:].lower(), text[2:].upper()) and not is_checksum_address(text):
        raise CommandError(f"{what} {text} has a wrong checksum: copy it again.")
    return to_checksum_address(text)


def ask(text: str) -> str:
    """Ask for a secret on the terminal, without an echo."""
    answer: str = typer.prompt(text, hide_input=True, err=True)
    return answer


def account(keystore: Path | None) -> LocalAccount:
    """Open the user's own account. Raises AccountError."""
    from tiebreak.transactions.keys import load_account

    return load_account(keystore, prompt=ask)
