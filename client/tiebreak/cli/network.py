"""Where the chain, the contract, the store and the key are, from options and environment variables."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiebreak.cli.failures import CommandError

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount
    from eth_typing import ChecksumAddress

    from tiebreak.chain.game import VerificationGame
    from tiebreak.store import ContentStore

DEFAULT_CONFIRMATIONS = 12
"""Blocks: two and a half minutes on Ethereum, deeper than its reorganisations go."""

DEFAULT_CHAIN = "http://127.0.0.1:8545"
_PANEL = "Network"

Chain = Annotated[
    str, typer.Option("--chain", envvar="TIEBREAK_CHAIN", metavar="URL", help="JSON-RPC node.", rich_help_panel=_PANEL)
]
Contract = Annotated[
    str | None,
    typer.Option(
        "--contract",
        envvar="TIEBREAK_CONTRACT",
        metavar="ADDRESS",
        help="The verification game's contract.",
        rich_help_panel=_PANEL,
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="TIEBREAK_STORE",
        metavar="DIR|KUBO",
        help="Content store: a folder, or Kubo's RPC as multiaddr or URL. By default a folder of the user's.",
        rich_help_panel=_PANEL,
    ),
]
Keystore = Annotated[
    Path | None,
    typer.Option(
        "--keystore",
        envvar="TIEBREAK_KEYSTORE",
        metavar="FILE",
        help="Encrypted key file; its password is asked for, or read from TIEBREAK_KEYSTORE_PASSWORD. Without it the "
        "key is read from TIEBREAK_PRIVATE_KEY.",
        rich_help_panel=_PANEL,
    ),
]
Confirmations = Annotated[
    int | None,
    typer.Option(
        "--confirmations",
        envvar="TIEBREAK_CONFIRMATIONS",
        min=0,
        metavar="N",
        help="Blocks after which something counts as final: what a bond is put on, and that a job is over. [default: "
        "12; 0 on a development chain]",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]


def address(text: str, what: str) -> ChecksumAddress:
    """An account or contract; the checksum (EIP-55) is checked where the letters' case carries one.

    Raises CommandError."""
    from eth_utils.address import is_checksum_address, to_checksum_address

    if re.fullmatch("0x[0-9a-fA-F]{40}", text):
        checked = to_checksum_address(text)
        if text[2:] in (text[2:].lower(), text[2:].upper()) or is_checksum_address(text):
            return checked
        raise CommandError(f"{what} {text} has a wrong checksum: copy it again.")
    raise CommandError(f"{what} {text} is not an address of 0x and 40 hex digits: check it.")


def account(keystore: Path | None) -> LocalAccount:
    """The user's account. Raises AccountError."""
    from tiebreak.chain.accounts import load_account

    def ask(text: str) -> str:
        password: str = typer.prompt(text, hide_input=True, err=True)
        return password

    return load_account(keystore, prompt=ask)


def open_game(
    chain: str,
    contract: str | None,
    confirmations: int | None,
    signer: LocalAccount | None,
    *,
    stop: threading.Event | None = None,
) -> VerificationGame:
    """The contract, checked to be this version's; with a signer it can be written to.

    Raises CommandError, ChainError."""
    if contract is None:
        raise CommandError(
            "no contract is given: name it with --contract or TIEBREAK_CONTRACT (`tiebreak devnet` starts a chain with "
            "one)."
        )
    where = address(contract, "the contract")
    from tiebreak.chain.game import VerificationGame
    from tiebreak.chain.node import connect
    from tiebreak.chain.sender import Sender
    from tiebreak.roles.desk import DEVELOPMENT_CHAINS

    node = connect(chain, confirmations=confirmations or 0, stop=stop)
    if confirmations is None and node.chain_id not in DEVELOPMENT_CHAINS:
        node.confirmations = DEFAULT_CONFIRMATIONS
    return VerificationGame.at(node, where, Sender(node, signer) if signer is not None else None)


def open_content(store: str | None, *, stop: threading.Event | None = None) -> ContentStore:
    """The content store. Raises StoreError."""
    from tiebreak.store import open_store

    if store is None:
        from platformdirs import user_data_path

        return open_store(user_data_path("tiebreak") / "store", stop=stop)
    return open_store(store, stop=stop)
