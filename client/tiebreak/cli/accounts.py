"""`tiebreak account ...`: the user's key, encrypted on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tiebreak.cli import network, options
from tiebreak.cli.failures import CommandError

app = typer.Typer(no_args_is_help=True, help="The key with which you take part.")


@app.command()
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to keep the encrypted key; must not exist.")],
    json: options.Json = False,
) -> None:
    """Make a new account. Its password is asked for, or read from TIEBREAK_KEYSTORE_PASSWORD."""
    from tiebreak.chain.accounts import PASSWORD_VARIABLE, create_keystore
    from tiebreak.cli import output

    if file.exists():
        raise CommandError(f"{file} exists already, and a key is never replaced: choose another place.")
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        password = typer.prompt(f"Password for {file}", hide_input=True, confirmation_prompt=True, err=True)
    made = create_keystore(file, password)
    if json:
        output.show_json({"address": made.address, "keystore": file})
    else:
        output.show_facts("New account", {"address": made.address, "keystore": file})
        output.show_line("Keep the file and its password: nobody can restore them.")


@app.command()
def show(keystore: network.Keystore = None, json: options.Json = False) -> None:
    """Show the address of your account."""
    from tiebreak.cli import output

    address = network.account(keystore).address
    if json:
        output.show_json({"address": address})
    else:
        output.show_line(address)
