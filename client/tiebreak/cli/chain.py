"""`tiebreak deploy`, `status` and `withdraw`: commands about the chain itself; and `tiebreak account ...`: the user's
key, encrypted on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tiebreak.cli import network, output
from tiebreak.cli.failures import CommandError
from tiebreak.cli.option_groups import JSON, argument, command, option

if TYPE_CHECKING:
    from eth_typing import ChecksumAddress

    from tiebreak.contract.game import VerificationGame

_MAX_KEY = 1000
"""Characters of standard input that are read as a key."""

_FILE = argument("FILE", "File for the encrypted key; must not exist.")


@command("account create")
def create(file: Path = _FILE, json: bool = JSON) -> None:
    """Make a new account. Its password is asked for, or read from TIEBREAK_KEYSTORE_PASSWORD."""
    from tiebreak.transactions.keys import create_keystore

    _require_new(file)
    made = create_keystore(file, _new_password(file))
    output.show_result(json, {"address": made.address, "keystore": file}, "New account")
    if not json:
        output.show_line("Keep the file and its password: nobody can restore them.")


@command(
    "account import",
    "tiebreak account import key.json",
    "tiebreak account import key.json --from private-key.txt",
)
def import_(
    file: Path = _FILE,
    source: Path | None = option(
        "File of mode 0600 with a private key in hex; without it the key is read from standard input. A keystore of "
        "another wallet needs no import: name it with --keystore.",
        metavar="FILE",
        name="--from",
    ),
    json: bool = JSON,
) -> None:
    """Encrypt a key that you have. The key is typed in, piped in, or read from a file, never an argument: those are on
    record in the shell's history and in the list of processes."""
    from tiebreak.transactions.keys import account_from_key, create_keystore, read_secret

    _require_new(file)
    if source is not None:
        found = account_from_key(read_secret(source, "key file").decode("ascii", "replace"), str(source))
    elif sys.stdin.isatty():
        found = account_from_key(network.ask("Private key"), "what was typed")
    else:
        found = account_from_key(sys.stdin.readline(_MAX_KEY), "standard input")
    create_keystore(file, _new_password(file), found)
    output.show_result(json, {"address": found.address, "keystore": file}, "Imported account")


def _require_new(file: Path) -> None:
    if file.exists():
        raise CommandError(f"{file} exists already, and a key is never replaced: choose another place.")


def _new_password(file: Path) -> str:
    from tiebreak.transactions.keys import PASSWORD_VARIABLE

    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        password = typer.prompt(f"Password for {file}", hide_input=True, confirmation_prompt=True, err=True)
    return password


@command("account show")
def show(keystore: Path | None = network.KEYSTORE, json: bool = JSON) -> None:
    """Show the address of your account."""
    address = network.account(keystore).address
    if json:
        output.show_json({"address": address})
    else:
        output.show_line(address)


@command("deploy")
def deploy(*, account: network.KeyOptions, node: network.ChainOptions, json: bool = JSON) -> None:
    """Put a new contract on a chain. It belongs to nobody; all who use its address share it."""
    from tiebreak.contract.game import VerificationGame
    from tiebreak.transactions.sender import Sender

    key = account.key()
    game = VerificationGame.deploy(Sender(node.connect(), key))
    output.show_result(json, {"contract": game.address, "chain_id": game.node.chain_id}, "Deployed")


@command(
    "status",
    "tiebreak status 1",
    "tiebreak status --account 0x...",
)
def status(
    job: int | None = argument("[JOB]", "Number of a job.", None, min=1),
    account: str | None = option(
        "Show money, jobs and bonds of an account, and the next step of each job.", metavar="ADDRESS"
    ),
    *,
    chain: network.ContractOptions,
    json: bool = JSON,
) -> None:
    """Show the state of the contract, of one job and its games, or of an account."""
    from tiebreak.cli.summary_text import show_posted

    if job is not None and account is not None:
        raise CommandError("a job and an account are too much at once: ask for one of them.")
    who = network.address(account, "the account") if account is not None else None
    game = chain.open_game()
    if job is not None:
        show_posted(game, job, as_json=json)
    else:
        _show_contract(game, who, json)


def _show_contract(game: VerificationGame, account: ChecksumAddress | None, as_json: bool) -> None:
    from tiebreak.cli.summary_text import plain_summary, read_summary, show_account

    facts = {
        "chain_id": game.node.chain_id,
        "block": game.node.head().number,
        "contract": game.address,
        "jobs": game.job_count(),
        "games": game.game_count(),
    }
    found = read_summary(game, account) if account is not None else None
    agreement = game.node.agreement  # after all that was read
    if agreement.nodes > 1:
        said = [agreement.contradiction] if agreement.contradiction else []
        facts["nodes"] = "; ".join([*said, *(one.rstrip(".") for one in agreement.missing)]) or "agree"
    summary = plain_summary(found) if as_json and found is not None else {}
    output.show_result(as_json, facts | summary, game.node.name)
    if found is not None and not as_json:
        show_account(found)


@command("withdraw")
def withdraw(*, chain: network.AccountOptions, json: bool = JSON) -> None:
    """Fetch what the contract owes to your account: rewards, returned bonds, shares of lost ones."""
    from tiebreak.contract.contract_calls import ContractCall
    from tiebreak.contract.events import Withdrawn

    signer = chain.key()
    game = chain.open_game(signer)
    if game.credit_of(signer.address) == 0:
        raise CommandError(f"the contract owes nothing to {signer.address}: wait until a job or a game has ended.")
    receipt = game.send(ContractCall.of("withdraw"))
    amount = game.event(receipt, Withdrawn).amount
    plain = {"account": signer.address, "amount_wei": str(amount), "transaction": receipt.transaction}
    output.show_result(json, plain, "Withdrawn")
