"""`tiebreak account ...`: the user's key, encrypted on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli import network, option_groups, output
from tiebreak.cli.failures import CommandError
from tiebreak.cli.option_groups import examples

_MAX_KEY = 1000
"""Characters of standard input that are read as a key."""

File = Annotated[Path, typer.Argument(metavar="FILE", help="File for the encrypted key; must not exist.")]

app = typer.Typer(no_args_is_help=True, help="The key with which you take part.")


@app.command()
def create(file: File, json: option_groups.Json = False) -> None:
    """Make a new account. Its password is asked for, or read from TIEBREAK_KEYSTORE_PASSWORD."""
    from tiebreak.transactions.keys import create_keystore

    _require_new(file)
    made = create_keystore(file, _new_password(file))
    _show(made.address, file, "New account", json)
    if not json:
        output.show_line("Keep the file and its password: nobody can restore them.")


@app.command(
    name="import",
    epilog=examples(
        "tiebreak account import key.json",
        "tiebreak account import key.json --from private-key.txt",
        "tiebreak account import key.json --from UTC--2026-01-01--keystore",
    ),
)
def import_(
    file: File,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="A private key in hex, or another keystore; its password is asked for, or in "
            "TIEBREAK_IMPORT_PASSWORD. Without it the key is read from standard input.",
        ),
    ] = None,
    json: option_groups.Json = False,
) -> None:
    """Encrypt a key that you have. The key is typed in, piped in, or read from a file, never an argument: those are on
    record in the shell's history and in the list of processes."""
    from tiebreak.transactions.keys import account_from_key, create_keystore, read_key

    _require_new(file)

    def ask(text: str) -> str:
        answer: str = typer.prompt(text, hide_input=True, err=True)
        return answer

    if source is not None:
        found = read_key(source, ask)
    elif sys.stdin.isatty():
        found = account_from_key(ask("Private key"), "what was typed")
    else:
        found = account_from_key(sys.stdin.readline(_MAX_KEY), "standard input")
    create_keystore(file, _new_password(file), found)
    _show(found.address, file, "Imported account", json)


def _require_new(file: Path) -> None:
    if file.exists():
        raise CommandError(f"{file} exists already, and a key is never replaced: choose another place.")


def _new_password(file: Path) -> str:
    from tiebreak.transactions.keys import PASSWORD_VARIABLE

    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        password = typer.prompt(f"Password for {file}", hide_input=True, confirmation_prompt=True, err=True)
    return password


def _show(address: str, file: Path, title: str, as_json: bool) -> None:
    facts = {"address": address, "keystore": file}
    if as_json:
        output.show_json(facts)
    else:
        output.show_facts(title, facts)


@app.command()
def show(keystore: network.Keystore = None, json: option_groups.Json = False) -> None:
    """Show the address of your account."""
    address = network.account(keystore).address
    if json:
        output.show_json({"address": address})
    else:
        output.show_line(address)
